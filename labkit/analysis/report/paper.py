"""A figure for a paper: black text on white, as wide as a column, with your own names, colours and font."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.report.images import drawn
from labkit.common import run_folder
from labkit.common.errors import BadInput, choose
from labkit.common.printable import say

FORMATS = ("pdf", "svg", "png")
CM_PX, POINT_PX = 96 / 2.54, 96 / 72  # CSS pixels
FONT_PX = 12.5  # of labels in a figure as labkit lays it out
DEADLINE_S = 60.0
NARROW_PX = 560  # below this width nothing has room beside the plots
LETTER_PX = 7
TITLE_PX = 62  # of a figure's title and the first line of its subtitle


def paper(
    figure: go.Figure,
    path: str | Path,
    *,
    width_cm: float = 8.5,
    font_pt: float = 7.5,
    font: str = "Helvetica, Arial, sans-serif",
    names: Mapping[str, str] | None = None,
    colors: Mapping[str, str] | None = None,
    title: bool = False,
) -> Path:
    """Write a figure of a run as PDF, SVG or PNG (by the path's ending) for a paper, and return the path.

    `labkit.paper(run.figures.forest, "ratios.pdf", names={"veth_bridge": "bridge"})`. width_cm: 8.5 is a column of a
    paper with two, 17.5 its page. font_pt: the size of labels. Where that leaves no room beside the plots, the
    legend is below them and a forest plot has no numbers. names and colors: of arms, by labkit's names. title:
    keep the title and the notes, which a caption says better. Raises BadInput for another ending, Failed without a
    browser.
    """
    path = Path(path)
    ending = path.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise BadInput(f"{path}: {choose(ending, FORMATS)} as the file's ending")
    if not (2 <= width_cm <= 100 and 3 <= font_pt <= 40):
        raise BadInput("width_cm is 2 to 100, and font_pt 3 to 40")
    scale = font_pt * POINT_PX / FONT_PX
    width_px = round(width_cm * CM_PX / scale)
    printed = _printed(figure, width_px, font, names or {}, colors or {}, title)
    scales = {ending: scale * (3 if ending == "png" else 1)}  # about 300 dots per inch
    [content] = drawn({path: printed}, DEADLINE_S, scales, width_px).values()
    run_folder.write(path, content)
    height_cm = (printed.layout.height or 450) * scale / CM_PX
    if height_cm > 29.7:  # A4
        fewer = "labkit.analysis.figures.forest(run.verdicts.query(\"protocol == 'tcp'\"))"
        say(f"{path} is {height_cm:.1f} cm high, more than a page: draw fewer rows, for example with {fewer}")
    return path


def _printed(
    figure: go.Figure,
    width_px: int,
    font: str,
    names: Mapping[str, str],
    colors: Mapping[str, str],
    title: bool,
) -> go.Figure:
    """Return a copy of the figure in the style of a paper."""

    own = {theme.plain(name): theme.plain(new) for name, new in names.items()}
    # Whole names, not parts of others.
    longest_first = sorted(own, key=len, reverse=True)
    whole = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, longest_first)) or '(?!)'})(?!\w)")

    found = set[str]()

    def named(text: str | None) -> str | None:
        found.update(whole.findall(text or ""))
        return text and whole.sub(lambda match: own[match[0]], text)

    result = theme.on_paper(figure, "black").update_layout(font_family=font)
    result.update_xaxes(linecolor="black", tickcolor="black")
    result.update_yaxes(linecolor="black", tickcolor="black")
    if not title:
        notes = [one for one in result.layout.annotations if one.name == "notes"]
        lost = sum(theme.NOTE_LINE_PX * (one.text.count("<br>") + 1) for one in notes)
        result.layout.annotations = [one for one in result.layout.annotations if one.name != "notes"]
        top, bottom = result.layout.margin.t or theme.MARGIN_TOP_PX, result.layout.margin.b or 0
        height = (result.layout.height or 450) - TITLE_PX - lost
        result.update_layout(
            title=None, height=height, margin={"t": top - TITLE_PX, "b": max(0, bottom - lost)}
        )
    if width_px < NARROW_PX:
        _narrow(result, width_px)
    arms = list(dict.fromkeys(str(trace.name) for trace in result.data if trace.name))
    for trace in result.data:
        color = colors.get(str(trace.name))
        if color is not None:
            try:
                if "marker" in trace:
                    trace.update(marker_color=color)
                if getattr(trace, "line", None) is not None:
                    trace.update(line_color=color)
            except ValueError:
                raise BadInput(f"colors: {color} of {trace.name} is no CSS color, such as red") from None
        trace.name = named(trace.name)
    for one in result.layout.annotations:
        one.update(text=named(one.text), font_color="black")
    for axis in (*result.select_xaxes(), *result.select_yaxes()):
        if axis.ticktext is not None:
            axis.ticktext = [named(str(text)) for text in axis.ticktext]
        axis.title.text = named(axis.title.text)
    # One dictionary may serve several figures, so an arm that labkit knows need not be in this one.
    for what, given, there in (("names", own, found), ("colors", colors, set(arms))):
        for name in given.keys() - there - theme.ARMS.keys():
            raise BadInput(f"{what}: there is no {name} in the figure: {choose(name, arms)}")
    return result


def _narrow(figure: go.Figure, width_px: int) -> None:
    """Put the legend below the plots, and leave out the texts to their right."""
    layout = figure.layout
    kept = [one for one in layout.annotations if not (one.x == 1 and one.xanchor == "left")]
    if len(kept) < len(layout.annotations):
        for one in kept:  # a panel's title is as wide as its plot was
            one.text = one.text.replace(": ", ":<br>")
        layout.annotations = kept
        labels = [str(text) for axis in figure.select_yaxes() for text in axis.ticktext or ()]
        left = 20 + LETTER_PX * max((len(line) for text in labels for line in text.split("<br>")), default=0)
        figure.update_layout(margin={"r": 15, "l": left})
    shown = [one.name for one in figure.data if one.showlegend is not False and one.name]
    if layout.showlegend is not False and len(shown) > 1:
        letters = sum(len(name) + theme.LEGEND_SYMBOL_LETTERS for name in shown)
        room = theme.LEGEND_LINE_PX * math.ceil(1.2 * letters * LETTER_PX / width_px) + theme.LEGEND_ENDS_PX
        bottom, height = layout.margin.b or 0, layout.height or 450
        figure.update_layout(legend=theme.legend_below(), height=height + room, margin_b=bottom + room)
