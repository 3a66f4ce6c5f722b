"""What a packet costs, of `figures`: throughput, packets a second and CPU time of a packet against its size."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go

from labkit.errors import BadInput
from labkit.figures.lines import FAINT, Axis, Quantity, draw
from labkit.figures.panels import Panel, finish, grid, panels
from labkit.loading import PROVENANCE, complete, differing

SIZE = Axis("length_bytes", "bytes of payload", lambda size: f"{size:.0f} bytes")
PANEL_PX = 250
# What is counted: what a UDP server has read; what an interface has received, where a frame of TCP holds up to 64 KB
# (segmentation offload, GRO).
PACKET = {"udp": "datagram", "tcp": "frame"}
PREFIXES = {"G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}


def cost(rows: pd.DataFrame) -> go.Figure:
    """Throughput, packets a second and CPU time of a packet against `length_bytes` (of a datagram's payload, of a write,
    of a ping), arms side by side; of ping the round-trip time alone. Rows without a length are left out.

    Rows of one panel are of one host and differ in nothing but arm and length, whichever runs of a sweep they are of.
    CPU time is that of the whole machine, generators included; dotted: softirq alone. Raises BadInput where rows of
    a panel differ in PROVENANCE.
    """
    sized = complete(of_part(rows, "cost"))
    sized = sized[sized["length_bytes"].notna()]
    drawn: list[tuple[Panel, Quantity]] = []
    # Of a whole run of UDP `received_count` is iperf3's, of its own time; bytes are of the window that CPU time is of.
    datagrams = sized["received_bytes"] / sized["length_bytes"]
    sized = sized.assign(packets=sized["received_count"].mask(sized["protocol"].eq("udp"), datagrams))
    for panel in panels(sized, columns_count=1, by_pairs=sized["pairs"].nunique() > 1, along=SIZE.column):
        _alike(panel)
        for one, quantity in _quantities(panel):
            drawn.append((replace(one, row=len(drawn) + 1), quantity))
    figure, seen = grid([panel for panel, _ in drawn], PANEL_PX), set[str]()
    for panel, quantity in drawn:
        draw(figure, panel, quantity, SIZE, seen)
    subtitle = f"geometric mean of the rounds and 95 % interval; thin dotted: softirq alone; {FAINT}"
    return finish(figure, sized, "What a packet costs, by its size", subtitle)


def of_part(rows: pd.DataFrame, part: str) -> pd.DataFrame:
    """The rows of one part of an experiment that has several; else all."""
    parts = rows.get("part")
    return rows if parts is None or not parts.notna().any() else rows[parts.eq(part)]


def _alike(panel: Panel) -> None:
    for name, values in differing(panel.table[panel.table["status"].eq("ok")], PROVENANCE).items():
        one, other = (str(value) for value in values[:2])
        raise BadInput(f"rows that differ in {name} are not drawn on one axis: {one} and {other}")


def _quantities(panel: Panel) -> list[tuple[Panel, Quantity]]:
    """The plots of a panel, one below the other."""
    if panel.protocol == "ping":
        return [_plot(panel, "round-trip time p50", "s", value="latency_p50_s")]
    packet = PACKET.get(panel.protocol, "packet")
    cpu = {"value": "cpu_s", "part": "softirq_s", "weight": "packets"}
    return [
        _plot(panel, "throughput", "bit/s", value="throughput_bps"),
        _plot(panel, f"{packet}s received", "pps", value="throughput_pps"),
        _plot(panel, f"CPU time of a {packet} received, whole machine", "s", **cpu),
    ]


def _plot(panel: Panel, what: str, unit: str, **columns: str) -> tuple[Panel, Quantity]:
    """The panel with these columns to draw, and the unit with a prefix that suits the values."""
    table = panel.table.assign(**{name: panel.table[own].astype(float) for name, own in columns.items()})
    values = table["value"]
    if "weight" in table:
        table["weight"] = table["weight"].where(table["weight"] > 0)
        values = values / table["weight"]
    middle = values[table["status"].eq("ok")].median()
    prefix = next((sign for sign, scale in PREFIXES.items() if scale <= middle), "")
    unit = f"{prefix}{unit}"
    return replace(panel, table=table, title=f"{panel.title}: {what}"), Quantity(unit, unit, PREFIXES[prefix])
