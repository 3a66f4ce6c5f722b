"""What it costs to watch an interface: CPU time added per packet, packets lost, and the change of the observed flow,
against the offered rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import finish, titled_grid
from labkit.analysis.load import complete
from studies.linear_fit import Estimate

HEIGHT_PX = 1040
MICRO = 1e6
ADDED, LOST = "CPU time of the machine, added by the reader", "Packets that the reader lost"
OBSERVED = "Throughput of the observed flow where it arrives, beside that without a reader"


def monitor_cost(rows: pd.DataFrame, costs: pd.DataFrame) -> go.Figure:
    """Draw against the rate what each reader adds to the CPU time of the machine per packet, what it loses, and how it
    changes the throughput of the flow that it looks for.

    rows: the measurements. costs: `finding.costs(rows)`. Both axes of the first plot are logarithmic, so
    a mean below 0 (no cost beyond the noise) is not drawn; the table has it.
    """
    figure = titled_grid(
        {(1, 1): ADDED, (2, 1): LOST, (3, 1): OBSERVED}, rows=3, cols=1, vertical_spacing=0.12
    )
    for (reader, point), some in costs[costs["reader"].ne("nobody")].groupby(["reader", "point"], sort=False):
        style = theme.READERS.get(str(reader)) or theme.arm_style(str(reader))
        name = theme.plain(f"{reader}{point}")
        common: dict[str, Any] = {
            "mode": "lines+markers", "name": name, "legendgroup": name, "col": 1,
            "line": {"color": style.color, "dash": style.dash}, "marker": {"symbol": style.symbol, "size": 8},
        }  # fmt: skip
        estimates, x = _estimates(some, "added")
        values = [one.value * MICRO if one.value > 0 else None for one in estimates]
        figure.add_scatter(x=x, y=values, error_y=_bars(estimates, MICRO, above_0=True), row=1, **common)
        common["showlegend"] = False
        if some["lost_share"].notna().any():
            figure.add_scatter(x=some["offered_pps"], y=100 * some["lost_share"], row=2, **common)
        changes, x = _estimates(some, "observed")
        if changes:
            values = [100 * one.value for one in changes]
            figure.add_scatter(x=x, y=values, error_y=_bars(changes, 100), row=3, **common)
    figure.update_xaxes(type="log", dtick=1, title_text="offered (packets/s)")
    figure.update_yaxes(type="log", dtick=1, title_text="µs per packet", row=1, col=1)
    figure.update_yaxes(title_text="lost (%)", rangemode="tozero", row=2, col=1)
    figure.update_yaxes(title_text="change (%)", row=3, col=1)
    figure.update_layout(height=HEIGHT_PX, legend=theme.legend_below())
    subtitle = "means of the rounds with 95 % intervals; minus the CPU time per packet without a reader"
    return finish(figure, complete(rows), "What it costs to watch an interface", subtitle)


def _estimates(some: pd.DataFrame, column: str) -> tuple[list[Estimate], pd.Series[float]]:
    """Return the known estimates of a column, and the rates that they are of."""
    known = some[[isinstance(one, Estimate) for one in some[column]]]
    return list(known[column]), known["offered_pps"]


def _bars(estimates: Sequence[Estimate], scale: float, above_0: bool = False) -> dict[str, object]:
    """Return the error bars of estimates. above_0: the axis is logarithmic and ends there."""
    above = [scale * one.half for one in estimates]
    below = [min(half, 0.99 * scale * one.value) for half, one in zip(above, estimates, strict=True)]
    return {"array": above, "arrayminus": below if above_0 else above, "thickness": 1}


def selected(times_s: Sequence[float], counts: Mapping[str, Sequence[int]]) -> go.Figure:
    """Draw packets per second of several counters against time, as the thesis' Figure 4.26.

    times_s: the times of the readings in seconds, from 0. counts: by name, what the counter said at each time.
    """
    figure = go.Figure()
    for name, values in counts.items():
        style = theme.BASELINE if name == "seen" else theme.READERS["monitor"]
        rates = (np.diff(values) / np.diff(times_s)).tolist()
        line = {"color": style.color, "dash": "dot" if name == "seen" else "solid"}
        figure.add_scatter(x=list(times_s[1:]), y=rates, mode="lines", name=name, line=line)
    figure.update_xaxes(title_text="s")
    figure.update_yaxes(title_text="packets/s", rangemode="tozero")
    figure.update_layout(height=360)
    theme.titled(figure, "What the monitor selects", "of all packets on the watched interface")
    return figure
