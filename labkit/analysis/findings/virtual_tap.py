"""State the findings about the cost of mirrors as Markdown sentences.

They are the mirror tax, whether copies are complete, and the corresponding values of the thesis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from labkit.analysis import figures, load
from labkit.analysis.displays import show
from labkit.analysis.findings.packet_size import interval
from labkit.analysis.packet_cost import mirror_tax
from labkit.analysis.packet_cost.mirror_tax import COSTS, Tax
from labkit.common import units
from labkit.common.units import many

MISSING = 0.02  # of the copies: tolerated difference of the two counts, which are not read at the same time
# Senanayake 2024, Table 4.1: iperf3 -l 64 over OVS 3.0.0 between Docker containers; Mbit/s by the number of mirrors,
# with mirrors read (ifstat) and unread.
THESIS_MBIT = {0: (235, 235), 1: (235, 234), 2: (234, 234), 4: (234, 234), 8: (233, 234)}
# Table 4.2: a mirror over GRE and a NIC of 1 Gbit/s, 60 s each; offered Mbit/s, GB sent, GB that the monitor captured.
THESIS_UPLINK = (
    (100, 0.715, 0.783), (200, 1.4, 1.566), (300, 2.1, 2.337), (400, 2.79, 2.921), (500, 3.49, 3.922),
    (600, 4.19, 4.704), (700, 4.89, 5.317), (800, 5.59, 7.131), (900, 6.29, 6.777), (1000, 6.98, 7.359),
    (1100, 7.68, 6.802), (1200, 8.38, 6.678), (1300, 9.08, 7.325), (1400, 9.78, 6.722), (1500, 10.5, 7.098),
)  # fmt: skip
THESIS_S = 60
TUNNELS = ("gre", "erspan", "vxlan")


class VirtualTap:
    """The findings of a run or sweep with these rows. Each method shows one section."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = rows

    def tax(self) -> None:
        """Show the cost of a packet and of a copy for each load and switch."""
        taxes = mirror_tax.taxes(self.rows)
        show(table(taxes), figures.mirror_tax(self.rows, taxes))

    def thesis(self) -> None:
        """Show the throughput that the thesis measured with mirrors."""
        show(thesis_count())

    def copies(self) -> None:
        """Show whether mirrors made all copies."""
        show(copies(self.rows))

    def uplink(self) -> None:
        """Show what a mirror does to a flow when its copies leave the host."""
        result = uplink(self.rows)
        if not len(result):
            why = "set output=gre and loads such as udp:1472@5e7"
            print(f"No load with a rate was mirrored through a tunnel: {why}.")
            return
        show(result, figures.uplink(self.rows, result, thesis_uplink()))


def where(tax_key: load.Key, among: Sequence[load.Key]) -> str:
    """Return what distinguishes a load from the others: `udp, 64 bytes`."""
    of = dict(zip(load.GROUP, tax_key, strict=True))
    words = [str(of["protocol"])]
    length = of["length_bytes"]
    words += [] if length is None or pd.isna(length) else [f"{length:.0f} bytes"]
    rate = of["rate_bps"]
    words += [] if rate is None or pd.isna(rate) else [f"{units.si(rate, 'bit/s')} offered"]
    rest = [
        name for name in mirror_tax.varying(among) if name not in ("protocol", "length_bytes", "rate_bps")
    ]
    return ", ".join(
        [*words, *(f"{name.removesuffix('_bytes').replace('_', ' ')} {of[name]}" for name in rest)]
    )


def tax_sentences(taxes: Sequence[Tax]) -> list[str]:
    """Return a sentence for each tax: the cost of a packet and of a copy, and whether the points lie on a line."""
    return [_tax(one, [other.key for other in taxes]) for one in taxes]


def _tax(tax: Tax, among: Sequence[load.Key]) -> str:
    about = f"**{tax.curve}**, {where(tax.key, among)}, {COSTS[tax.cost]}"
    left = f" ({'; '.join(tax.left_out)})" if tax.left_out else ""
    if tax.fixed is None or tax.copy is None or tax.line is None:
        return f"{about}: not fitted: {tax.why}{left}."
    lines = f"{about}: {interval(tax.fixed)}, and {interval(tax.copy)} for each copy"
    lines += f" ({many(tax.copy.rounds_count, 'round')})"
    if tax.line.misfits:
        lines += "; the points do not lie on a line, so the numbers do not describe each number of mirrors"
    if tax.copy.low is not None and not tax.copy.excludes_zero:
        lines += "; the interval includes 0, so no cost of a copy is shown"
    return f"{lines}{left}."


def table(taxes: Sequence[Tax]) -> pd.DataFrame:
    """Return the taxes as a table: one row per load, switch and cost, with 95 % intervals."""
    among = [one.key for one in taxes]
    lines = [
        {
            "load": where(one.key, among),
            "switch": one.curve,
            "cost of": {"switch_per_packet_s": "ovs-vswitchd", "cpu_per_packet_s": "whole machine"}[one.cost],
            "a packet": "" if one.fixed is None else interval(one.fixed),
            "each copy": "" if one.copy is None else interval(one.copy),
            "line": one.why or ("no" if one.line is not None and one.line.misfits else "yes"),
        }
        for one in taxes
    ]
    return pd.DataFrame(lines, columns=["load", "switch", "cost of", "a packet", "each copy", "line"])


def copies(rows: pd.DataFrame) -> list[str]:
    """Return sentences on whether mirrors made all copies, and how many copies their readers missed."""
    result = mirror_tax.copy_counts(rows)
    if not result:
        return []
    among = [one.key for one in result]
    short = [one for one in result if not abs(one.made_ratio - 1) <= MISSING]
    points = f"{len(result) - len(short)} of {many(len(result), 'point')} (arm and load)"
    lines = [
        f"At {points} every mirror made all its copies within {units.percent(MISSING)}. The two counts are not read at"
        " the same moment."
    ]
    lines += [
        f"**{one.topology}**, {where(one.key, among)}: {_share(one.made_ratio)} of the copies arrived."
        for one in short
    ]
    lines += [
        f"**{one.topology}**, {where(one.key, among)}: the reader did not get {_share(one.unread_ratio)} of the copies;"
        " its socket's buffer was full."
        for one in result
        if one.unread_ratio > MISSING
    ]
    return lines


def thesis_count() -> pd.DataFrame:
    """Return table 4.1 of the thesis: throughput (Mbit/s) by number of mirrors, read and unread."""
    lines = [
        {"mirrors": count, "read": read, "unread": unread} for count, (read, unread) in THESIS_MBIT.items()
    ]
    return pd.DataFrame(lines)


def thesis_uplink() -> pd.DataFrame:
    """Return table 4.2 of the thesis as rates in bit/s (offered, sent and captured), one row per offered rate."""
    lines = [
        {
            "offered_bps": offered * 1e6,
            "sent_bps": sent * 8e9 / THESIS_S,
            "captured_bps": captured * 8e9 / THESIS_S,
        }
        for offered, sent, captured in THESIS_UPLINK
    ]
    return pd.DataFrame(lines)


def uplink(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what happened to a flow and to its copies when the mirror leaves the host, by arm and offered rate.

    Values are means of the rounds. `delivered_bps` is the throughput of the monitored flow at its receiver.
    `copies_made` is the rate of copies that the mirror should make, and `copies_arrived` the rate that reached the
    monitor, both per second; `arrived_share` is their ratio.

    Arms without a mirror are included; the difference from them is the mirror's effect on the flow. Empty without
    tunnels.
    """
    paced = rows[rows["status"].eq("ok") & rows["rate_bps"].notna() & rows["window_s"].gt(0)]
    tunnelled = [f"output={kind}" in name for name in paced["topology"] for kind in TUNNELS]
    if not any(tunnelled):
        return pd.DataFrame()
    result = paced.assign(
        offered_bps=paced["rate_bps"] * paced["streams"] * paced["pairs"],
        copies_made=paced["copies_expected_count"] / paced["window_s"],
        copies_arrived=paced["copies_count"] / paced["window_s"],
    )
    by = ["topology", "protocol", "length_bytes", "offered_bps"]
    table = result.groupby(by, dropna=False, sort=False)[
        ["throughput_bps", "copies_made", "copies_arrived"]
    ].mean()
    table = table.reset_index().rename(columns={"throughput_bps": "delivered_bps"})
    table["arrived_share"] = table["copies_arrived"] / table["copies_made"]
    return table.sort_values(["topology", "offered_bps"], ignore_index=True)


def _share(ratio: float) -> str:
    return "an unknown part" if math.isnan(ratio) else units.percent(ratio)


def report(rows: pd.DataFrame) -> list[str]:
    """Return all findings, for the terminal."""
    return [*tax_sentences(mirror_tax.taxes(rows)), *copies(rows)]
