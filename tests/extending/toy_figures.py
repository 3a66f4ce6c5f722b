"""What the experiment `jumbo` draws: throughput against the MTU, a line for each arm."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.run_figures import of_part


def by_mtu(rows: pd.DataFrame) -> go.Figure:
    """Draw the mean throughput in Gbit/s of each arm against its MTU. `rows`: those of a run."""
    figure = go.Figure()
    for (arm, role), own in rows[rows["status"].eq("ok")].groupby(["arm", "role"], sort=False):
        means = own.groupby("mtu_bytes")["throughput_bps"].mean() / 1e9
        style = theme.arm_style(arm, role)
        figure.add_scatter(x=means.index, y=means, name=arm, line={"color": style.color, "dash": style.dash})
    figure.update_xaxes(title_text="MTU in bytes")
    figure.update_yaxes(title_text="Gbit/s", rangemode="tozero")
    return figure


FIGURES = {"by_mtu": of_part("cost", by_mtu)}
