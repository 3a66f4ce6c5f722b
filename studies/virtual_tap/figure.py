"""The mirror tax; the throughput against the number of mirrors and a mirror over a link, each beside the thesis."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import Panel, finish, grid, panels, titled_grid
from labkit.analysis.load import GROUP, HOST, complete, host_text
from labkit.common.switch_options import TUNNELS
from studies.virtual_tap.mirror_tax import COSTS, CPU_TIME_OF, Tax, load_words

TAX_PX, BETWEEN_PX, TOP_PX = 210, 100, 125
COUNT_PX = 220
US = 1e-6
THESIS_BYTES = 64  # of the writes of TCP in the thesis' table 4.1
THESIS_BPS = 1e9  # of the link by which its copies left the host
MIN_LOST = 0.005  # share of the copies; a line of losses that never reaches it is not drawn


def mirror_tax(rows: pd.DataFrame, taxes: Sequence[Tax]) -> go.Figure:
    """Draw the cost of a packet (`mirror_tax.taxes(rows)`) against its counted copies.

    There is a row of panels for each load and host, and a column for each cost. Points are means of the rounds with
    95 % intervals; lines are the fits.
    """
    hosts = list({tuple(one.of[name] for name in HOST): one.of for one in taxes}.values())
    labels = [_load(one.of, hosts) for one in taxes]
    row_of = {label: row for row, label in enumerate(dict.fromkeys(labels), 1)}
    costs = [cost for cost in COSTS if any(one.cost == cost for one in taxes)] or [*COSTS]
    places = [(row_of[label], 1 + costs.index(one.cost)) for label, one in zip(labels, taxes, strict=True)]
    titles = {
        place: f"<b>{label[0]}<br>{CPU_TIME_OF[one.cost]}</b>{label[1]}"
        for place, label, one in zip(places, labels, taxes, strict=True)
    }
    count = max(len(row_of), 1)
    whole = count * TAX_PX + (count - 1) * BETWEEN_PX
    spacing = {"vertical_spacing": BETWEEN_PX / whole, "horizontal_spacing": 0.15}
    figure = titled_grid(titles or {(1, 1): ""}, rows=count, cols=len(costs), **spacing)
    figure.update_layout(height=whole + TOP_PX, margin={"t": TOP_PX, "b": 0}, legend=theme.legend_below())
    for tax, place in zip(taxes, places, strict=True):
        _draw(figure, tax, place)
    figure.update_yaxes(title_text="µs per packet", rangemode="tozero")
    figure.update_xaxes(title_text="copies of a packet (counted)")
    subtitle = (
        "CPU time for a packet that the switch forwards: mean of the rounds and 95 % interval; lines: fit of every"
        " round, averaged"
    )
    return finish(figure, complete(rows), "The mirror tax", subtitle)


def _load(of: Mapping[str, Any], hosts: list[dict[str, Any]]) -> tuple[str, str]:
    """Return a load in words, and a line that names its host if there are several."""
    host = f"<br>{theme.plain(host_text(of, hosts))}" if len(hosts) > 1 else ""
    return theme.plain(", ".join(load_words(of))), host


def _draw(figure: go.Figure, tax: Tax, place: tuple[int, int]) -> None:
    style = theme.arm_style(tax.curve)
    at = {"row": place[0], "col": place[1], "legendgroup": tax.curve}
    figure.add_scatter(
        x=tax.copies, y=[one.value / US for one in tax.means], mode="markers", name=tax.curve, showlegend=True,
        error_y={"array": [one.half / US for one in tax.means]},
        marker={"color": style.color, "symbol": style.symbol, "size": 8}, **at,
    )  # fmt: skip
    if tax.fixed is not None and tax.copy is not None:
        along = np.array([0.0, float(tax.copies.max())])
        figure.add_scatter(
            x=along, y=(tax.fixed.value + tax.copy.value * along) / US, mode="lines", showlegend=False,
            line={"color": style.color, "dash": style.dash, "width": 1.5}, hoverinfo="skip", **at,
        )  # fmt: skip


def mirror_count(rows: pd.DataFrame, lines: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Draw the ratio of throughput to that without mirrors against the number of mirrors, a panel for each load.

    There is a line for each switch, with 95 % intervals, and grey lines for the thesis where the load is the thesis'.
    Loads and switches with a single number of mirrors are left out if others have several. rows: the measurements.
    lines: `virtual_tap.against_none(rows, verdicts)`. published: `reference_tables.thesis_count()`.
    """
    drawn = lines[lines["ratio"].notna()]
    several = drawn.groupby([*GROUP, "curve"], dropna=False)["mirrors"].transform("nunique").gt(1)
    drawn = drawn[several] if several.any() else drawn
    # Its `load` is a sentence about the load that is mirrored; panels would take it for one beside round trips.
    parts = panels(drawn.drop(columns="load"), columns_count=2)
    figure = grid(parts, COUNT_PX)
    for panel in parts:
        for curve, some in panel.table.groupby("curve", sort=False):
            _line(figure, panel, str(curve), some.sort_values("mirrors"))
    alike = [one for one in parts if one.protocol == "tcp" and {*one.table["length_bytes"]} == {THESIS_BYTES}]
    for panel in alike:
        _thesis(figure, panel, published)
    counts = sorted({at for trace in figure.data for at in trace.x})
    figure.update_xaxes(title_text="mirrors", tickvals=counts)
    figure.update_yaxes(title_text="ratio to 0 mirrors", rangemode="tozero")
    figure.update_layout(legend=theme.legend_below())
    subtitle = "ratios with 95 % intervals"
    subtitle += "; grey: published, of another machine, whose load did not stress the switch" * bool(alike)
    if several.any() and not several.all():
        subtitle += "; loads with one number of mirrors are not drawn"
    return finish(figure, complete(rows), "Throughput against the number of mirrors", subtitle)


def _line(figure: go.Figure, panel: Panel, curve: str, own: pd.DataFrame) -> None:
    style = theme.arm_style(curve)
    figure.add_scatter(
        x=[0, *own["mirrors"]], y=[1, *own["ratio"]], mode="lines+markers", name=theme.plain(curve),
        legendgroup=curve, showlegend=True, line={"color": style.color, "dash": style.dash},
        marker={"symbol": style.symbol, "size": 8}, **panel.place,
        error_y={"array": [0, *(own["high"] - own["ratio"])], "arrayminus": [0, *(own["ratio"] - own["low"])]},
    )  # fmt: skip


def _thesis(figure: go.Figure, panel: Panel, published: pd.DataFrame) -> None:
    for name, dash in (("with ifstat", "dash"), ("without ifstat", "dot")):
        without = published.loc[published["mirrors"].eq(0), name]
        if not len(without):
            continue
        text = f"Senanayake 2024, TCP, writes of {THESIS_BYTES} bytes, {name}"
        figure.add_scatter(
            x=published["mirrors"], y=published[name] / without.iloc[0], mode="lines+markers", name=text,
            legendgroup=text, showlegend=True, line={"color": theme.GREY, "dash": dash},
            marker={"symbol": "x", "size": 7}, **panel.place,
        )  # fmt: skip


def uplink(rows: pd.DataFrame, table: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Draw the share of copies that arrive at the monitor against the offered rate, beside the share that the thesis
    captured: a panel for each load whose copies leave by a tunnel.

    rows: the measurements. table: `finding.uplink(rows)`; nothing is drawn if it is empty. published:
    `reference_tables.thesis_uplink()`, drawn where the link has the thesis' rate: bytes that Wireshark captured,
    divided by those that iperf3 sent. A saturated link shows as a decrease. The monitored flow itself is drawn as a
    share of the offered load. Lost copies have lines of their own, by place.
    """
    if not len(table):
        return go.Figure()
    load = [table[name] for name in GROUP if name in table]
    leave = table["output"].isin(TUNNELS).groupby(load, dropna=False).transform("any")
    parts = panels(table[leave], columns_count=2)
    figure = grid(parts, COUNT_PX)
    for panel in parts:
        for topology, some in panel.table.groupby("topology", sort=False):
            style = theme.arm_style(str(topology))
            for shares, dash, minimum in (
                (some["arrived_share"], "solid", 0.0),
                (some["delivered_bps"] / some["offered_bps"], "dot", 0.0),
                (some["link_lost_share"], "dash", MIN_LOST),
                (some["other_lost_share"], "longdash", MIN_LOST),
            ):
                if shares.ge(minimum).any():
                    figure.add_scatter(
                        x=some["offered_bps"] / 1e6, y=shares, mode="lines+markers", name=theme.plain(topology),
                        legendgroup=str(topology), showlegend=True, line={"color": style.color, "dash": dash},
                        marker={"symbol": style.symbol, "size": 8}, **panel.place,
                    )  # fmt: skip
        if panel.table[["link_rate_bps", "uplink_bps"]].eq(THESIS_BPS).any(axis=None):
            share = published["captured_bps"] / published["sent_bps"]
            figure.add_scatter(
                x=published["offered_bps"] / 1e6, y=share, mode="lines+markers", legendgroup="thesis", showlegend=True,
                name="Senanayake 2024: bytes captured / sent", line={"color": theme.GREY},
                marker={"symbol": "x", "size": 7}, **panel.place,
            )  # fmt: skip
    figure.update_xaxes(title_text="offered (Mbit/s)")
    figure.update_yaxes(title_text="share", rangemode="tozero")
    figure.update_layout(legend=theme.legend_below())
    subtitle = (
        "means of the rounds; solid: copies that arrived; dotted: the flow at its receiver; dashed: copies that the"
        " link lost; long dashes: copies lost elsewhere"
    )
    return finish(figure, complete(rows), "A mirror that leaves the host", subtitle)
