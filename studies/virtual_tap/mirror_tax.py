"""Model the cost of mirroring: `cost of a packet = fixed + copy * copies`, for each switch, load and kind of reader.

Copies are the counted ones, not the requested ones. Every round is fitted separately (`linear_fit`). A test of lack of
fit tells whether the points lie on a line.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import load
from labkit.analysis.load import GROUP, Key
from labkit.common import switch_options, units
from labkit.common.units import counted
from studies import linear_fit
from studies.linear_fit import Estimate, Fit, Floats

MIN_ARMS = 3  # numbers of mirrors that a fit needs: a line through two points always fits
FEW_PACKETS = 100  # per round and arm; with fewer packets the cost is too noisy
COSTS = {
    "switch_per_packet_s": "CPU time of ovs-vswitchd for a packet that the switch forwards",
    "cpu_per_packet_s": "CPU time of the whole machine for a packet that the switch forwards",
}
# Whose CPU time a cost is.
CPU_TIME_OF = {"switch_per_packet_s": "ovs-vswitchd", "cpu_per_packet_s": "whole machine"}
# Datapaths whose CPU time is not a cost of packets: ovs-vswitchd beside the kernel's, and DPDK, which polls
WITHOUT_COST = {"switch_per_packet_s": ("system", "dpdk"), "cpu_per_packet_s": ("dpdk",)}


def switches(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the switch of each topology that has one, with the topologies as index.

    Columns: datapath, mirrors, switch (without options), curve (with its options, but without the number of mirrors:
    `ovs_netdev+readers=count`), and plain (the same without all options of mirrors). The names of a changed arm end
    with its change, and those of an arm with other ends with their kind.
    """
    some = rows[rows["datapath"].notna()].drop_duplicates("topology").set_index("topology")
    of = [switch_options.of_row(row) for row in some[list(switch_options.NO_SWITCH)].to_dict("records")]
    more = [str(name).removeprefix(built) for name, built in some["built_topology"].items()]
    return some[["datapath"]].assign(
        mirrors=[one.mirrors for one in of],
        switch=[one.topology + own for one, own in zip(of, more, strict=True)],
        curve=[replace(one, mirrors=0).name + own for one, own in zip(of, more, strict=True)],
        plain=[one.without_mirrors.name + own for one, own in zip(of, more, strict=True)],
    )


@dataclass(frozen=True)
class Tax:
    """The cost of a packet as a function of its copies, for one load.

    `copies` has the mean copies per packet of each arm. `values` is rounds x arms, in seconds. `fixed` and `copy` are
    None if there is no fit; `why` is the reason.
    """

    key: Key
    curve: str
    cost: str
    arms: list[str]
    copies: Floats
    values: Floats
    left_out: list[str]
    why: str = ""
    fixed: Estimate | None = None
    copy: Estimate | None = None
    line: Fit | None = None
    of: dict[str, Any] = field(default_factory=dict)

    @property
    def means(self) -> list[Estimate]:
        """Return the mean cost over rounds for each number of mirrors."""
        return [linear_fit.mean(one) for one in self.values.T] if self.values.size else []


def per_round(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each topology and round.

    Columns: GROUP, topology, those of `switches`, setup, packets_count, copies_ratio (copies per packet), and those
    of COSTS. Both measurements of the baseline are pooled.
    """
    ok = _with_switch(rows)
    ok = ok.assign(setup=ok["folder"] + ":" + ok["round"].astype(str))
    sums = ["switched_count", "switch_cpu_s", "cpu_s", "copies_count"]
    result = ok.groupby([*GROUP, "topology", "setup"], dropna=False, sort=False)[sums].sum().reset_index()
    packets = result["switched_count"].where(result["switched_count"] > 0)
    result = result.join(switches(rows), "topology").assign(
        packets_count=result["switched_count"],
        copies_ratio=result["copies_count"] / packets,
        switch_per_packet_s=result["switch_cpu_s"] / packets,
        cpu_per_packet_s=result["cpu_s"] / packets,
    )
    for cost, without in WITHOUT_COST.items():
        result[cost] = result[cost].mask(result["datapath"].isin(without))
    return result


def _with_switch(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the measured rows of arms with a switch."""
    return rows[
        rows["status"].eq("ok") & rows["switched_count"].notna() & rows["method"].isin(["slice", "whole"])
    ]


def taxes(rows: pd.DataFrame) -> list[Tax]:
    """Return a Tax for each load, cost and switch with its options, if there are several numbers of mirrors."""
    result = []
    for key, group in load.groups(per_round(rows), GROUP):
        plain = group[group["mirrors"].eq(0)]
        for curve, some in group[group["mirrors"].gt(0)].groupby("curve", sort=False):
            base = plain[plain["curve"].eq(some["plain"].iloc[0])]
            base = plain[plain["curve"].eq(some["switch"].iloc[0])] if base.empty else base
            base_runs, curve_runs = (one["setup"].str.rsplit(":", n=1).str[0] for one in (base, some))
            table = pd.concat([base[base_runs.isin(curve_runs)], some])
            if some["mirrors"].nunique() > 1:
                result += [_tax(key, str(curve), cost, table) for cost in COSTS if table[cost].notna().any()]
    return result


def _tax(key: Key, curve: str, cost: str, table: pd.DataFrame) -> Tax:
    enough = table[table["packets_count"].ge(FEW_PACKETS)]
    wide = enough.pivot_table(index="setup", columns="mirrors", values=cost)
    wide = wide.reindex(columns=sorted(table["mirrors"].unique()))
    all_count, whole = table["setup"].nunique(), wide.dropna()
    left_out = []
    if len(whole) < all_count:
        lines = f"{all_count - len(whole)} of {counted(all_count, 'round')} left out"
        left_out.append(f"{lines}: an arm has fewer than {FEW_PACKETS} packets, or none measured")
    copies = enough[enough["setup"].isin(whole.index)].groupby("mirrors")["copies_ratio"].mean()
    arms, of = [f"{mirrors:g}" for mirrors in wide.columns], dict(zip(GROUP, key, strict=True))
    counted_copies = copies.reindex(wide.columns).to_numpy(float)
    return _fit(Tax(key, curve, cost, arms, counted_copies, whole.to_numpy(float), left_out, of=of))


def _fit(tax: Tax) -> Tax:
    if not len(tax.values):
        return replace(tax, why="no round has all numbers of mirrors")
    if len(tax.arms) < MIN_ARMS:
        return replace(tax, why=f"a line needs {MIN_ARMS} numbers of mirrors, and there are {len(tax.arms)}")
    line = linear_fit.fit(np.column_stack([np.ones_like(tax.copies), tax.copies]), tax.values)
    fixed, copy = (linear_fit.mean(one) for one in line.coefficients.T)
    return replace(tax, fixed=fixed, copy=copy, line=line)


@dataclass(frozen=True)
class CopyCounts:
    """What became of the copies of an arm under one load.

    `made` are ratios of made to expected copies, and `unread` shares of made copies that no reader received: first of
    all mirrors together, then of each if they are known.
    """

    key: Key
    topology: str
    made: list[float]
    unread: list[float]


def copy_counts(rows: pd.DataFrame) -> list[CopyCounts]:
    """Return made and unread copies for each arm with mirrors, in all and for each mirror."""
    measured = _with_switch(rows)
    measured = measured[measured["mirrors"].gt(0)]
    result = []
    for key, group in load.groups(measured, GROUP):
        for topology, some in group.groupby("topology", sort=False):
            expected, copies = some["copies_expected_count"].sum(), some["copies_count"].sum()
            unread, mirrors = some["copies_unread_count"].sum(), int(some["mirrors"].iloc[0])
            each, lost = (_sums(some, name, mirrors) for name in ("copies_of_mirrors", "unread_of_mirrors"))
            made = [_ratio(copies, expected), *(_ratio(one, expected / mirrors) for one in each)]
            missed = [_ratio(unread, copies), *map(_ratio, lost, each)]
            result.append(CopyCounts(key, str(topology), made, missed))
    return result


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _sums(rows: pd.DataFrame, column: str, count: int) -> list[float]:
    """Return the sum of each element of a column of lists with `count` elements; [] if a row lacks it."""
    lists = list(rows[column]) if column in rows else [None]
    if not all(isinstance(one, list) and len(one) == count for one in lists):
        return []
    return [float(sum(of_one)) for of_one in zip(*lists, strict=True)]


def load_words(of: Mapping[str, Any]) -> list[str]:
    """Return the protocol, the length and the rate of a load in words."""
    words = [str(of["protocol"])]
    words += [f"{of['length_bytes']:.0f} bytes"] if pd.notna(of["length_bytes"]) else []
    return words + ([f"{units.si(of['rate_bps'], 'bit/s')} offered"] if pd.notna(of["rate_bps"]) else [])
