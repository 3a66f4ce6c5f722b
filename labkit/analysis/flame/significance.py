"""Test which differences between two sides exceed the spread between rounds, for thousands of frames at once.

Each difference is tested by Student's t over rounds. With as many rounds on both sides, the test pools the degrees of
freedom of both sides, because alike sides would have the same spread. With different numbers of rounds it is Welch's t.
The interval has the same degrees of freedom, so a difference whose interval includes 0 never stands out by itself.

Two rules make thousands of tests safe. First, the variance of a mean is at least that of counting its samples
(Poisson); otherwise the rounds of a frame with few samples could agree by chance. Second, of the p values only those
count that the step-up procedure of Benjamini and Hochberg (1995) keeps, so at most 5 % of the reported differences are
expected to be false. Things with equal samples in all rounds (a function and its only caller) are tested once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit

from labkit.analysis import stats

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FALSE_SHARE = 1 - stats.CONFIDENCE
# Things with fewer samples in all rounds of both sides cannot stand out, and testing them would reduce the power of the
# other tests. The sum over both sides is independent of their difference, so this selection adds no bias.
MIN_SAMPLES = 50


@dataclass(frozen=True)
class RoundMeans:
    """Means over rounds, half their 95 % intervals (NaN for a single round), and the variance of each mean."""

    mean: Floats
    half: Floats
    variance: Floats
    rounds_count: int


@dataclass(frozen=True)
class Spread:
    """Both sides and their difference.

    difference: right minus left. half: half its 95 % interval (NaN if a side has a single round). stands_out: whether
    it stands out among all.
    """

    left: RoundMeans
    right: RoundMeans
    difference: Floats
    half: Floats
    p: Floats
    stands_out: Bools


def round_means(counts: npt.NDArray[np.int64], each: Floats) -> RoundMeans:
    """Return the means of samples [thing, round]. each: the value of one sample in each round."""
    rounds = counts.shape[1]
    values = counts * each
    counting = (counts * each**2).sum(axis=1) / rounds**2
    if rounds < 2:
        absent = np.full(len(counts), np.nan)
        return RoundMeans(values.mean(axis=1), absent, absent, rounds)
    variance = np.maximum(values.var(axis=1, ddof=1) / rounds, counting)
    return RoundMeans(values.mean(axis=1), _reach(rounds) * np.sqrt(variance), variance, rounds)


def half_interval(values: Floats) -> float:
    """Return half the 95 % interval of a mean (Student's t), or NaN for a single value."""
    count = len(values)
    return _reach(count) * float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan


def _reach(rounds: int) -> float:
    return float(stdtrit(rounds - 1, (1 + stats.CONFIDENCE) / 2))


def compared(
    left: npt.NDArray[np.int64], left_each: Floats, right: npt.NDArray[np.int64], right_each: Floats
) -> Spread:
    """Compare the samples [thing, round] of two sides. left_each, right_each: the value of one sample in each round."""
    a, b = round_means(left, left_each), round_means(right, right_each)
    difference = b.mean - a.mean
    if min(a.rounds_count, b.rounds_count) < 2:
        absent = np.full(len(difference), np.nan)
        return Spread(a, b, difference, absent, absent, np.zeros(len(difference), dtype=bool))
    variance = a.variance + b.variance
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = variance**2 / (a.variance**2 / (a.rounds_count - 1) + b.variance**2 / (b.rounds_count - 1))
        t = np.abs(difference) / np.sqrt(variance)
    freedom = np.where(variance > 0, freedom, 1.0)
    judging = a.rounds_count + b.rounds_count - 2.0 if a.rounds_count == b.rounds_count else freedom
    p = np.where(variance > 0, 2 * stdtr(judging, -np.where(variance > 0, t, 0.0)), 1.0)
    half = np.asarray(stdtrit(judging, (1 + stats.CONFIDENCE) / 2) * np.sqrt(variance), dtype=np.float64)
    return Spread(a, b, difference, half, p, _kept(np.hstack([left, right]), p))


def _kept(samples: npt.NDArray[np.int64], p: Floats) -> Bools:
    """Return what stands out of samples [thing, round]. Things with equal samples count as one."""
    _, first, of = np.unique(samples, axis=0, return_index=True, return_inverse=True)
    tested = samples[first].sum(axis=1) >= MIN_SAMPLES
    kept = np.zeros(len(first), dtype=bool)
    kept[tested] = stats.discoveries(p[first][tested], FALSE_SHARE)
    return np.asarray(kept[of.reshape(-1)])
