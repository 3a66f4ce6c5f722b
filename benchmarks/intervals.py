"""Count how often the intervals of a few rounds are wrong, in a long series of rounds of one comparison.

The series is cut into groups of consecutive rounds, each of which is what a quick run (5 rounds) or a normal one (10)
would have measured. Two errors are counted, by the code that computes labkit's verdicts: an A/A alarm (the interval of
the baseline against itself excludes 1), and an interval of macvlan_bridge against veth_bridge that does not contain
the ratio of the whole series. Of round trips, each percentile of PERCENTILES is compared. Chance moves such counts, so
a promise is broken only if its count would be unlikely (below 5 %, one-sided binomial test) for a method that just
keeps the promise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import bdtr, bdtrc

from benchmarks.promise import LABKIT, NotMeasuredError, Promise, median, note, output
from labkit.analysis import load, stats, verdicts
from labkit.common.errors import BadInput

ROUNDS, QUICK_ROUNDS, SLICES = 252, 20, 4
ARMS = ("topology=veth_bridge,macvlan_bridge", "half_width=0")
FLOWS = ("pairs=1,8", f"slices={SLICES}", "whole_runs=0")
REQUESTS = ("generator=sockets", "duration_s=1", "omit_s=0")
PARAMETERS = {"tcp": FLOWS, "udp": FLOWS, "udp_rr": REQUESTS}
PERCENTILES = ("p90", "p99")
FEW = (5, 10)  # rounds of a quick and of a normal run
ALARMS, COVERED = 0.05, 0.93
UNLIKELY = 0.05
DRAWS = 400  # groups of rounds drawn at random, in which neighbours are not alike


@dataclass(frozen=True)
class Count:
    """How many of several groups of rounds have a property, and the median half-width of their intervals."""

    hits: int
    groups: int
    half_width: float

    def __add__(self, other: Count) -> Count:
        return Count(self.hits + other.hits, self.groups + other.groups, np.nan)

    def __str__(self) -> str:
        return f"{self.hits} of {self.groups}"

    @property
    def share(self) -> float:
        """Return the share of groups with the property."""
        return self.hits / self.groups

    def is_at_most(self, share: float) -> bool:
        """Return whether chance alone may give so many if each group has the property with probability `share`."""
        return bool(bdtrc(self.hits - 1, self.groups, share) >= UNLIKELY) if self.hits else True

    def is_at_least(self, share: float) -> bool:
        """Return whether chance alone may give so few if each group has the property with probability `share`."""
        return bool(bdtr(self.hits, self.groups, share) >= UNLIKELY)


def promises(quick: bool, folder: Path | None = None) -> Iterator[Promise]:
    """Yield the alarms and the coverage of a new series (an hour; a tenth of that with --quick), or those of the
    run in `folder`, or of all runs in it."""
    if folder is not None:
        yield from evaluated(folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        rounds = QUICK_ROUNDS if quick else ROUNDS
        for protocol, own in PARAMETERS.items():
            note(f"{rounds} rounds of {protocol}")
            words = [*ARMS, *own, f"protocol={protocol}", f"rounds={rounds}", "--json"]
            output([*LABKIT, "run", "datapaths", *words, "--folder", str(Path(scratch) / protocol)])
        yield from evaluated(Path(scratch))


def evaluated(folder: Path) -> Iterator[Promise]:
    """Yield the alarms and the coverage of a run, or of all runs in a folder.

    Raises NotMeasuredError if none has enough rounds.
    """
    runs = sorted(path.parent for path in folder.glob("*/run.json")) or [folder]
    try:
        every = dict(one for run in runs for one in series(load.load(run)))
    except BadInput as error:
        raise NotMeasuredError(str(error)) from None
    if not every:
        raise NotMeasuredError(f"{folder} has no comparison in {FEW[0]} rounds")
    for rounds in FEW:
        alarms, covered = [], []
        for name, ratios in every.items():
            if not groups(ratios, rounds):
                continue
            alarms.append(false_alarms(ratios, rounds))
            covered.append(coverage(ratios, rounds))
            drawn = coverage(ratios, rounds, np.random.default_rng(rounds))
            yield Promise(
                f"{rounds} rounds contain the long-run ratio, {name}", str(covered[-1]), "", covered[-1].share,
                f">= {COVERED:.0%}", covered[-1].is_at_least(COVERED),
                f"half-width ±{covered[-1].half_width:.1%} (median); rounds drawn at random: {drawn.share:.1%};"
                f" A/A alarms {alarms[-1]}, half-width ±{alarms[-1].half_width:.1%};"
                f" all {ratios['round'].nunique()} rounds: {long_run(ratios)}",
            )  # fmt: skip
        if alarms:
            total, contained = sum(alarms[1:], alarms[0]), sum(covered[1:], covered[0])
            yield Promise(
                f"{rounds} rounds contain the long-run ratio, all loads",
                str(contained), "", contained.share, f">= {COVERED:.0%}", contained.is_at_least(COVERED),
            )  # fmt: skip
            yield Promise(
                f"A/A alarms of {rounds} rounds, all loads",
                str(total), "", total.share, f"<= {ALARMS:.0%}", total.is_at_most(ALARMS),
            )  # fmt: skip


def series(df: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the ratios of every comparison that has at least FEW[0] rounds: of slices, if it has any."""
    df = load.complete(df)
    timed = load.timed(df)
    parts = [("", df[~timed]), *((f", {name}", df[timed]) for name in PERCENTILES)]
    for suffix, rows in parts:
        chosen = load.at_percentile(rows, suffix[2:]) if suffix and len(rows) else rows
        for key, group in load.groups(verdicts.ratios(chosen)) if len(rows) else ():
            both = group[group["log_ratio"].notna() & group["log_control"].notna()]
            used = both[both["method"].eq("slice" if both["method"].eq("slice").any() else "whole")]
            for topology, mine in used.groupby("topology", sort=False):
                if mine["setup"].nunique() >= FEW[0]:
                    yield f"{topology}, {load.group_text(key)}{suffix}", mine


def groups(ratios: pd.DataFrame, rounds: int) -> list[pd.DataFrame]:
    """Return the ratios of each group of consecutive rounds; rounds that are left over belong to none."""
    order = sorted(ratios["round"].unique())
    starts = range(0, len(order) - rounds + 1, rounds)
    return [ratios[ratios["round"].isin(order[start : start + rounds])] for start in starts]


def false_alarms(ratios: pd.DataFrame, rounds: int) -> Count:
    """Count the groups in which the baseline differs from itself (95 %)."""
    some = [effect(one, "log_control") for one in groups(ratios, rounds)]
    return _counted(some, lambda one: not contains(one, 1))


def coverage(ratios: pd.DataFrame, rounds: int, rng: np.random.Generator | None = None) -> Count:
    """Count the groups whose interval contains the ratio of all rounds.

    With `rng` the groups are rounds drawn at random.
    """
    whole = effect(ratios, "log_ratio")
    assert whole is not None
    if rng is None:
        some = [effect(one, "log_ratio") for one in groups(ratios, rounds)]
    else:
        of_round = [one for _, one in ratios.groupby("round")]
        drawn = (rng.choice(len(of_round), rounds, replace=False) for _ in range(DRAWS))
        some = [effect(pd.concat([of_round[at] for at in places]), "log_ratio") for places in drawn]
    return _counted(some, lambda one: contains(one, whole.ratio))


def effect(ratios: pd.DataFrame, column: str) -> stats.Effect | None:
    """Return the effect in ratios of `series`, which are all of slices or all of whole runs."""
    return verdicts.column_effect(ratios, column, slices=bool(ratios["method"].eq("slice").all()))


def contains(one: stats.Effect, ratio: float) -> bool:
    """Return whether the interval contains this ratio; without an interval it contains every ratio."""
    return one.low is None or one.high is None or one.low <= ratio <= one.high


def _counted(some: Sequence[stats.Effect | None], is_hit: Callable[[stats.Effect], bool]) -> Count:
    every = [one for one in some if one is not None]
    return Count(sum(map(is_hit, every)), len(every), median(map(stats.half_width, every)))


def long_run(ratios: pd.DataFrame) -> str:
    """Return the ratio of the whole series with its interval."""
    whole = effect(ratios, "log_ratio")
    assert whole is not None
    return stats.ratio_text(whole.ratio, whole.low, whole.high)
