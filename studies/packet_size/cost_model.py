"""Model the cost of a datagram as a function of its size.

Datagrams that fit the MTU cost `fixed + byte * size`. Fragmented datagrams cost `first + fragment * (fragments - 1)`,
where the cost of a fragment includes that of its bytes.

There are two fits for two reasons. A single line would attribute the steps to the bytes. Beyond the MTU, bytes and
fragments grow together, so that no measurement separates them. Every round is fitted separately (`linear_fit`), so that
arms can be compared round by round.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from labkit.analysis import load
from labkit.analysis.figures.cost_by_size import fragments_count
from labkit.analysis.load import Key
from labkit.common.units import counted
from studies import linear_fit
from studies.function_time_claim import BY
from studies.linear_fit import Estimate, Fit, Floats

PARTS = ("fixed", "byte", "first", "fragment")  # the parts of a cost, in the order of `Curve.coefficients`
MIN_STEPS = 2  # different numbers of fragments that a fit needs
MIN_SIZES = 3  # a line through two points always fits
LOST = 0.01  # share of the sent datagrams
SAME = 0.1  # two costs are proportional if their quotients at all points differ by no more (the kernel counts 10 ms)
# Costs of a datagram: columns of `per_round` with their names
COSTS = {
    "cpu_per_packet_s": "CPU time of a datagram received, whole machine",
    "time_per_packet_s": "time from one datagram received to the next",
    "rtt_s": "round-trip time p50",
}
OF = {"udp": ("cpu_per_packet_s", "time_per_packet_s"), "ping": ("rtt_s",)}


def per_round(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each point (BY), arm, size and round.

    Columns: those of COSTS (NaN if not measured), `fragments_count` (per datagram, computed), `seen_fragments_ratio`
    (fragments per datagram as counted by the senders' IP), `lost_ratio` (of the sent datagrams), `packets_count`,
    `window_s`, `cpu_s`.

    The values are from slices if there are any, else from whole runs. A round's cost is the sum of its CPU-seconds
    divided by the sum of its datagrams, because one slice has too few clock ticks for a ratio.
    """
    rows = load.complete(rows)
    ok = rows[rows["status"].eq("ok") & rows["protocol"].isin(list(OF)) & rows["length_bytes"].notna()]
    slices = ok["method"].eq("slice")
    ok = ok[slices | ~slices.groupby(ok["folder"]).transform("any")]
    sent = ok["sent_count"].where(ok["protocol"].eq("udp"))
    ok = ok.assign(
        packets_count=(ok["received_bytes"] / ok["length_bytes"]).where(ok["protocol"].eq("udp")),
        sent=sent,
        # iperf3 counts sent datagrams over its own period, so received datagrams must be from the same period
        of_sent=ok["reported_received_count"].fillna(ok["received_count"]).where(sent.notna()),
        cut_count=ok["fragments_count"].where(sent.gt(0)),
        rtt_s=ok["latency_p50_s"].where(ok["protocol"].eq("ping")),
    )
    keys = [*BY, "arm", "role", "topology", "length_bytes", "folder", "round"]
    grouped = ok.groupby(keys, dropna=False, sort=True)
    # min_count: the sum of no values is NaN, not 0.
    result = grouped[["packets_count", "window_s", "cpu_s", "sent", "of_sent", "cut_count"]].sum(min_count=1)
    result = result.assign(rtt_s=grouped["rtt_s"].mean()).reset_index()
    count = result["packets_count"].where(result["packets_count"] > 0)
    sent = result["sent"].where(result["sent"] > 0)
    result["cpu_per_packet_s"] = result["cpu_s"] / count
    result["time_per_packet_s"] = result["window_s"] / count
    result["lost_ratio"] = (1 - result["of_sent"] / sent).clip(lower=0)
    # IP counts no fragments for a datagram that is sent whole, hence the lower limit of 1.
    result["seen_fragments_ratio"] = (result["cut_count"] / sent).clip(lower=1)
    sizes = (result[name] for name in ("length_bytes", "mtu_bytes", "family"))
    result["fragments_count"] = list(map(fragments_count, *sizes))
    return result.drop(columns=["sent", "of_sent", "cut_count"])


@dataclass(frozen=True)
class Curve:
    """One cost of one arm as a function of size.

    `why` is the reason for a missing fit, else "".

    `lengths` and `fragments` have one element per size. `values` and `residuals` (relative to the mean of the size; NaN
    without a fit) are rounds x sizes. `setups` names the rounds; `coefficients` is rounds x PARTS.
    """

    key: Key
    arm: str
    role: str
    cost: str
    lengths: Floats
    fragments: Floats
    values: Floats
    setups: list[str]
    left_out: list[str]  # what was excluded from the fit, with the reason
    why: str = ""
    coefficients: Floats = field(default_factory=lambda: np.empty((0, 0)))
    residuals: Floats = field(default_factory=lambda: np.empty((0, 0)))
    line: Fit | None = None  # unfragmented datagrams
    steps: Fit | None = None  # fragmented datagrams

    @property
    def group(self) -> dict[str, object]:
        """Return the columns of BY with their values."""
        return dict(zip(BY, self.key, strict=True))

    @functools.cached_property
    def parts(self) -> dict[str, Estimate]:
        """Return the estimates of PARTS in seconds: `fixed` and `byte` for unfragmented datagrams, `first` and
        `fragment` (for each fragment after the first) for fragmented ones. Those without a fit are missing."""
        return dict(zip(PARTS, map(linear_fit.mean, self.coefficients.T), strict=False))

    def at(self, lengths: Floats, fragments: Floats) -> Floats:
        """Return the cost in seconds that the fit predicts for other sizes; NaN where there is no fit."""
        values = {name: one.value for name, one in self.parts.items()}
        fixed, byte, first, fragment = (values.get(name, math.nan) for name in PARTS)
        return np.where(fragments > 1, first + fragment * (fragments - 1), fixed + byte * lengths)


def curves(rows: pd.DataFrame) -> list[Curve]:
    """Return a curve for each point, cost and arm, ordered as baseline, variants, control."""
    order = {"baseline": 0, "variant": 1, "control": 2}
    result = []
    for key, group in load.groups(per_round(rows), BY):
        for cost in OF[str(group["protocol"].iloc[0])]:
            measured = group[group.groupby("arm")[cost].transform("count").gt(0)]
            arms = dict(tuple(measured.groupby("arm", sort=False)))
            ordered = sorted(arms.items(), key=lambda one: order.get(one[1]["role"].iloc[0], 1))
            result += [_curve(key, cost, str(arm), own) for arm, own in ordered]
    return result


def proportional(curves: Sequence[Curve]) -> dict[Key, float]:
    """Return for each point whose two costs are proportional the quotient of CPU time and time between datagrams.

    It is the number of busy CPUs. If it is the same at every size and arm, for example because all CPUs are busy, then
    the second cost has no information that the first one lacks.
    """
    quotients: dict[Key, list[float]] = {}
    by = {(one.key, one.arm, one.cost): one for one in curves}
    for (key, arm, cost), curve in by.items():
        other = by.get((key, arm, OF["udp"][1]))
        if cost != OF["udp"][0] or other is None or not curve.values.size or not other.values.size:
            continue
        times = dict(zip(other.lengths, other.values.mean(axis=0), strict=True))
        means = zip(curve.lengths, curve.values.mean(axis=0), strict=True)
        quotients.setdefault(key, []).extend(mean / times.get(length, math.nan) for length, mean in means)
    return {
        key: sum(each) / len(each) for key, each in quotients.items() if max(each) <= (1 + SAME) * min(each)
    }


def without_proportional_time(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves without the time between datagrams of the points where it is proportional to CPU time."""
    same = proportional(curves)
    return [one for one in curves if one.key not in same or one.cost != OF["udp"][1]]


def _curve(key: Key, cost: str, arm: str, rows: pd.DataFrame) -> Curve:
    rows = rows.assign(setup=rows["folder"] + ":" + rows["round"].astype(str))
    wide, left_out = _whole(
        rows.pivot_table(index="setup", columns="length_bytes", values=cost, dropna=False), rows
    )
    lengths = wide.columns.to_numpy(float)
    fragments = rows.groupby("length_bytes")["fragments_count"].first()[wide.columns].to_numpy(float)
    role, values = str(rows["role"].iloc[0]), wide.to_numpy(float)
    return _fit(Curve(key, arm, role, cost, lengths, fragments, values, list(wide.index), left_out))


def _whole(wide: pd.DataFrame, rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Remove incomplete measurements, so that every round is fitted through the same sizes.

    First sizes that were measured in less than half of the rounds are removed, then rounds that lack one of the other
    sizes. Returns the table and sentences about what was removed, with the reasons.
    """
    often = wide.notna().mean() >= 0.5
    kept = wide.loc[:, often]
    known, all_count = kept.notna().all(axis="columns"), counted(len(wide), "round")
    lines = [
        f"{size:.0f} bytes left out: measured in {wide[size].notna().sum()} of {all_count} only"
        for size in wide.columns[~often]
    ]
    if not known.all():
        of_it = rows[rows["setup"].isin(wide.index[~known]) & rows["packets_count"].eq(0)]
        nothing = sorted({f"{size:.0f}" for size in of_it["length_bytes"] if size in kept}, key=float)
        lacking = [f"{size:.0f}" for size in kept.columns[kept.isna().any()] if f"{size:.0f}" not in nothing]
        reasons = [f"nothing arrived of {', '.join(nothing)} bytes"] * bool(nothing)
        reasons += [f"{', '.join(lacking)} bytes were not measured"] * bool(lacking)
        lines.append(f"{(~known).sum()} of {all_count} left out: {', and '.join(reasons)}")
    return kept[known], lines


def _fit(curve: Curve) -> Curve:
    whole = curve.fragments == 1
    if not len(curve.values):
        return replace(curve, why="no round has all sizes")
    if whole.sum() < MIN_SIZES:
        return replace(
            curve, why=f"a line needs {MIN_SIZES} sizes that fit the MTU, and there are {whole.sum()}"
        )
    fits = [_line(curve, whole, curve.lengths)]
    if len(set(curve.fragments[~whole])) >= MIN_STEPS:
        fits.append(_line(curve, ~whole, curve.fragments - 1))
    residuals = np.full_like(curve.values, np.nan)
    for which, fit in zip((whole, ~whole), fits, strict=False):
        residuals[:, which] = fit.residuals
    coefficients = np.column_stack([fit.coefficients for fit in fits])
    line, steps = [*fits, None][:2]
    return replace(curve, coefficients=coefficients, residuals=residuals, line=line, steps=steps)


def _line(curve: Curve, which: npt.NDArray[np.bool_], along: Floats) -> Fit:
    """Fit a line through the selected sizes, with `along` as regressor."""
    return linear_fit.fit(np.column_stack([np.ones_like(along), along])[which], curve.values[:, which])
