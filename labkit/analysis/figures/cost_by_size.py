"""Throughput, packet rate and CPU time per packet against size."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import protocols
from labkit.analysis.figures.line_chart import FAINT, Axis, Quantity, draw
from labkit.analysis.figures.panels import Panel, finish, grid, panels
from labkit.analysis.load import PROVENANCE, complete, differing, part, percentile_of
from labkit.common.errors import BadInput
from labkit.common.schema import latency_text

RULE = {"type": "line", "line_width": 1, "line_dash": "dot", "opacity": 0.9}
FAR = 10  # ratio of the largest to the smallest value from which on the axis is logarithmic
PANEL_PX = 250
IP_BYTES = {4: 20, 6: 40}
UDP_BYTES = 8  # the same for an ICMP echo
FRAGMENT_BYTES = {4: 0, 6: 8}  # the fragment header after the IP header (RFC 8200, section 4.5)
FRAGMENTED = ("udp", "ping")  # protocols whose packets IP may send in fragments
PREFIXES = {"G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}


def cost(rows: pd.DataFrame) -> go.Figure:
    """Draw throughput, packet rate and CPU time per packet against `length_bytes`, with arms side by side.

    The length is that of a datagram's payload, a write or a ping. For ping there is only the round-trip time. Rows
    without a length are left out. Fragmented sizes are beyond a dotted line and are labelled with their number of
    fragments. CPU time is that of the whole machine, including generators; dotted: softirq alone.

    The rows of a panel are of one host and differ only in arm and length; they may come from several runs of a sweep.
    Raises BadInput if they differ in PROVENANCE.
    """
    cpu = "CPU time of a {} received, whole machine"
    return _against_size(rows, "What a packet costs, by its size", cpu, "s", "packets")


def rates(rows: pd.DataFrame) -> go.Figure:
    """Draw throughput, packet rate and busy CPUs of the whole machine against `length_bytes`, like `cost`."""
    cpu = "CPUs of the machine that are busy"
    return _against_size(rows, "Throughput, packets and busy CPUs, by size", cpu, "CPUs", "window_s")


def _against_size(rows: pd.DataFrame, title: str, cpu: str, unit: str, per: str) -> go.Figure:
    """Draw how fast packets arrive, and the CPU time per something. cpu, unit, per: its title, unit and divisor."""
    sized = part(complete(rows), "cost")
    sized = sized[sized["length_bytes"].notna()]
    plots: list[tuple[Panel, Quantity]] = []
    # In rows of labkit 0.1, `received_count` of a whole UDP run is iperf3's, over iperf3's own period.
    datagrams = sized["received_bytes"] / sized["length_bytes"]
    sized = sized.assign(packets=sized["received_count"].mask(sized["protocol"].eq("udp"), datagrams))
    for panel in panels(sized, columns_count=1, along=SIZE.column):
        for name, values in differing(panel.table[panel.table["status"].eq("ok")], PROVENANCE).items():
            one, other = (str(value) for value in values[:2])
            raise BadInput(f"rows that differ in {name} are not drawn on one axis: {one} and {other}")
        protocol = protocols.of(panel.table)
        if panel.protocol in protocols.CARRYING:
            plots += [
                plot(panel, protocol.quantity, "bit/s", value="throughput_bps"),
                plot(panel, f"{protocol.packet}s received", "pps", value="throughput_pps"),
                plot(panel, cpu.format(protocol.packet), unit, value="cpu_s", part="softirq_s", weight=per),
            ]
        else:
            of = "" if protocol.higher_is_better else f" {latency_text(percentile_of(panel.table))}"
            plots.append(plot(panel, f"{protocol.quantity}{of}", protocol.metric_unit, value=protocol.metric))
    subtitle = f"geometric mean of rounds, 95 % interval (open triangle: it continues); dotted: softirq alone; {FAINT}"
    return finish(below_each_other(plots, PANEL_PX), sized, title, subtitle)


def below_each_other(plots: Sequence[tuple[Panel, Quantity]], panel_px: int) -> go.Figure:
    """Draw quantities against size, one below the other."""
    parts = [replace(panel, row=row) for row, (panel, _) in enumerate(plots, 1)]
    figure = grid(parts, panel_px)
    for panel, (_, quantity) in zip(parts, plots, strict=True):
        draw(figure, panel, quantity, SIZE)
        mark_mtu(figure, panel)
    return figure


def say_size(size: float, panel: Panel) -> str:
    """Return the tick label of a size, with the number of fragments if there are several."""
    mtu, family = panel.table[["mtu_bytes", "family"]].iloc[0]
    many = 1
    if panel.protocol in FRAGMENTED and pd.notna(mtu):
        many = fragments_count(size, mtu, 4 if pd.isna(family) else family)
    return f"{size:.0f}" + (f"<br>×{many}" if many > 1 else "")


SIZE = Axis("length_bytes", "bytes of payload (×: fragments)", lambda size: f"{size:.0f} bytes", say_size)


def mark_mtu(figure: go.Figure, panel: Panel) -> None:
    """Draw a dotted line between unfragmented and fragmented sizes, if there are both."""
    mtu, family = panel.table[["mtu_bytes", "family"]].iloc[0]
    if panel.protocol not in FRAGMENTED or pd.isna(mtu):
        return
    largest, sizes = largest_whole(mtu, 4 if pd.isna(family) else family), panel.table["length_bytes"]
    if sizes.min() <= largest < sizes.max():
        x = {"x0": largest + 0.5, "x1": largest + 0.5}
        figure.add_shape(y0=0, y1=1, yref="y domain", **x, **RULE, **panel.place)


def plot(panel: Panel, what: str, unit: str, **columns: str) -> tuple[Panel, Quantity]:
    """Return the panel with the columns to draw (value, part, weight), and the quantity with a suitable SI prefix."""
    table = panel.table.assign(**{name: panel.table[own].astype(float) for name, own in columns.items()})
    values = table["value"]
    if "weight" in table:
        table["weight"] = table["weight"].where(table["weight"] > 0)
        values = values / table["weight"]
    ok = table["status"].eq("ok")
    middle, sizes = values[ok].median(), values[ok].groupby(table["length_bytes"]).median()
    far = bool(sizes.min() > 0 and sizes.max() > FAR * sizes.min())
    result = (sign for sign, scale in PREFIXES.items() if scale <= middle)
    prefix = "" if unit == "CPUs" else next(result, "")
    unit = f"{prefix}{unit}"
    quantity = Quantity(unit, unit, PREFIXES[prefix], far)
    return replace(panel, table=table, title=f"{panel.title}: {what}"), quantity


def largest_whole(mtu_bytes: float, family: float) -> int:
    """Return the largest UDP payload in bytes that is not fragmented."""
    return int(mtu_bytes) - IP_BYTES[int(family)] - UDP_BYTES


def fragments_count(length_bytes: float, mtu_bytes: float, family: float = 4) -> int:
    """Return the number of packets in which IP sends a UDP datagram with a payload of `length_bytes`.

    All fragments but the last hold a multiple of 8 bytes (RFC 791, RFC 8200). For IPv6 the kernel fills the last
    fragment no more than the others (__ip6_append_data).
    """
    family = int(family)
    carried, room = int(length_bytes) + UDP_BYTES, int(mtu_bytes) - IP_BYTES[family]
    if carried <= room:
        return 1
    each = room // 8 * 8 - FRAGMENT_BYTES[family]
    last = room if family == 4 else each
    return 1 - (last - carried) // each
