"""A mirror over a physical link: received copies against offered load, beside the results of the thesis."""

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import finish
from labkit.analysis.load import complete
from labkit.common import units

HEIGHT_PX = 420
MIN_LOST = 0.005  # share of the copies; a line of losses that never reaches it is not drawn


def uplink(rows: pd.DataFrame, table: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Draw the share of copies that arrive at the monitor against the offered rate, beside the share that the thesis
    captured.

    rows: the measurements. table: `finding.uplink(rows)`. published: `reference_tables.thesis_uplink()`. A saturated
    link shows as a decrease. `delivered` is the monitored flow itself, as a share of the offered load. Lost copies have
    lines of their own, by place.
    """
    figure = go.Figure()
    for (topology, _), some in table.groupby(["topology", "link_rate_bps"], sort=False, dropna=False):
        style = theme.arm_style(str(topology))
        link_bps = some["link_rate_bps"].iloc[0]
        link = "" if pd.isna(link_bps) else f", link of {units.si(link_bps, 'bit/s')}"
        for column, name, dash, minimum in (
            (some["delivered_bps"] / some["offered_bps"], "delivered to the receiver", "dot", 0.0),
            (some["arrived_share"], "copies that arrived", "solid", 0.0),
            (some["link_lost_share"], "copies that the link lost", "dash", MIN_LOST),
            (some["other_lost_share"], "copies lost elsewhere", "longdash", MIN_LOST),
        ):
            if column.ge(minimum).any():
                figure.add_scatter(
                    x=some["offered_bps"] / 1e6, y=column, mode="lines+markers", name=f"{topology}{link}: {name}",
                    line={"color": style.color, "dash": dash}, marker={"symbol": style.symbol, "size": 8},
                )  # fmt: skip
    share = published["captured_bps"] / published["sent_bps"]
    figure.add_scatter(
        x=published["offered_bps"] / 1e6, y=share, mode="lines+markers", name="Senanayake 2024: captured / sent",
        line={"color": theme.GREY, "dash": "dash"}, marker={"symbol": "x", "size": 7},
    )  # fmt: skip
    figure.update_xaxes(title_text="offered (Mbit/s)")
    figure.update_yaxes(title_text="share", rangemode="tozero")
    figure.update_layout(height=HEIGHT_PX, legend=theme.legend_below())
    subtitle = (
        "means of the rounds; the thesis: bytes that Wireshark captured, divided by those that iperf3 sent"
    )
    return finish(figure, complete(rows), "A mirror that leaves the host", subtitle)
