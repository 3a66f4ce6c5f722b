"""Derive verdicts from paired log-ratios: effect, interval, one of four words and a sentence.

The methods were chosen by simulation on synthetic and recorded noise, which test_stats.py repeats. Sources:
Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd ed., sections 3.1 to 3.3 (signed ranks,
Hodges-Lehmann) and 6.1 (Kruskal-Wallis); Welch, Biometrika 34 (1947) 28.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import chdtrc, ndtri, stdtr, stdtrit

from labkit.common import units
from labkit.common.errors import BadInput
from labkit.common.units import counted

Floats = npt.NDArray[np.float64]
Numbers = Sequence[float] | Floats
Interval = tuple[float, float] | None

CONFIDENCE = 0.95
# A control that differs from itself widens the other intervals, so its false alarms are lost detections: 5 % of all
# true findings at 95 %. Then the requirement "a 10 % effect under 3 % noise is found in 95 % at 10 rounds" could not
# hold. The arm itself is practically always found: 3 % noise on each arm give 0.03 * sqrt(1.5) in the paired
# log-ratio and an interval of +-2.6 %, against an effect of 9.5 %. So only the control loses findings, at 99 % one in
# a hundred.
CONTROL_CONFIDENCE = 0.99
LEVELS = (CONFIDENCE, CONTROL_CONFIDENCE)
# How many times the disagreement of the control an equal arm may disagree: the control is one draw of a normal
# distribution of unknown width, and Student's t with one degree of freedom is within this number in 95 % of the draws.
TIMES_CONTROL = float(stdtrit(1, (1 + CONFIDENCE) / 2))  # 12.7
# Set-ups disagree at p < 0.25 instead of 0.05. With few set-ups the test at 0.05 seldom detects a standard deviation of
# 5 % between set-ups, and the interval over all slices has 13 to 17 % false alarms.
DISAGREE_BELOW = 0.25
# From this number of set-ups on, the interval is always over set-ups. In five rounds of recorded UDP
# (tests/unit/analysis/test_stats.py) the test often misses a real difference between set-ups.
MIN_SETUPS = 5
# Where the scheduler places the ends of a flow, a set-up is in one of few regimes, and five set-ups are often all in
# the same one. Their means are then far from normal: with n - 1 degrees of freedom, five set-ups drawn from 75 of
# recorded UDP cover the ratio of all 75 in 91 % of the draws. With this many degrees fewer they do in 95 %: five
# set-ups have an interval 1.55 times as wide, ten 1.05 times. Slices with balanced placement see every regime in every
# set-up, and four recorded loads need no such allowance.
LOST_FREEDOM = 2
WIDE = 100  # an interval that spans more than this factor is uninformative
FEW_NUMBERS = 64  # up to this many, one array holds all pairs
EXACT_UP_TO = 50  # slices; above it the normal approximation of the signed-rank distribution is accurate
MIN_SLICES = 8  # with fewer, no signed-rank interval reaches 99 % (2 ** -6 > 0.01), so Student's t is used


@dataclass(frozen=True)
class Effect:
    """A ratio (exp of the centre of log-ratios) with its interval at CONFIDENCE; the ends may be None.

    n_count: the number of log-ratios. how: the method in words. wide_low, wide_high: the interval at
    CONTROL_CONFIDENCE, which judges a control. setups_count: the number of fresh set-ups, None if unknown. disagree:
    whether the set-ups differ. contradicted: whether the interval is that of `spanning`. degrees_of_freedom:
    of Student's t, None for another interval.
    """

    ratio: float
    low: float | None
    high: float | None
    n_count: int
    how: str
    wide_low: float | None = None
    wide_high: float | None = None
    setups_count: int | None = None
    disagree: bool = False
    contradicted: bool = False
    degrees_of_freedom: float | None = None


@dataclass(frozen=True)
class Verdict:
    """A verdict. word: faster, slower, no difference beyond X %, or no evidence. sentence: the same with numbers."""

    word: str
    sentence: str


def log_ratios(arm: Numbers, baseline: Numbers, control: Numbers | None = None) -> tuple[Floats, Floats]:
    """Return the paired log-ratios of each round: (arm to baseline, control to baseline).

    All inputs have the same unit; NaN means not measured. The baseline is measured twice (baseline and control), and
    the arm is compared with the mean of both logarithms. So the variance is 1.5 times that of one measurement, instead
    of 2. The control's log-ratio is the difference of both and uncorrelated with their mean, so noise in the control
    does not shift the arm's ratio. If one of the two is missing, the other is used alone. Raises BadInput for values
    that have no logarithm.
    """
    a, b = _logs(arm), _logs(baseline)
    c = np.full(b.shape, np.nan) if control is None else _logs(control)
    if not a.shape == b.shape == c.shape:
        counts = f"{a.size}, {b.size} and {c.size}"
        raise BadInput(f"pairs need equal numbers of measurements of the arms, not {counts}")
    both = np.where(np.isnan(b), c, np.where(np.isnan(c), b, (b + c) / 2))
    return a - both, c - b


def _logs(values: Numbers) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    if np.any((numbers <= 0) | np.isinf(numbers)):
        raise BadInput("zero, negative and infinite measurements have no ratio: leave them out first")
    return np.log(numbers)


def effect(
    log_ratios: Numbers,
    setups: Sequence[object] | None = None,
    slices: bool = False,
    placed: bool = False,
    lost: int = 0,
) -> Effect:
    """Estimate the effect behind paired log-ratios (one-dimensional, natural logarithm).

    `setups` labels the fresh set-up of each log-ratio. slices=False: the mean over set-ups with Student's t interval. A
    single set-up has no interval. On 20 and 40 rounds of recorded noise the false alarms stay at 5 %.

    slices=True: Student's t over one Hodges-Lehmann estimate per set-up, if there are MIN_SETUPS or if they
    disagree. Otherwise Hodges-Lehmann over all slices with the Wilcoxon signed-rank interval, or Student's t for fewer
    than MIN_SLICES. This needs 8 n^2 bytes of memory for n slices. `placed`: labkit bound the ends of every slice to
    CPUs, in all arms alike; otherwise MIN_SETUPS and more have LOST_FREEDOM degrees of freedom fewer, and one set-up
    less has one fewer. `lost`: with slices=False, the degrees of freedom to leave out (`lost_freedom`).

    Raises BadInput for an empty or non-finite input.
    """
    x = np.asarray(log_ratios, dtype=np.float64)
    if x.ndim != 1 or not x.size or not np.all(np.isfinite(x)):
        raise BadInput("an effect needs at least one log-ratio, and all must be finite")
    if setups is not None and len(setups) != x.size:
        raise BadInput(f"{x.size} log-ratios need a set-up each, not {len(setups)} set-ups")
    groups = None
    if setups is not None:
        _, of = np.unique([str(label) for label in setups], return_inverse=True)
        groups = [x[of == place] for place in range(of.max() + 1)]
    if slices:
        return _slices_effect(x, groups, placed)
    means = x if groups is None else np.array([group.mean() for group in groups])
    how = f"Student's t over {counted(means.size, 'round')}"
    return _student(means, x.size, how, means.size, lost)


def _slices_effect(x: Floats, groups: list[Floats] | None, placed: bool) -> Effect:
    count = None if groups is None else len(groups)
    slices = counted(x.size, "slice")
    over = slices if count is None else f"{slices} in {counted(count, 'set-up')}"
    disagree = groups is not None and setups_disagree(groups)
    if groups is not None and (disagree or len(groups) >= MIN_SETUPS):
        centres = np.array([centre(group) for group in groups])
        how = f"Student's t over {count} set-ups{', which disagree,' if disagree else ''} of {slices}"
        result = _student(centres, x.size, how, count, lost_freedom(len(groups), placed))
        return replace(result, disagree=disagree)
    if x.size < MIN_SLICES:
        return _student(x, x.size, f"Student's t over {over}", count)
    middle, ends = _hodges_lehmann(x)
    how = f"Hodges-Lehmann over {over}"
    return _between(Effect(math.exp(middle), None, None, x.size, how, setups_count=count), ends)


def lost_freedom(setups_count: int, placed: bool) -> int:
    """Return how many degrees of freedom the slices of these set-ups have less, because set-ups come in few regimes.

    placed: whether labkit bound the ends of every slice to CPUs.
    """
    # Another set-up never makes the interval wider, so three of them lose nothing and four lose one.
    return 0 if placed else max(0, min(LOST_FREEDOM, setups_count - (MIN_SETUPS - LOST_FREEDOM)))


def setups_disagree(groups: Sequence[Floats], below: float = DISAGREE_BELOW) -> bool:
    """Return whether the locations of set-ups differ (Kruskal-Wallis, p < `below`). False for a single set-up."""
    ranks = average_ranks(np.concatenate(groups))
    if len(groups) < 2 or ranks.size == len(groups) or np.ptp(ranks) == 0:
        return False
    parts = np.split(ranks, np.cumsum([group.size for group in groups])[:-1])
    between = sum(part.size * (part.mean() - ranks.mean()) ** 2 for part in parts)
    return bool(chdtrc(len(groups) - 1, between / ranks.var(ddof=1)) < below)


def correlation(x: Floats, y: Floats) -> tuple[float, float]:
    """Return Pearson's correlation of two variables and its p value (Student's t); 0 and 1 if it is not defined."""
    if x.size < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0, 1.0
    r = float(np.clip(np.corrcoef(x, y)[0, 1], -1 + 1e-12, 1 - 1e-12))
    t = abs(r) * math.sqrt((x.size - 2) / (1 - r * r))
    return r, float(2 * stdtr(x.size - 2, -t))


def average_ranks(x: Floats) -> Floats:
    """Return the rank of each value, from 1; equal values share their mean rank.

    scipy.stats.rankdata does the same, but the import of scipy.stats takes a second.
    """
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    ranks: Floats = np.cumsum(counts) - (counts - 1) / 2
    return ranks[place]


def centre(x: Floats) -> float:
    """Return the Hodges-Lehmann estimate: the median of the means of all pairs, including each number with itself."""
    return float(np.median(_walsh(x)))


def _walsh(x: Floats) -> Floats:
    if x.size <= FEW_NUMBERS:  # many set-ups of a few slices: one operation, not one for each slice
        pairs: Floats = np.add.outer(x, x)[_each_pair_once(x.size)] / 2
        return pairs
    # One row at a time, because an index of all pairs would take five times the memory.
    return np.concatenate([x[place:] + x[place] for place in range(x.size)]) / 2


@lru_cache(maxsize=FEW_NUMBERS)
def _each_pair_once(n: int) -> npt.NDArray[np.bool_]:
    """Return a square of n times n: true on and above the diagonal."""
    return np.triu(np.ones((n, n), bool))


def _hodges_lehmann(x: Floats) -> tuple[float, list[Interval]]:
    walsh = _walsh(x)
    last = walsh.size - 1
    lower = [_signed_rank_place(x.size, (1 - level) / 2) for level in LEVELS]
    middle = [last // 2, (last + 1) // 2]
    walsh.partition(sorted({*middle, *(place for k in lower if k is not None for place in (k, last - k))}))
    intervals = [None if k is None else (float(walsh[k]), float(walsh[last - k])) for k in lower]
    return float(walsh[middle].mean()), intervals


@lru_cache(maxsize=256)
def _signed_rank_place(n: int, tail: float) -> int | None:
    """Return the index of the interval's lower end in the sorted pair means, or None if n is too small."""
    if n > EXACT_UP_TO:
        deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return max(0, math.floor(n * (n + 1) / 4 - float(ndtri(1 - tail)) * deviation + 0.5) - 1)
    subsets = np.ones(1)  # subsets[s]: number of subsets of the ranks 1..n with sum s
    for rank in range(1, n + 1):
        subsets = np.pad(subsets, (0, rank)) + np.pad(subsets, (rank, 0))
    place = int(np.searchsorted(np.cumsum(subsets) / 2.0**n, tail, side="right")) - 1
    return place if place >= 0 else None


def _student(x: Floats, n_count: int, how: str, setups_count: int | None, lost: int = 0) -> Effect:
    """Return Student's t interval, with `lost` degrees of freedom fewer than x has."""
    result = Effect(math.exp(x.mean()), None, None, n_count, how, setups_count=setups_count)
    if x.size < 2:
        return result
    return _t_interval(result, float(x.std(ddof=1)) / math.sqrt(x.size), x.size - 1 - lost)


def _t_interval(effect: Effect, error: float, freedom: float) -> Effect:
    halves = [float(stdtrit(freedom, (1 + level) / 2)) * error for level in LEVELS]
    middle = math.log(effect.ratio)
    ends: list[Interval] = [(middle - half, middle + half) for half in halves]
    return replace(_between(effect, ends), degrees_of_freedom=freedom)


def _between(effect: Effect, ends: list[Interval]) -> Effect:
    # Two very different rounds can give a bound beyond the range of floats; exp(700) is within it.
    low, high, wide_low, wide_high = (
        None if logs is None else math.exp(min(logs[end], 700.0)) for logs in ends for end in (0, 1)
    )
    return replace(effect, low=low, high=high, wide_low=wide_low, wide_high=wide_high)


def difference(left: Numbers, right: Numbers, *, placed: bool = True) -> Effect:
    """Estimate the ratio of right to left from unpaired logarithms, one per set-up, with Welch's t interval.

    placed: False if the logarithms are of slices whose ends labkit did not bind to CPUs (`lost_freedom`). There is no
    interval if a side has a single set-up. Raises BadInput if a side is empty.
    """
    a, b = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if not a.size or not b.size:
        raise BadInput("a difference needs at least one set-up on either side")
    count, how = a.size + b.size, f"Welch's t over {a.size} and {b.size} set-ups"
    least = min(a.size, b.size)
    result = Effect(math.exp(b.mean() - a.mean()), None, None, count, how, setups_count=least)
    if least < 2:
        return result
    u, v = float(a.var(ddof=1)) / a.size, float(b.var(ddof=1)) / b.size
    own = [side.size - 1 - lost_freedom(side.size, placed) for side in (a, b)]
    freedom = (u + v) ** 2 / (u**2 / own[0] + v**2 / own[1]) if u + v else 1.0
    return _t_interval(result, math.sqrt(u + v), freedom)


def half_width(effect: Effect) -> float:
    """Return half the width of the interval relative to the ratio (0.02: +-2 %); infinite without an interval."""
    if not effect.low or effect.high is None:
        return math.inf
    return math.sqrt(effect.high / effect.low) - 1


def differs_from_itself(control: Effect | None) -> bool:
    """Return whether the 99 % interval of the control (if there is none, its other interval) excludes 1."""
    low, high = (None, None) if control is None else _judged(control)
    return low is not None and high is not None and not low <= 1 <= high


def widened(effect: Effect, control: Effect | None, baseline: str = "the baseline") -> Effect:
    """Return the effect with its interval widened by the disagreement of the baseline with itself, if that is certain.

    On a log scale, either end moves out by TIMES_CONTROL times the disagreement. So noise that makes equal arms differ
    explains a small effect and not a large one.
    """
    if control is None or not differs_from_itself(control) or effect.low is None or effect.high is None:
        return effect
    more = math.exp(TIMES_CONTROL * min(abs(math.log(control.ratio)), 50.0))
    shown = ratio_text(control.ratio, *_judged(control))
    how = f"{effect.how}, widened because {baseline} differs from itself: {shown} at 99 %"
    return replace(effect, low=effect.low / more, high=effect.high * more, how=how)


def _judged(control: Effect) -> tuple[float | None, float | None]:
    wide = control.wide_low is not None
    return (control.wide_low, control.wide_high) if wide else (control.low, control.high)


def spanning(effect: Effect, whole: Effect | None) -> Effect:
    """Return the effect of slices with an interval that reaches to that of whole runs, if the two do not overlap."""
    if whole is None or effect.low is None or effect.high is None or whole.low is None or whole.high is None:
        return effect
    if effect.low <= whole.high and whole.low <= effect.high:
        return effect
    shown = ratio_text(whole.ratio, whole.low, whole.high)
    how = f"{effect.how}, and whole runs contradict them: {shown}, {whole.how}"
    low, high = min(effect.low, whole.low), max(effect.high, whole.high)
    return replace(effect, low=low, high=high, how=how, contradicted=True)


def verdict(
    effect: Effect,
    control: Effect | None,
    margin: float = 0.05,
    higher_is_better: bool = True,
    *,
    arm: str = "the arm",
    baseline: str = "the baseline",
) -> Verdict:
    """Return what may be concluded about arm against baseline.

    `control` is the effect of the baseline against itself. With `margin` (0.05 is 5 %), "no difference" means that the
    interval lies within 1 / (1 + margin) and 1 + margin. A significant difference within the margin is still faster or
    slower, and the sentence says that it is small.

    The verdict is "no evidence" in these cases: no control, or one without an interval; no interval; slices of a single
    set-up; a difference within the control's own interval. Where the control differs from the baseline, the effect's
    interval is that of `widened`.
    """
    if not 0 < margin < 1:
        raise BadInput(f"the margin is a ratio between 0 and 1 (0.05 is 5 %), not {margin}")
    effect = widened(effect, control, baseline)
    low, high = effect.low, effect.high
    measured = f"{ratio_text(effect.ratio, low, high)} ({effect.how})"
    why = _no_evidence(effect, control, baseline)
    if why or low is None or high is None:
        sentence = f"no evidence about {arm} against {baseline}: {why}; measured {measured}"
        return Verdict("no evidence", sentence)
    inside = 1 / (1 + margin) <= low and high <= 1 + margin
    if (low > 1 or high < 1) and (noise := _within_control(effect, control)):
        sentence = f"no evidence about {arm} against {baseline}: {noise}; measured {measured}"
        return Verdict("no evidence", sentence)
    if low > 1 or high < 1:
        word = "faster" if (low > 1) == higher_is_better else "slower"
        small = f", a difference below {units.exact_percent(margin)}" if inside else ""
        size = _size(effect.ratio, low, high, word, higher_is_better, baseline)
        return Verdict(word, f"{arm} is {size} ({effect.how}){small}")
    word = f"no difference beyond {units.exact_percent(margin)}" if inside else "no evidence"
    lines = word if inside else "no evidence of a difference"
    return Verdict(word, f"{lines} between {arm} and {baseline}: {measured}")


def _no_evidence(effect: Effect, control: Effect | None, baseline: str) -> str | None:
    if control is None:
        return f"{baseline} was not measured twice, so the noise of this machine is unknown"
    if control.low is None:
        return f"{baseline} was measured twice in one round only, so the noise of this machine is unknown"
    if effect.low is None:
        return "a single measurement has no interval"
    return "all slices come from one set-up, which may not be typical" if effect.setups_count == 1 else None


def _within_control(effect: Effect, control: Effect | None) -> str | None:
    """Return why noise may explain the ratio, if it is in the interval of the baseline against itself."""
    if control is None or control.low is None or control.high is None:
        return None
    if not min(control.low, 1) <= effect.ratio <= max(control.high, 1):
        return None
    shown = ratio_text(control.ratio, control.low, control.high)
    return f"the baseline differs from itself by as much ({shown})"


def _size(ratio: float, low: float, high: float, word: str, higher_is_better: bool, baseline: str) -> str:
    near, far = sorted((abs(low - 1), abs(high - 1)))
    size, between = units.percent(abs(ratio - 1)), f"[{units.percent(near)}, {units.percent(far)}]"
    if high > WIDE * low:
        between = f"[{interval_text(low, high)}]"
    if higher_is_better:
        return f"{size} {word} than {baseline} {between}"
    return f"{word} than {baseline}: it takes {size} {'more' if ratio > 1 else 'less'} time {between}"


def discoveries(p: Floats, false_share: float = 1 - CONFIDENCE) -> npt.NDArray[np.bool_]:
    """Select p values by the Benjamini-Hochberg procedure with the false discovery rate `false_share`."""
    order = np.argsort(p)
    below = np.flatnonzero(p[order] <= false_share * np.arange(1, len(p) + 1) / max(len(p), 1))
    kept = np.zeros(len(p), dtype=bool)
    kept[order[: below[-1] + 1 if len(below) else 0]] = True
    return kept


def ratio_text(ratio: float, low: float | None, high: float | None) -> str:
    """Format a ratio, with its interval if there is one, for a sentence."""
    return f"ratio {estimate_text(ratio, low, high)}"


def estimate_text(value: float, low: float | None, high: float | None) -> str:
    """Format a value, with its interval if that is known."""
    if low is None or high is None or math.isnan(low):
        return f"{value:.4g}"
    return f"{value:.4g} [{interval_text(low, high)}]"


def interval_text(low: float, high: float, form: str = ".4g", between: str = ", ") -> str:
    """Format the two ends of a ratio's interval. If they are more than a factor of WIDE apart, only say so."""
    if high > WIDE * low:
        return f"wider than a factor of {WIDE}"
    return f"{low:{form}}{between}{high:{form}}"
