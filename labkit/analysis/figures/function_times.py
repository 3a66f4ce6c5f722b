"""The durations of kernel functions: their distribution, with arms in one plot, and their medians against size."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import load, theme
from labkit.analysis.figures.cost_by_size import SIZE, below_each_other, plot
from labkit.analysis.figures.line_chart import FAINT
from labkit.analysis.figures.panels import finish, panels, titled_grid

PANEL_PX, EDGES_PX = 170, 130
SIZE_PANEL_PX = 270
US = 1e-6
BIN = 1 / 8  # of an octave, about the width of the bins of function_times
Rounds = Sequence[Mapping[str, Any]]  # results of the observer function_times, one per round


def function_times(arms: Mapping[str, tuple[pd.DataFrame, Rounds]]) -> go.Figure:
    """Draw the distribution of the durations of each function, all rounds together.

    The vertical axis is the share of calls per part (BIN) of an octave, so that areas are shares. A dotted line is the
    mean of the rounds' medians. `arms` maps a name to the rows of its profiles and the results of function_times
    (column `observed`).
    """
    reports = [report["functions"] for _, rounds in arms.values() for report in rounds]
    names = list(dict.fromkeys(name for functions in reports for name in functions))
    titles = {(row, 1): theme.plain(name) for row, name in enumerate(names, 1)}
    count = max(1, len(names))
    figure = titled_grid(titles, rows=count, cols=1, shared_xaxes=True, vertical_spacing=0.4 / max(count, 4))
    for arm, (rows, rounds) in arms.items():
        role = str(rows["role"].iloc[0]) if len(rows) else "variant"
        style = theme.arm_style(arm, "variant" if role == "control" else role)
        for at, name in enumerate(names, 1):
            _draw_arm(figure, at, arm, style, [report["functions"].get(name, {}) for report in rounds])
    figure.update_xaxes(type="log", tickformat=",~g")
    text = "time of a call in µs, callees and interrupts included"
    figure.update_xaxes(title_text=text, row=count, col=1)
    figure.update_yaxes(title_text="calls per ⅛ octave", tickformat=".0%", rangemode="tozero")
    figure.update_layout(height=EDGES_PX + PANEL_PX * count)
    every = pd.concat([rows for rows, _ in arms.values()])
    subtitle = "all rounds together, the tracer's own cost included; dotted: mean of the rounds' medians"
    return finish(figure, every, "How long functions of the kernel take", subtitle)


def _draw_arm(figure: go.Figure, row: int, arm: str, style: theme.ArmStyle, rounds: Rounds) -> None:
    bins = Counter[tuple[float, float]]()
    for one in rounds:
        for low, high, count in one.get("histogram", ()):
            bins[low, high] += int(count)
    total = sum(bins.values())
    if not total:
        return
    xs, ys = list[float](), list[float]()
    last: float | None = None
    for (low, high), count in sorted(bins.items()):
        low, high = low / US, high / US
        low = low or high / 2  # a coarse clock reports calls of 0 s
        share = count / total / math.log2(high / low) * BIN
        if last is not None and low > last * 1.0001:  # there are empty bins in between
            xs, ys = [*xs, last, low], [*ys, 0.0, 0.0]
        xs, ys, last = [*xs, low, high], [*ys, share, share], high
    common: dict[str, Any] = {"legendgroup": arm, "name": theme.plain(arm), "mode": "lines"}
    line = {"color": style.color, "dash": style.dash}
    hover = "%{x:.3~g} µs: %{y:.1%} of calls per ⅛ octave"
    curve = go.Scatter(x=xs, y=ys, line=line, showlegend=True, hovertemplate=hover, **common)
    figure.add_trace(curve, row=row, col=1)
    medians = [one["p50_s"] for one in rounds if one.get("p50_s")]
    if medians:
        middle: dict[str, Any] = {"color": style.color, "dash": "dot", "width": 1}
        figure.add_vline(x=sum(medians) / len(medians) / US, row=row, col=1, line=middle, opacity=1)


def function_durations(times: pd.DataFrame) -> go.Figure:
    """Draw the median duration of functions (`function_time_claim.times`) against size, a plot for each function."""
    rows = load.complete(times.assign(status="ok", method="whole", value=times["p50_s"]))
    plots = [
        plot(replace(panel, table=own), f"{name}, p50 of its calls", "s", value="p50_s")
        for panel in panels(rows, columns_count=1, along=SIZE.column)
        for name, own in panel.table.groupby("function", sort=False)
    ]
    tracers = " and ".join(sorted(times["tracer"].dropna().unique())) or "tracer"
    subtitle = "geometric mean of rounds, 95 % interval (open triangle: it continues),"
    subtitle += f" {tracers}'s cost included; {FAINT}"
    figure = below_each_other(plots, SIZE_PANEL_PX)
    return finish(figure, rows, "How long functions of the kernel take, by size", subtitle)
