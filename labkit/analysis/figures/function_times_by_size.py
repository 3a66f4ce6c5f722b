"""The durations of kernel functions against size."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import load
from labkit.analysis.figures.cost_by_size import SIZE, mark_mtu, plot
from labkit.analysis.figures.line_chart import FAINT, Quantity, draw
from labkit.analysis.figures.panels import Panel, finish, grid, panels

PANEL_PX = 270


def timed(times: pd.DataFrame) -> go.Figure:
    """Draw the median duration of functions (`function_time_claim.times`) against size, a plot for each function."""
    rows = load.complete(times.assign(status="ok", method="whole", value=times["p50_s"]))
    by_pairs = rows["pairs"].nunique() > 1
    drawn: list[tuple[Panel, Quantity]] = []
    for panel in panels(rows, columns_count=1, by_pairs=by_pairs, along=SIZE.column):
        for name, some in panel.table.groupby("function", sort=False):
            own = replace(panel, table=some, row=len(drawn) + 1)
            drawn.append(plot(own, f"{name}, p50 of its calls", "s", value="p50_s"))
    figure, seen = grid([panel for panel, _ in drawn], PANEL_PX), set[str]()
    for panel, quantity in drawn:
        draw(figure, panel, quantity, SIZE, seen)
        mark_mtu(figure, panel)
    tracers = " and ".join(sorted(times["tracer"].dropna().unique())) or "tracer"
    subtitle = "geometric mean of rounds, 95 % interval (open triangle: it continues),"
    subtitle += f" {tracers}'s cost included; {FAINT}"
    return finish(figure, rows, "How long functions of the kernel take, by size", subtitle)
