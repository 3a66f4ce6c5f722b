"""Doubts about the condition of the machines: steal time, CPU quotas, emulated CPUs, and other programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from labkit.analysis import stats
from labkit.analysis.load import emulated, hosts
from labkit.common import run_folder, units
from labkit.common.errors import BadInput

STOLEN_SHARE = 0.01
# Of all CPU time. Above it, other programs are a doubt, and may differ between two sides.
FOREIGN_SHARE = 0.02
FOREIGN_CONFIDENCE = stats.CONTROL_CONFIDENCE  # of Welch's interval over rounds, when two sides are compared
# A flow whose two ends must wait for each other loses more than its share of the CPUs, but not arbitrarily much.
SLOWDOWN_LIMIT = 3.0
# The columns that `taken_shares` needs
TAKEN = ["folder", "round", "throttled_share", "steal_s", "window_s", "cpus_count", "host_foreign_share"]
BUSY_CPUS = 0.5  # an idle machine stays below this


def host_doubts(ok: pd.DataFrame) -> list[tuple[float, str]]:
    """Return the doubts about the rows of one host, as `load.measured_rows` returns them, with the share of the CPU
    time or of the rows that each is about."""
    lines: list[tuple[float, str]] = []
    if (share := _stolen_share(ok)) >= STOLEN_SHARE:
        most = float((ok["steal_s"] / (ok["window_s"] * ok["cpus_count"])).max())
        text = f"steal: the hypervisor took {units.percent(share)} of all CPU time"
        lines.append((share, f"{text}, up to {units.percent(most)}"))
    by_round = foreign_shares(ok)
    if len(by_round) and (share := float(by_round.mean())) > FOREIGN_SHARE:
        text = (
            f"{other_processes(other_programs(ok['folder']), share)} took {units.percent(share)} of all CPU time, up to"
            f" {units.percent(float(by_round.max()))} in a round"
        )
        lines.append((share, text))
    if (share := float(ok["throttled_share"].max())) > STOLEN_SHARE:
        count = int(ok["throttled_share"].gt(STOLEN_SHARE).sum())
        text = (
            f"a CPU quota (cgroup) stopped the run in {count} of {units.counted(len(ok), 'row')}, for up to"
            f" {units.percent(share)} of the time: the quota was measured, too"
        )
        lines.append((count / len(ok), text))
    if count := int(emulated(ok).sum()):
        text = f"emulated CPU (TCG) in {count} of {units.counted(len(ok), 'row')}: ratios on a real CPU may differ"
        lines.append((count / len(ok), text))
    return lines


def foreign_shares(ok: pd.DataFrame) -> pd.Series[float]:
    """Return the share of all CPU time that other programs took in each round."""
    known = ok[ok["host_foreign_share"].notna()]
    return known.groupby(["folder", "round"], dropna=False)["host_foreign_share"].mean().astype(float)


def _stolen_share(ok: pd.DataFrame) -> float:
    """Return the share of all CPU time that the hypervisor took, or NaN if no row has it."""
    capacity_s = float((ok["window_s"] * ok["cpus_count"]).where(ok["steal_s"].notna()).sum())
    return float(ok["steal_s"].sum()) / capacity_s if capacity_s > 0 else math.nan


def taken_shares(
    left: pd.DataFrame, right: pd.DataFrame, names: tuple[str, str], runs: Sequence[pd.DataFrame] = ()
) -> Iterator[tuple[tuple[float, float], str]]:
    """Yield what took more time from one of two runs at a point than from the other: both shares, and a sentence with
    the names of the runs.

    It is a CPU quota, the hypervisor, or other programs. Shares of other programs must differ certainly, by rounds of
    the point or else of both `runs`.
    """

    def taken(shares: tuple[float, float], who: str, of: str) -> tuple[tuple[float, float], str]:
        one, other = map(units.percent, shares)
        return shares, f"{who} {one} of {of} in {names[0]} and {other} in {names[1]}"

    both = (left, right)
    quota = [float(ok["throttled_share"].mean()) for ok in both]
    steal = [_stolen_share(ok) for ok in both]
    for shares, who, of in (
        (quota, "a CPU quota stopped the load for", "the time"),
        (steal, "the hypervisor took", "all CPU time"),
    ):
        if abs(shares[1] - shares[0]) >= STOLEN_SHARE:
            yield taken((shares[0], shares[1]), who, of)
    for rows in filter(None, (both, runs)):
        one, other = (list(foreign_shares(ok)) for ok in rows)
        if not one or not other:
            continue
        # `difference` takes logarithms and returns a ratio; shares differ by their difference.
        effect = stats.difference(one, other)
        foreign = sum(one) / len(one), sum(other) / len(other)
        is_certain = effect.wide_low is not None and not effect.wide_low <= 1 <= (effect.wide_high or 1)
        if is_certain and abs(foreign[1] - foreign[0]) >= FOREIGN_SHARE:
            programs = other_programs(both[int(foreign[1] > foreign[0])]["folder"])
            yield taken(foreign, f"{other_processes(programs, max(foreign))} had", "all CPU time")
            return


def greatest_slowdown(left: float, right: float) -> float:
    """Return the greatest logarithm of a ratio of speeds that these shares of all CPUs can explain.

    A side loses at most SLOWDOWN_LIMIT times its share, and is at most SLOWDOWN_LIMIT times slower than in proportion.
    """
    kept = max((1 - max(left, right)) / max(1 - min(left, right), 0.01), 0.01)
    lost = SLOWDOWN_LIMIT * (1 - kept)
    return min(math.log(SLOWDOWN_LIMIT / kept), -math.log(1 - lost) if lost < 1 else math.inf)


def other_programs(folders: Iterable[object]) -> dict[str, float]:
    """Return the programs outside the experiment that took most CPU time, with their largest shares of all CPUs, as
    the runs recorded them, the busiest first."""
    result: dict[str, float] = {}
    for folder in dict.fromkeys(str(one) for one in folders if isinstance(one, str | Path)):
        try:
            report = run_folder.read_begun(Path(folder)).get("others")
        except BadInput:
            continue
        for one in report or ():
            result[one["name"]] = max(result.get(one["name"], 0.0), float(one["cpu_share"]))
    return dict(sorted(result.items(), key=lambda one: -one[1]))


def other_processes(programs: Mapping[str, float], share: float) -> str:
    """Return `other processes`, with the names of those that had at least half of this share of the CPUs.

    A program with a small share did not do it; who did may have ended before labkit saw it.
    """
    names = [name for name, own in programs.items() if own >= share / 2]
    return f"other processes ({', '.join(names[:2])})" if names else "other processes"


def busy(df: pd.DataFrame) -> list[str]:
    """Return a doubt for each machine that was busy before its first run.

    Later runs do not count, because the kernel may still clean up after the run before. Lab VMs do not count, because
    they run nothing but the experiment.
    """
    is_known = df["busy_before_share"].notna() & df["cpus_count"].notna() & df["time"].notna()
    if not is_known.any():
        return []
    known = df.loc[is_known, ["busy_before_share", "cpus_count", "time", "machine", "where"]]
    first = known.sort_values("time", kind="stable").groupby("machine", dropna=False, sort=False).head(1)
    all_hosts = hosts(df)
    several = all_hosts if len(all_hosts) > 1 else []
    names = {index: f"{name}: " for name, rows in several for index in rows.index}
    first = first.assign(cpus=first["busy_before_share"] * first["cpus_count"])
    return [
        f"{names.get(index, '')}a busy machine: in the half second before the first run {row['cpus']:.1f} of its"
        f" {units.counted(int(row['cpus_count']), 'CPU')} were busy; the CPU time of background processes is included"
        for index, row in first.iterrows()
        if row["cpus"] > BUSY_CPUS and not str(row["where"]).startswith("vm:")
    ]
