"""State the findings about the cost of mirrors as Markdown sentences.

They are the mirror tax, whether copies are complete, and the corresponding values of the thesis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import load, verdicts
from labkit.analysis.displays import show
from labkit.analysis.flame.load_profiles import observed
from labkit.analysis.run_figures import of_part
from labkit.common import units
from labkit.common.switch_options import TUNNELS
from labkit.common.units import counted
from studies import reference_tables
from studies.linear_fit import interval, mean, with_interval
from studies.virtual_tap import figure, mirror_tax
from studies.virtual_tap.mirror_tax import COSTS, Tax

MISSING = 0.02  # of the copies: tolerated difference of the two counts, which are not read at the same time
# Senanayake 2024, figure 4.11 in words: the drop of unlimited TCP with one mirror, at this length of a write
THESIS_DROP, THESIS_DROP_BYTES = "up to 20 %", 1024
CYCLES = ("cycles", "instructions")  # of perf_stat
NO_CYCLES = "No run counted cycles and instructions of ovs-vswitchd: set observe to perf_stat and events_of to switch."


class VirtualTapFindings:
    """The findings of a run or sweep with these rows, and those of its profiles. Each method shows one section."""

    def __init__(self, rows: pd.DataFrame, profiles: pd.DataFrame) -> None:
        self.rows, self.profiles = rows, profiles

    def tax(self) -> None:
        """Show the cost of a packet and of a copy for each load and switch."""
        taxes = mirror_tax.taxes(self.rows)
        show(table(taxes), figure.mirror_tax(self.rows, taxes))

    @cached_property
    def compared(self) -> pd.DataFrame:
        """The verdicts about each number of mirrors."""
        return verdicts.verdicts(self.rows)

    def by_mirror_count(self) -> None:
        """Show the throughput against the number of mirrors, beside that of the thesis."""
        show(_mirror_count(self.rows, self.compared), reference_tables.thesis_count())

    def cycles(self) -> None:
        """Show the cycles per instruction of ovs-vswitchd, or why they are missing."""
        result, why = cycles_per_instruction(self.profiles)
        if why:
            print(why)
        show(result)

    def by_packet_size(self) -> None:
        """Show the drop of throughput with a mirror by size of packets, beside that of the thesis."""
        show(drops(self.rows, self.compared))

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
        show(result, figure.uplink(self.rows, result, reference_tables.thesis_uplink()))


def load_labels(keys: Sequence[load.Key]) -> dict[load.Key, str]:
    """Return what distinguishes each of these loads from the others: `udp, 64 bytes`."""
    varying = load.varying(pd.DataFrame(keys, columns=load.GROUP), load.GROUP)
    loads = [dict(zip(load.GROUP, key, strict=True)) for key in keys]
    return {key: _load_label(of, loads, varying) for key, of in zip(keys, loads, strict=True)}


def _load_label(of: dict[str, Any], among: list[dict[str, Any]], varying: list[str]) -> str:
    words = mirror_tax.load_words(of)
    known = ("protocol", "length_bytes", "rate_bps")
    words += [f"MTU {of['mtu_bytes']:g}"] if "mtu_bytes" in varying and of["mtu_bytes"] is not None else []
    words += load.non_defaults(
        {name: of[name] if name in varying and name not in known else None for name in of}
    )
    alike = [one for one in among if load.emulated(one) == load.emulated(of)]
    if len({tuple(one[name] for name in load.HOST) for one in alike}) > 1:
        words.append(load.host_text(of, among))
    elif load.emulated(of):
        words.append("emulated CPU")
    return ", ".join(words)


def tax_sentences(taxes: Sequence[Tax]) -> list[str]:
    """Return a sentence for each tax: the cost of a packet and of a copy, and whether the points lie on a line."""
    labels = load_labels([one.key for one in taxes])
    return [_tax(one, labels[one.key]) for one in taxes]


def _tax(tax: Tax, label: str) -> str:
    about = f"**{tax.curve}**, {label}, {COSTS[tax.cost]}"
    left = f" ({'; '.join(tax.left_out)})" if tax.left_out else ""
    if tax.fixed is None or tax.copy is None or tax.line is None:
        return f"{about}: not fitted: {tax.why}{left}."
    lines = f"{about}: {interval(tax.fixed)}, and {interval(tax.copy)} for each copy"
    lines += f" ({counted(tax.copy.rounds_count, 'round')})"
    if tax.line.misfits:
        lines += "; the points do not lie on a line, so the numbers do not describe each number of mirrors"
    if tax.copy.low is not None and not tax.copy.excludes_zero:
        lines += "; the interval includes 0, so no cost of a copy is shown"
    return f"{lines}{left}."


def table(taxes: Sequence[Tax]) -> pd.DataFrame:
    """Return the taxes as a table: one row per load, switch and cost, with 95 % intervals."""
    labels = load_labels([one.key for one in taxes])
    lines = []
    for one in taxes:
        packet, copy = ("" if cost is None else interval(cost) for cost in (one.fixed, one.copy))
        line = one.why or ("no" if one.line is not None and one.line.misfits else "yes")
        cost_of = mirror_tax.CPU_TIME_OF[one.cost]
        lines.append((labels[one.key], one.curve, cost_of, packet, copy, line))
    return pd.DataFrame(lines, columns=["load", "switch", "cost of", "a packet", "each copy", "line"])


def copies(rows: pd.DataFrame) -> list[str]:
    """Return sentences on whether all copies of every mirror arrived, and how many copies the readers missed."""
    result = mirror_tax.copy_counts(rows)
    if not result:
        return []
    labels = load_labels([one.key for one in result])
    short = [one for one in result if not all(abs(part - 1) <= MISSING for part in one.made)]
    points = f"{len(result) - len(short)} of {counted(len(result), 'point')} (arm and load)"
    lines = [
        f"At {points} all copies of every mirror arrived within {units.percent(MISSING)}. The two counts are not read"
        " at the same moment."
    ]
    lines += [
        f"**{one.topology}**, {labels[one.key]}: {_share(one.made[0])} of the copies arrived"
        f"{_uneven(one.made[1:])}."
        for one in short
    ]
    lines += [
        f"**{one.topology}**, {labels[one.key]}: the reader did not get {_share(one.unread[0])} of the"
        f" copies; its socket's buffer was full{_uneven(one.unread[1:])}."
        for one in result
        if any(part > MISSING for part in one.unread)
    ]
    return lines


def _uneven(of_mirrors: Sequence[float]) -> str:
    """Return the least and the greatest share among mirrors in words; "" if they are alike or not known."""
    known = [one for one in of_mirrors if not math.isnan(one)]
    if not known or max(known) - min(known) <= MISSING:
        return ""
    least, most = (of_mirrors.index(limit(known)) for limit in (min, max))
    return (
        f": {_share(of_mirrors[least])} of mirror{least}'s, {_share(of_mirrors[most])} of mirror{most}'s"
        + (", the others between" if len(of_mirrors) > 2 else "")
    )


def against_none(rows: pd.DataFrame, compared: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts against a switch without mirrors, with the columns of `mirror_tax.switches` and `load` (in
    words)."""
    of = mirror_tax.switches(rows)
    lines = compared.join(of, "topology")
    lines = lines[compared["baseline"].map(of["mirrors"]).eq(0) & lines["mirrors"].gt(0)].astype(
        {"mirrors": int}
    )
    keys = [load.key_of(line) for line in lines[load.GROUP].to_dict("records")]
    labels = load_labels(keys)
    return lines.assign(load=[labels[key] for key in keys])


def drops(rows: pd.DataFrame, compared: pd.DataFrame) -> pd.DataFrame:
    """Return the drop of throughput with the fewest mirrors, by load and switch, in per cent with its 95 % interval.

    `compared`: their verdicts. The column `thesis` has what the thesis found with one mirror under the same load.
    """
    lines = against_none(rows, compared)
    lines = lines[lines["mirrors"].eq(lines["mirrors"].min())] if len(lines) else lines
    result = []
    for _at, line in lines.sort_values(["protocol", "length_bytes", "rate_bps"]).iterrows():
        drop, low, high = (f"{100 * (1 - line[name]):.1f}" for name in ("ratio", "high", "low"))
        known = f"{drop} %" if pd.isna(line["low"]) else f"{drop} [{low}, {high}] %"
        text = line["sentence"] if pd.isna(line["ratio"]) else known
        result.append((line["load"], line["topology"], text, THESIS_DROP if _is_of_thesis(line) else ""))
    return pd.DataFrame(result, columns=["load", "switch", "drop", "thesis"])


def _is_of_thesis(line: pd.Series[Any]) -> bool:
    """Whether a line is of the load of figure 4.11: `iperf3 -l 1024` over TCP, without -b, and one mirror."""
    of_load = line["protocol"] == "tcp" and pd.isna(line["rate_bps"])
    return bool(of_load and line["length_bytes"] == THESIS_DROP_BYTES and line["mirrors"] == 1)


def cycles_per_instruction(profiles: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the cycles per instruction of ovs-vswitchd for each load and arm, and why some are missing ("" if none).

    The table has the mean over rounds with its 95 % interval. `profiles`: the rows of runs beside observers
    (`load.profiles`); those of perf_stat count that count the switch alone.
    """
    of_each: dict[tuple[load.Key, str], list[float]] = {}
    reasons: dict[str, None] = {}
    some = profiles[profiles["observer"].eq("perf_stat") & profiles["status"].eq("ok")]
    for line in some.to_dict("records"):
        report = observed(line["observed"])
        if not str(report.get("scope", "")).startswith("processes"):
            continue
        events = [report["events"].get(name) or {"reason": f"{name} were not requested"} for name in CYCLES]
        cycles, instructions = (one.get("count") for one in events)
        if cycles is None or not instructions:
            reasons |= {one["reason"]: None for one in events if one["reason"]}
            continue
        key = load.key_of(line)
        of_each.setdefault((key, str(line["topology"])), []).append(cycles / instructions)
    labels = load_labels([key for key, _ in of_each])
    table = pd.DataFrame(
        [(labels[key], name, with_interval(mean(values), ".2f")) for (key, name), values in of_each.items()],
        columns=["load", "switch", "cycles per instruction"],
    )
    if reasons:
        return table, f"Cycles and instructions of ovs-vswitchd were not counted: {'; '.join(reasons)}."
    return table, "" if of_each else NO_CYCLES


def uplink(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what happened to a flow and to its copies when the mirror leaves the host, by arm and offered rate.

    Values are means of the rounds. `delivered_bps` is the throughput of the monitored flow at its receiver.
    `copies_made` is the rate of copies that the mirror should make, and `copies_arrived` the rate that reached the
    monitor, both per second; `arrived_share` is their ratio. `link_lost_share` is the share of the copies that the link
    lost, and `other_lost_share` what was lost elsewhere: before the link, or too large for it. `link_rate_bps` is the
    rate of the link between two lab VMs.

    Arms without a mirror are included; the difference from them is the mirror's effect on the flow. Empty without
    tunnels.
    """
    paced = rows[rows["status"].eq("ok") & rows["rate_bps"].notna() & rows["window_s"].gt(0)]
    if not paced["output"].isin(TUNNELS).any():
        return pd.DataFrame()
    result = paced.assign(
        offered_bps=paced["rate_bps"] * paced["streams"] * paced["pairs"],
        copies_made=paced["copies_expected_count"] / paced["window_s"],
        copies_arrived=paced["copies_count"] / paced["window_s"],
        copies_dropped=paced["copies_dropped_count"] / paced["window_s"],
    )
    by = ["topology", "output", "uplink_bps", "link_rate_bps", "protocol", "length_bytes", "offered_bps"]
    by += [name for name in load.varying(paced, load.GROUP) if name not in (*by, "rate_bps")]
    table = result.groupby(by, dropna=False, sort=False)[
        ["throughput_bps", "copies_made", "copies_arrived", "copies_dropped"]
    ].mean()
    table = table.reset_index().rename(columns={"throughput_bps": "delivered_bps"})
    table["arrived_share"] = table["copies_arrived"] / table["copies_made"]
    # The queue may count more drops than copies are lost (1.3 times here): the userspace datapath offers a packet again
    # that the queue refused in the middle of a batch (docs/method/virtual_tap.md).
    lost = table["copies_made"] - table["copies_arrived"]
    table["link_lost_share"] = table.pop("copies_dropped").clip(upper=lost) / table["copies_made"]
    lost = 1 - table["arrived_share"] - table["link_lost_share"].fillna(0)
    table["other_lost_share"] = lost.clip(lower=0)
    return table.sort_values(["topology", "link_rate_bps", "offered_bps"], ignore_index=True)


def _share(ratio: float) -> str:
    return "an unknown part" if math.isnan(ratio) else units.percent(ratio)


def findings(rows: pd.DataFrame, _profiles: pd.DataFrame) -> list[str]:
    """Return all findings, for the terminal."""
    return [*tax_sentences(mirror_tax.taxes(rows)), *copies(rows)]


def _mirror_count(rows: pd.DataFrame, compared: pd.DataFrame) -> go.Figure:
    return figure.mirror_count(rows, against_none(rows, compared), reference_tables.thesis_count())


FIGURES = {
    "mirror_tax": of_part("cost", lambda rows: figure.mirror_tax(rows, mirror_tax.taxes(rows))),
    "mirror_count": of_part("cost", lambda rows: _mirror_count(rows, verdicts.verdicts(rows))),
    "uplink": of_part(
        "cost", lambda rows: figure.uplink(rows, uplink(rows), reference_tables.thesis_uplink())
    ),
}
