"""Two sides of several rounds each, for thousands of frames at once: which differences stand out from the spread
between rounds of the same side.

A difference is judged by Student's t over rounds: if both sides were alike, their spread would be, too, so with as many
rounds on both the degrees of freedom of both count (with other numbers it is Welch's t). Its interval is of the same
degrees of freedom, so that an interval that holds 0 and a difference that stands out never stand beside each other.
Two things make thousands of such judgements safe: the variance of a mean is never taken to be smaller than that of
counting its samples (Poisson), or frames of a few samples would agree by chance; and of the p values those count that
Benjamini and Hochberg's step-up procedure (1995) keeps, so that of what is called a difference at most 5 % is expected
to be none. What was sampled alike in all rounds (a function and the only one that called it) is judged once.
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
# What has fewer samples in all rounds of both sides together cannot stand out, and would only take power from the
# others. (The sum over both sides says nothing about their difference, so leaving out by it skews nothing.)
FEWEST_SAMPLES = 50


@dataclass(frozen=True)
class RoundMeans:
    """Means over rounds, and half their 95 % intervals (NaN of a single round); variance: that of the mean."""

    mean: Floats
    half: Floats
    variance: Floats
    rounds_count: int


@dataclass(frozen=True)
class Spread:
    """left, right: both sides. difference: right minus left, half its 95 % interval (NaN where a side has a single
    round), p, and whether it stands out among all."""

    left: RoundMeans
    right: RoundMeans
    difference: Floats
    half: Floats
    p: Floats
    stands_out: Bools


def round_means(counts: npt.NDArray[np.int64], each: Floats) -> RoundMeans:
    """Samples [thing, round], each worth so much in its round."""
    rounds = counts.shape[1]
    values = counts * each
    counting = (counts * each**2).sum(axis=1) / rounds**2
    if rounds < 2:
        absent = np.full(len(counts), np.nan)
        return RoundMeans(values.mean(axis=1), absent, absent, rounds)
    variance = np.maximum(values.var(axis=1, ddof=1) / rounds, counting)
    return RoundMeans(values.mean(axis=1), _reach(rounds) * np.sqrt(variance), variance, rounds)


def half_interval(values: Floats) -> float:
    """Half the 95 % interval of a mean (Student's t), NaN of a single value."""
    count = len(values)
    return _reach(count) * float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan


def _reach(rounds: int) -> float:
    return float(stdtrit(rounds - 1, (1 + stats.CONFIDENCE) / 2))


def compared(
    left: npt.NDArray[np.int64], left_each: Floats, right: npt.NDArray[np.int64], right_each: Floats
) -> Spread:
    """Samples [thing, round] of two sides, and what a sample of each round is worth."""
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
    """What stands out of samples [thing, round]: things that were sampled alike are one."""
    _, first, of = np.unique(samples, axis=0, return_index=True, return_inverse=True)
    tested = samples[first].sum(axis=1) >= FEWEST_SAMPLES
    kept = np.zeros(len(first), dtype=bool)
    kept[tested] = stats.discoveries(p[first][tested], FALSE_SHARE)
    return np.asarray(kept[of.reshape(-1)])
