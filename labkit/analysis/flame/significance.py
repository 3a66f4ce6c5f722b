"""Test which differences between two sides exceed the spread between rounds: one rule for the sentences, tables and
colours of `labkit why` and of flame graphs.

Each difference is tested by Student's t over rounds. With as many rounds on both sides, the test pools the degrees of
freedom of both sides, because alike sides would have the same spread. With different numbers of rounds it is Welch's t.
The interval has the same degrees of freedom, so a difference whose interval includes 0 never stands out by itself.

Two rules make thousands of tests safe. First, the variance of a mean is at least that of counting its samples
(Poisson); otherwise the rounds of a frame with few samples could agree by chance. Second, of the p values only those
count that the step-up procedure of Benjamini and Hochberg (1995) keeps. Things with equal samples in all rounds (a
function and its only caller) are tested once.

Between runs, every interval includes the variation between runs (`RunVariation`). Where the left side was measured
again (the A/A control), what it shows as well is no difference (`beyond_control`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit

from labkit.analysis import stats

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Four tests may claim a difference where there is none: of CPU time, of speed, of all functions, and of what a setting
# is known to affect (code paths, parts of a switch's work, loss). Each has a quarter of the 5 % (Bonferroni).
TESTS_COUNT = 4
CLAIM_SHARE = (1 - stats.CONFIDENCE) / TESTS_COUNT
# Things with fewer samples in all rounds of both sides cannot stand out, and testing them would reduce the power of the
# other tests. The sum over both sides is independent of their difference, so this selection adds no bias.
MIN_SAMPLES = 50
# The assumed relative standard deviation of CPU time per packet between runs of the same experiment on an otherwise
# idle machine, set by experience. It applies if a side has a single run, which does not show the variation itself
# (docs/method/why.md).
BETWEEN_SHARE = 0.10
# degrees of freedom that the assumed variation between runs counts for, beside those of real runs
ASSUMED_RUNS = 4


@dataclass(frozen=True)
class Estimate:
    """The means of both sides, their difference with half its 95 % interval, and p."""

    left: float
    right: float
    difference: float
    half: float
    p: float

    @property
    def low(self) -> float:
        """Return the lower end of the interval."""
        return self.difference - self.half

    @property
    def high(self) -> float:
        """Return the upper end of the interval."""
        return self.difference + self.half

    @property
    def certain(self) -> bool:
        """Return whether the difference may be claimed. Its interval then excludes 0, too."""
        return self.p < CLAIM_SHARE


@dataclass(frozen=True)
class RunVariation:
    """The variation between two runs of the same experiment; functions take None for sides within one run.

    runs: the run of each round, for both sides. share: the assumed standard deviation between runs, relative to a run's
    cost. absolute: the values are logarithms, and share is their standard
    deviation itself.
    """

    runs: tuple[tuple[str, ...], tuple[str, ...]]
    share: float
    absolute: bool = False

    @property
    def is_measured(self) -> bool:
        """Return whether both sides have at least two runs."""
        return all(len(set(side)) > 1 for side in self.runs)


def run_variation(left: Sequence[str], right: Sequence[str]) -> RunVariation | None:
    """Return the variation to apply between two sides, or None if all rounds are of one run. left, right: the run of
    each round."""
    return None if len({*left, *right}) == 1 else RunVariation((tuple(left), tuple(right)), BETWEEN_SHARE)


def beyond_control(size: Estimate, control: Estimate | None) -> Estimate:
    """Return the estimate as it stands beside the same estimate for the control, the left side measured again.

    As in verdicts (`stats.widened`): a control that certainly (99 %) differs from 0 widens the interval by
    TIMES_CONTROL times its difference, and a difference within the control's own interval is not certain.
    """
    if control is None or not (np.isfinite(control.half) and np.isfinite(size.half)):
        return size
    half, p = beyond_controls(*(np.array([one]) for one in (
        size.difference, size.half, size.p, control.difference, control.half, control.p
    )))  # fmt: skip
    return replace(size, half=float(half[0]), p=float(p[0]))


def beyond_controls(
    difference: Floats, half: Floats, p: Floats, again: Floats, again_half: Floats, again_p: Floats
) -> tuple[Floats, Floats]:
    """Return half intervals and p values as `beyond_control` does, for many differences at once."""
    differs = again_p < 1 - stats.CONTROL_CONFIDENCE
    half = half + np.where(differs, stats.TIMES_CONTROL * np.abs(again), 0.0)
    reach = np.nan_to_num(again_half)
    alike = (np.minimum(again - reach, 0) <= difference) & (difference <= np.maximum(again + reach, 0))
    return half, np.where(alike | (differs & (np.abs(difference) <= half)), 1.0, p)


def estimate(
    left: Floats,
    right: Floats,
    variation: RunVariation | None,
    floors: Sequence[float] = (0.0, 0.0, 0.0),
    again: Floats | None = None,
) -> Estimate:
    """Return right minus left of one value per round, by Welch's t-test with degrees of freedom of both
    sides.

    Between runs, the test compares run means if both sides have at least two runs: their variance is then a weighted
    mean of what these runs show and of `variation.share` (moderated t-test; G. Smyth, 2004). Otherwise
    `variation.share` alone widens the interval. again: left measured again; what two or more rounds of it show as well
    is no difference (`beyond_control`). floors: the least variances of these three means, from counting samples.
    """
    least = np.array(floors[:1]), np.array(floors[1:2])
    (a, b), (half, p) = estimate_many(left[None, :], right[None, :], variation, least)
    size = Estimate(float(a[0]), float(b[0]), float(b[0] - a[0]), float(half[0]), float(p[0]))
    if again is None or len(again) < 2:
        return size
    return beyond_control(size, estimate(left, again, None, (floors[0], floors[2])))


def paired_mean(differences: Floats) -> Estimate:
    """Return the mean of the differences of paired rounds, tested against 0 (Student's t with rounds - 1 degrees of
    freedom). A single round has no interval."""
    count = len(differences)
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / count**0.5 if count > 1 else math.nan
    t = abs(mean) / error if error else float("inf" if mean else "nan")
    p = 2 * float(stdtr(count - 1, -t))
    half = float(stdtrit(count - 1, 0.975)) * error
    return Estimate(0.0, mean, mean, half, p if np.isfinite(p) else 1.0)


def estimate_many(
    left: Floats, right: Floats, variation: RunVariation | None, floors: tuple[Floats, Floats]
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Return what `estimate` does for many values at once: the means of both sides, then half intervals and p values.

    left, right: [thing, round].
    """
    means, variances, freedoms = [], [], []
    for at, values in enumerate((left, right)):
        if variation is not None and variation.is_measured:
            labels = variation.runs[at]
            of_runs = [[one == run for one in labels] for run in dict.fromkeys(labels)]
            values = np.stack([values[:, own].mean(axis=1) for own in of_runs], axis=1)
        count = values.shape[1]
        mean, freedom_of_side = values.mean(axis=1), max(count - 1, 1)
        own = values.var(axis=1, ddof=1) if count > 1 else np.full(len(values), np.nan)
        if variation is not None and variation.is_measured:
            # Two or three runs alone hardly show how much runs vary, so the assumed variation counts as well.
            assumed = variation.share**2 * (1.0 if variation.absolute else mean**2)
            own = (ASSUMED_RUNS * assumed + freedom_of_side * own) / (ASSUMED_RUNS + freedom_of_side)
            freedom_of_side += ASSUMED_RUNS
        means.append(mean)
        variances.append(np.maximum(own / count, floors[at]))
        freedoms.append(freedom_of_side)
    # Run-to-run variation is proportional to each side's cost: a path that a side lacks cannot vary there.
    extra = np.zeros(len(left))
    if variation is not None and not variation.is_measured:
        size = np.full(len(left), 2.0) if variation.absolute else means[0] ** 2 + means[1] ** 2
        extra = variation.share**2 * size
    variance = variances[0] + variances[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = variance**2 / (variances[0] ** 2 / freedoms[0] + variances[1] ** 2 / freedoms[1])
        if freedoms[0] == freedoms[1]:
            freedom = np.where(np.isfinite(freedom), float(sum(freedoms)), np.nan)
        whole = variance + extra
        t = np.abs(means[1] - means[0]) / np.sqrt(whole)
        p = 2 * stdtr(freedom, -t)
        half = np.where(whole == 0, 0.0, stdtrit(freedom, (1 + stats.CONFIDENCE) / 2) * np.sqrt(whole))
    p = np.where(np.isfinite(p), p, 1.0)
    return (means[0], means[1]), (np.asarray(half, dtype=float), np.asarray(p, dtype=float))


@dataclass(frozen=True)
class RoundMeans:
    """Means over rounds, half their 95 % intervals (NaN for a single round), and the least variance of each mean, that
    of counting samples."""

    mean: Floats
    half: Floats
    counting: Floats
    rounds_count: int


@dataclass(frozen=True)
class Spread:
    """Both sides and their difference.

    difference: right minus left. half: half its 95 % interval (NaN if a side has a single round). stands_out: whether
    it stands out among all, and from the control. control: the same for left and left measured again, if that was done.
    """

    left: RoundMeans
    right: RoundMeans
    difference: Floats
    half: Floats
    p: Floats
    stands_out: Bools
    control: Spread | None = None


def round_means(counts: npt.NDArray[np.int64], each: Floats) -> RoundMeans:
    """Return the means of samples [thing, round]. each: the value of one sample in each round."""
    rounds = counts.shape[1]
    values = counts * each
    counting = (counts * each**2).sum(axis=1) / rounds**2
    if rounds < 2:
        return RoundMeans(values.mean(axis=1), np.full(len(counts), np.nan), counting, rounds)
    variance = np.maximum(values.var(axis=1, ddof=1) / rounds, counting)
    return RoundMeans(values.mean(axis=1), _reach(rounds) * np.sqrt(variance), counting, rounds)


def half_interval(values: Floats) -> float:
    """Return half the 95 % interval of a mean (Student's t), or NaN for a single value."""
    count = len(values)
    return _reach(count) * float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan


def _reach(rounds: int) -> float:
    return float(stdtrit(rounds - 1, (1 + stats.CONFIDENCE) / 2))


def compared(
    left: npt.NDArray[np.int64],
    left_each: Floats,
    right: npt.NDArray[np.int64],
    right_each: Floats,
    variation: RunVariation | None = None,
    again: tuple[npt.NDArray[np.int64], Floats] | None = None,
) -> Spread:
    """Compare the samples [thing, round] of two sides. left_each, right_each: the value of one sample in each round.

    again: the samples of left measured again (A/A), in the same runs, and their values. What they show as well does not
    stand out. A single round of it does not count.
    """
    control = compared(left, left_each, *again) if again is not None and len(again[1]) > 1 else None
    a, b = round_means(left, left_each), round_means(right, right_each)
    if min(a.rounds_count, b.rounds_count) < 2:
        absent = np.full(len(left), np.nan)
        return Spread(a, b, b.mean - a.mean, absent, absent, np.zeros(len(left), dtype=bool), control)
    floors = a.counting, b.counting
    (low, high), (half, p) = estimate_many(left * left_each, right * right_each, variation, floors)
    if control is not None:
        half, p = beyond_controls(high - low, half, p, control.difference, control.half, control.p)
    return Spread(a, b, high - low, half, p, _kept(np.hstack([left, right]), p), control)


def _kept(samples: npt.NDArray[np.int64], p: Floats) -> Bools:
    """Return what stands out of samples [thing, round]. Things with equal samples count as one."""
    _, first, of = np.unique(samples, axis=0, return_index=True, return_inverse=True)
    tested = samples[first].sum(axis=1) >= MIN_SAMPLES
    kept = np.zeros(len(first), dtype=bool)
    kept[tested] = stats.discoveries(p[first][tested], CLAIM_SHARE)
    return np.asarray(kept[of.reshape(-1)])
