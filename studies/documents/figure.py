"""The claims of documents and what measured ratios say about them: one line for each claim."""

import math
import textwrap

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.forest_plot import ratio_ticks
from labkit.common.units import counted, digits

LINE_PX, EDGES_PX = 52, 190
LEFT_PX, RIGHT_PX, LABEL_LETTERS, VERDICT_LETTERS = 275, 140, 40, 12
MIN_RATIO, MAX_RATIO = 0.02, 50.0  # ratios beyond are drawn at the edge
READINGS = {
    "agrees": (theme.PALETTE[2], "circle"),
    "contradicts": (theme.PALETTE[1], "x"),
    "equal": (theme.PALETTE[3], "diamond"),
    "undecided": (theme.GREY, "circle-open"),
}


def claims(evidence: pd.DataFrame) -> go.Figure:
    """Draw each ratio with its interval on a log axis, and the range of ratios for which its claim holds as a band.

    evidence: a row for each ratio: claim (sentence), name, verdict, low_claimed, high_claimed, ratio, low, high,
    reading, what, host.
    """
    figure = go.Figure()
    names = list(dict.fromkeys(evidence["name"])) if len(evidence) else []
    columns = ["ratio", "low", "high", "low_claimed", "high_claimed"]
    known = evidence[columns].to_numpy(float).flat if names else ()
    inside = [value for value in known if MIN_RATIO <= value <= MAX_RATIO]
    low, high = min([0.8, *inside]) / 1.1, max([1.25, *inside]) * 1.1
    sentences = []
    for place, name in enumerate(names):
        own = evidence[evidence["name"].eq(name)]
        sentences.append(_label(str(own["claim"].iloc[0])))
        claimed_range = float(own["low_claimed"].iloc[0]), float(own["high_claimed"].iloc[0])
        left, right = max(claimed_range[0], low), min(claimed_range[1], high)
        if left < right:
            figure.add_shape(type="rect", x0=left, x1=right, y0=place - 0.4, y1=place + 0.4)
        _points(figure, own, place, (low, high))
        verdict = textwrap.wrap(str(own["verdict"].iloc[0]), VERDICT_LETTERS)
        text = f"<b>{'<br>'.join(map(theme.plain, verdict))}</b>{_beyond(claimed_range, low, high)}"
        at = {"xref": "paper", "x": 1, "xanchor": "left", "xshift": 8, "showarrow": False}
        figure.add_annotation(text=text, y=place, align="left", **at)
    rule = {"type": "line", "x0": 1, "x1": 1, "y0": -0.5, "y1": max(len(names), 1) - 0.5}
    figure.add_shape(**rule, opacity=0.8, line_width=1)
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=sentences, range=[len(names) - 0.5, -0.5], ticks="",
        showgrid=False, automargin=False,
    )  # fmt: skip
    figure.update_xaxes(
        type="log", tickvals=ratio_ticks(low, high), range=[math.log10(low), math.log10(high)],
        title_text="ratio (log scale)",
    )  # fmt: skip
    for reading, (color, symbol) in READINGS.items():
        marker = {"color": color, "symbol": symbol, "size": 9}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=reading))
    figure.update_layout(
        height=EDGES_PX + LINE_PX * max(len(names), 1), margin={"l": LEFT_PX, "r": RIGHT_PX, "t": 100, "b": 90},
        legend=theme.legend_below(),
    )  # fmt: skip
    subtitle = (
        "shaded, or at the right: where the claim holds; points: measured ratios with 95 % intervals (counts have"
        " none)"
    )
    theme.titled(
        figure, "Claims, and the ratios that answer them", f"{subtitle}; {counted(len(evidence), 'ratio')}"
    )
    return figure


def _label(sentence: str) -> str:
    plain = sentence.replace("`", "")  # figures have no code
    lines = textwrap.wrap(plain, LABEL_LETTERS, max_lines=3, placeholder=" …")
    return f'<span style="font-size:11.5px">{"<br>".join(map(theme.plain, lines))}</span>'


def _beyond(claimed_range: tuple[float, float], low: float, high: float) -> str:
    """Return the range of ratios for which a claim holds as a line of its own, if it lies beyond the axis, else ""."""
    words = f"{digits(claimed_range[0])} to {digits(claimed_range[1])}"
    arrow = f"{words} →" if claimed_range[0] >= high else f"← {words}" if claimed_range[1] <= low else ""
    return f'<br><span style="font-size:11px">{arrow}</span>' if arrow else ""


def _points(figure: go.Figure, own: pd.DataFrame, place: int, ends: tuple[float, float]) -> None:
    """Draw the ratios of one claim, one above the other."""
    for number, one in enumerate(own.to_dict("records")):
        color, symbol = READINGS[one["reading"]]
        ratio = min(max(one["ratio"], ends[0]), ends[1])
        low, high = (
            ratio if pd.isna(one[end]) else min(max(one[end], ends[0]), ends[1]) for end in ("low", "high")
        )
        text = f"{one['what']} ({one['host'] or one['run']}): {one['ratio']:.3g}, {one['reading']}"
        figure.add_trace(
            go.Scatter(
                x=[ratio], y=[place - 0.32 + 0.64 * (number + 0.5) / len(own)],
                error_x={"array": [high - ratio], "arrayminus": [ratio - low], "thickness": 1.2, "width": 2},
                mode="markers", marker={"color": color, "symbol": symbol, "size": 6}, showlegend=False,
                hoverinfo="text", hovertext=theme.folded(text, 60),
            )
        )  # fmt: skip
