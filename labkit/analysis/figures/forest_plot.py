"""The forest plot: verdicts as ratios to the baseline, each with its interval and its word."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import load, protocols, theme
from labkit.analysis.figures.panels import HOST_PX, Marks, Panel, finish, panels, titled_grid, wrapped

LINE_PX, STACKED_PX = 22, 36  # height of a line; of one whose texts are in two rows
MAX_TEXT_PX = 450  # beside the plots, in a figure 700 px wide; more text is put in two rows for each line
BETWEEN_PX, TOP_PX = 62, 100  # between two panels: an axis and the next title; above the first
# Right of the plot to the column of numbers; between that, the words and the edge.
NUMBERS_PX, APART_PX = 10, 12
DIGIT_PX, LETTER_PX, LABEL_PX = 7.0, 7.4, 7.4  # width of a character of the numbers, the words and the labels
LONGEST_LABEL = 30  # characters of an arm's name; longer ones lose their middle
# Labels of the ratio axis in order of preference; a label is used if there is room for it.
_TICKS = (1, 0.5, 2, 0.1, 10, 0.2, 5, 0.8, 1.2, 0.9, 1.1, 0.7, 1.5, 0.6, 1.4, 3, 0.3, 1.3, 0.95, 1.05, 0.85)
ABOUT_LETTERS, TITLE_LETTERS = 130, 84
LARGEST_RATIO = 999  # larger ratios are not printed as numbers
# Ratios beyond are cut off, because one very wide interval would hide all others.
_MIN_RATIO, _MAX_RATIO = 0.001, 1000.0


@dataclass(frozen=True)
class _Texts:
    """The layout of the texts beside the plots, in pixels.

    The labels are left. Right are the numbers and, from `word_px` on, the words. If all of them in one row would leave
    too little room for the plots, `stacked` puts the number of pairs below the arm's name, and the word below the
    numbers.
    """

    left_px: float
    word_px: float
    right_px: float
    stacked: bool

    @classmethod
    def of(cls, parts: list[Panel]) -> _Texts:
        """Return the layout for all lines of a figure."""
        lines = [one for panel in parts for one in panel.table.to_dict("records")]
        label, name, what, numbers, word = (
            max((len(text(one)) for one in lines), default=0)
            for text in (
                _label, lambda one: _without_middle(one["topology"]), lambda one: str(one["what"]), _numbers,
                lambda one: str(one["word"]),
            )
        )  # fmt: skip
        word_px = NUMBERS_PX + DIGIT_PX * numbers + APART_PX
        left_px, right_px = 25 + LABEL_PX * label, word_px + LETTER_PX * word + APART_PX
        if left_px + right_px <= MAX_TEXT_PX:
            return cls(left_px, word_px, right_px, stacked=False)
        right_px = NUMBERS_PX + max(DIGIT_PX * numbers, LETTER_PX * word) + APART_PX
        return cls(25 + LABEL_PX * max(name, what), NUMBERS_PX, right_px, stacked=True)


def forest(
    verdicts: pd.DataFrame, title: str = "Ratios to the baseline", about: str = "", reading: str | None = None
) -> go.Figure:
    """Draw ratios to the baseline with intervals on a log axis, a line for each (topology, pairs).

    Panels are by group. `about` is prepended to the subtitle. `reading` goes into the title of each panel and says
    what right of 1 means.
    The shaded band is the interval of the baseline against itself (A/A control). A symbol is open if its interval
    contains 1. An arm without any ratio in a panel has one line with its word. The optional columns `accelerator` and
    `peer_accelerator` mark emulated rows.
    """
    each = panels(verdicts, columns_count=1, along="pairs")
    parts = [replace(panel, table=_lines(panel.table)) for panel in each]
    texts = _Texts.of(parts)
    figure = _empty(parts, reading, STACKED_PX if texts.stacked else LINE_PX)
    low, high = drawn_range(verdicts)
    ticks, ends = ratio_ticks(low, high), [math.log10(low), math.log10(high)]
    figure.update_xaxes(type="log", tickangle=0, tickvals=ticks, range=ends)
    figure.update_yaxes(visible=bool(parts))
    marks = Marks(figure)
    for panel in parts:
        _draw(figure, marks, panel, texts)
    marks.add()
    first = (next(iter(panel.table["baseline"].dropna()), "the baseline") for panel in parts)
    baselines = ", ".join(theme.plain(name) for name in dict.fromkeys(first))
    has_several = any(panel.table.dropna(subset="ratio")["baseline"].nunique() > 1 for panel in parts)
    text = f"ratio{'' if has_several else ' to ' + (baselines or 'the baseline')} (log scale)"
    figure.update_xaxes(title_text=text, row=max(len(parts), 1), col=1)
    figure.update_layout(margin={"l": texts.left_px, "r": texts.right_px, "b": 0}, showlegend=False)
    subtitle = "ratio and 95 % interval, open where it includes 1; shaded: the baseline against itself (A/A)"
    lines = [theme.plain(line) for line in textwrap.wrap(about, ABOUT_LETTERS)]
    room = LINE_PX * max(0, len(lines) - 1)
    figure.update_layout(height=figure.layout.height + room, margin_t=figure.layout.margin.t + room)
    figure = finish(figure, as_rows(verdicts), title, "<br>".join([*lines, subtitle]))
    if reading is not None:
        return figure
    means = dict.fromkeys(
        f"more {one.average}" if one.higher_is_better else f"a longer {one.average}"
        for one in protocols.all_of(verdicts)
    )
    band = "The grey band is the baseline against itself: a difference within it is none."
    return theme.explained(figure, f"A ratio above 1 means {' or '.join(means)}. {band}" if means else band)


def as_rows(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return verdicts with status and reason; without a ratio these are the word and the sentence."""
    status = verdicts["word"].where(verdicts["ratio"].isna(), "ok")
    return verdicts.assign(status=status, reason=verdicts["sentence"])


def _empty(parts: list[Panel], reading: str | None, line_px: int) -> go.Figure:
    """Return an empty grid of titled plots, one below the other, with its height and its upper margin."""
    lines, titles = [len(panel.table) for panel in parts] or [1], {}
    for panel in parts:
        faster = "right" if protocols.of(panel.table).higher_is_better else "left"
        title = f"{panel.title}: {reading or f'{faster} of 1 is faster'}"
        titles[panel.at] = replace(panel, title=wrapped(title, TITLE_LETTERS)).titled
    more_px = HOST_PX * max((title.count("<br>") for title in titles.values()), default=0)
    between, top = BETWEEN_PX + more_px, TOP_PX + more_px
    height = line_px * sum(lines) + between * (len(lines) - 1)
    spacing = between / height if len(lines) > 1 else 0
    figure = titled_grid(titles, rows=len(lines), cols=1, row_heights=lines, vertical_spacing=spacing)
    return figure.update_layout(height=height + top, margin={"t": top})


def drawn_range(verdicts: pd.DataFrame) -> tuple[float, float]:
    """Return the range of all values to draw with a margin, at least 7 % around 1."""
    ends = verdicts[["ratio", "low", "high", "control_low", "control_high"]]
    bounds = ends.to_numpy(float, na_value=math.nan)
    drawn = [float(bound) for bound in bounds.flat if _MIN_RATIO <= bound <= _MAX_RATIO]
    return min(0.93, *drawn, 1) / 1.01, max(1.07, *drawn, 1) * 1.01


def ratio_ticks(low: float, high: float) -> list[float]:
    """Return tick values within the range, at least an eighth of the axis apart."""
    taken: list[float] = []
    for tick in _TICKS:
        distance = min((abs(math.log(tick / other)) for other in taken), default=math.inf)
        if low <= tick <= high and distance >= math.log(high / low) / 8:
            taken.append(tick)
    return sorted(taken)


def _lines(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of a panel from top to bottom, by number of pairs, then topology, with column `y`.

    A line with another baseline than the first names both arms. Arms without a ratio at any number of pairs come last,
    with one line each.
    """
    measured = table.loc[table["word"].ne("equal"), "baseline"]  # what is equal names its own unchanged arm
    other = table["baseline"].notna() & ~table["baseline"].isin(measured.dropna().head(1))
    both = [_both_arms(one) for one in table.to_dict("records")]
    table = table.assign(topology=table["topology"].mask(other, pd.Series(both, table.index, dtype=str)))
    last = set(table.loc[other, "topology"])
    names = sorted(table["topology"].unique(), key=lambda name: (name in last, theme.arm_order(name)))
    order = {name: place for place, name in enumerate(names)}
    absent = table["ratio"].isna().groupby(table["topology"]).transform("all")
    table = table.assign(order=table["topology"].map(order), absent=absent)
    table["what"] = [load.in_words("pairs", count) for count in table["pairs"]]
    one = table["pairs"].nunique() == 1  # then an absent arm keeps that number in its label
    table["what"] = table["what"].mask(absent & (not one), "any pairs")
    lines = table[~(absent & table.duplicated(["topology", "word", "absent"]))]
    lines = lines.sort_values(["absent", "pairs", "order"], ignore_index=True)
    return lines.assign(y=range(len(lines)))


def _both_arms(one: dict[Any, Any]) -> str:
    """Return both arms of a ratio: `vxlan+gro to vxlan`, and of a change on two topologies `gro on vxlan to veth`."""
    return f"{one['topology']} to {str(one['baseline']).removeprefix(str(one.get('change')) + ' on ')}"


def _label(one: dict[Any, Any]) -> str:
    return f"{_without_middle(one['topology'])} · {one['what']}"


def _without_middle(name: str) -> str:
    """Return a name without its middle if it is long. Names of changed arms differ at the end."""
    half = LONGEST_LABEL // 2
    return name if len(name) <= LONGEST_LABEL else f"{name[: half - 1]}…{name[-half:]}"


def _draw(figure: go.Figure, marks: Marks, panel: Panel, texts: _Texts) -> None:
    """Draw a panel: each group's control band and a rule below the group, the rule at 1, the lines and their labels."""
    table = panel.table
    rule = {"type": "line", "line_width": 1, **panel.place}
    for _, group in table[~table["absent"]].groupby("pairs"):
        top, bottom = group["y"].min() - 0.5, group["y"].max() + 0.5
        for low, high in control_band(group):
            marks.shape(type="rect", x0=low, x1=high, y0=top, y1=bottom, **panel.place)
        if bottom < len(table) - 0.5:
            marks.shape(xref="x domain", x0=0, x1=1, y0=bottom, y1=bottom, **rule)
    marks.shape(x0=1, x1=1, y0=-0.5, y1=len(table) - 0.5, opacity=0.8, **rule)
    for one in table.to_dict("records"):
        _line(figure, marks, panel, one, texts)
    labels = [theme.plain(_label(one)) for one in table.to_dict("records")]
    if texts.stacked:
        labels = [label.replace(" · ", "<br>", 1) for label in labels]
    axis = {"tickvals": table["y"], "ticktext": labels, "range": [len(table) - 0.5, -0.5], "ticks": ""}
    figure.update_yaxes(**axis, showgrid=False, automargin=False, **panel.place)


def control_band(lines: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return the interval of the baseline against itself, which not all of these lines may have; none without any."""
    known = lines[["control_low", "control_high"]].dropna()
    return list(known[:1].itertuples(index=False, name=None))


def _numbers(one: dict[Any, Any]) -> str:
    """Return the ratio and its interval; empty without a ratio."""
    if pd.isna(one["ratio"]):
        return ""
    interval = "" if pd.isna(one["low"]) else f" [{_number(one['low'])}, {_number(one['high'])}]"
    return f"{_number(one['ratio'])}{interval}"


def _line(figure: go.Figure, marks: Marks, panel: Panel, one: dict[Any, Any], texts: _Texts) -> None:
    """Draw one ratio with its interval, and to the right its numbers and its word."""
    style = theme.arm_style(one["topology"])
    ratio, word = one["ratio"], theme.plain(one["word"])
    if not pd.isna(ratio):
        low, high = (ratio if pd.isna(one[end]) else one[end] for end in ("low", "high"))
        symbol = style.symbol.removesuffix("-open") + ("-open" if low <= 1 <= high else "")
        figure.add_scatter(
            x=[ratio], y=[one["y"]], error_x={"array": [high - ratio], "arrayminus": [ratio - low]},
            mode="markers", marker={"color": style.color, "symbol": symbol, "size": 9},
            name=theme.plain(one["topology"]), hoverinfo="text", hovertext=theme.folded(one["sentence"], 60),
            **panel.place,
        )  # fmt: skip
    word = f"<b>{word}</b>" if word in ("faster", "slower") else word
    at = {"xref": "x domain", "x": 1, "xanchor": "left", "y": one["y"], "showarrow": False, **panel.place}
    if texts.stacked:
        both = "<br>".join(filter(None, [_numbers(one), word]))
        marks.annotation(text=both, align="left", xshift=NUMBERS_PX, **at)
        return
    marks.annotation(text=_numbers(one), xshift=NUMBERS_PX, **at)
    marks.annotation(text=word, xshift=texts.word_px, **at)


def _number(ratio: float) -> str:
    if not LARGEST_RATIO > ratio > 1 / LARGEST_RATIO:
        return f"> {LARGEST_RATIO}" if ratio > 1 else "~ 0"
    return f"{ratio:.2f}" if 0.1 <= ratio < 10 else f"{ratio:.3f}" if ratio < 1 else f"{ratio:.3g}"
