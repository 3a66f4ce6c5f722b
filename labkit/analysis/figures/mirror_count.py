"""Throughput against the number of mirrors, beside what the thesis measured."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import finish
from labkit.analysis.load import complete

HEIGHT_PX = 420


def mirror_count(rows: pd.DataFrame, lines: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Draw the ratio of throughput to that without mirrors against the number of mirrors.

    There is a line for each load and switch, with 95 % intervals, and grey lines for the thesis. rows: the
    measurements. lines: `virtual_tap.against_none(verdicts)`. published: `virtual_tap.thesis_count()`.
    """
    figure = go.Figure()
    for (curve, load), some in lines[lines["ratio"].notna()].groupby(["curve", "load"], sort=False):
        own = some.sort_values("mirrors")
        style = theme.arm_style(f"{curve}, {load}")
        figure.add_scatter(
            x=[0, *own["mirrors"]], y=[1, *own["ratio"]], mode="lines+markers", name=theme.plain(f"{curve}, {load}"),
            line={"color": style.color, "dash": style.dash}, marker={"symbol": style.symbol, "size": 8},
            error_y={
                "type": "data", "symmetric": False,
                "array": [0, *(own["high"] - own["ratio"])], "arrayminus": [0, *(own["ratio"] - own["low"])],
            },
        )  # fmt: skip
    for name, dash in (("read", "dash"), ("unread", "dot")):
        without = published.loc[published["mirrors"].eq(0), name]
        if len(without):
            figure.add_scatter(
                x=published["mirrors"], y=published[name] / without.iloc[0], mode="lines+markers",
                name=f"Senanayake 2024, TCP, writes of 64 bytes, {name}",
                line={"color": theme.GREY, "dash": dash}, marker={"symbol": "x", "size": 7},
            )  # fmt: skip
    figure.update_xaxes(title_text="mirrors")
    figure.update_yaxes(title_text="ratio to no mirrors", rangemode="tozero")
    figure.update_layout(height=HEIGHT_PX, legend=theme.legend_below())
    subtitle = "ratios with 95 % intervals; grey: published, of another machine, whose load did not stress the switch"
    return finish(figure, complete(rows), "Throughput against the number of mirrors", subtitle)
