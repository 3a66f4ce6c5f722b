"""The search for the rates at which loss begins: MLRsearch (RFC 9971), with the library of that name.

The library sees only rates and loss ratios. It measures with a `Measure`: an attempt that the machine disturbed is
repeated. A load that the generator cannot offer ends the search, with a lower maximum load, so that the generator's
limit does not look like loss. The library's search is made several times (passes), because the speed of a shared
machine changes in steps of seconds, and the loads that one pass decides in them stay decided.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.common import units
from labkit.common.errors import Unsupported
from labkit.measure.experiments.throughput_search.constant_loss import Comparison, ConstantLoss
from labkit.measure.traffic.base import Trial

REPEATS = 6
RESTARTS = 4
REACHED = 0.97  # share of the requested rate: below it, the maximum load is lowered
FEW_LOST = 0.001  # share of the frames that a disturbance alone may lose
MIN_SPAN = 1.05  # ratio of the maximum to the minimum load
MIN_RANGE = 2.0  # the same, where the generator's limit has lowered the maximum: a smaller range shows this limit only
NO_LIMIT_S = 1e9
TIME_UP = "time is up"
# of the trials that show whether the loss is the same at every load, beyond a search's limit
LONGEST_S = 10.0


@dataclass(frozen=True)
class Settings:
    """How a search decides (RFC 9971).

    A load is a lower bound if, over `sum_s` seconds of trials of `trial_s`, at most the share `exceed_ratio` lost more
    than the goal. Bounds are at most `width` apart, relative to the upper one. `preceding`: number of coarser searches
    before. `passes`: the rate is the mean of so many complete searches, or of those that fit into the time.
    """

    trial_s: float
    sum_s: float
    exceed_ratio: float
    width: float
    preceding: int = 2
    passes: int = 1


# `mlrsearch`: short trials of which half may fail, for noisy machines; on this project's machine a single pass spreads
# by 7 to 25 %, a binary search by 57 to 70 %. `rfc2544`: one trial of 60 s without loss (sections 24, 26.1).
PRESETS = {
    "mlrsearch": Settings(trial_s=0.2, sum_s=2.1, exceed_ratio=0.5, width=0.05, passes=5),
    "rfc2544": Settings(trial_s=60.0, sum_s=60.0, exceed_ratio=0.0, width=0.01, preceding=0),
}


@dataclass(frozen=True)
class FoundRate:
    """The result for one loss ratio: the rate and its bounds; None for a missing bound. `passes_pps`: the rates of the
    passes. `open_count`: passes without a rate or without an upper bound. `constant_loss`: more than the goal is lost
    at every load, so there is no rate. `frames_missing_count`: how many more frames would tell whether that is so.
    """

    loss_ratio: float
    rate_pps: float | None
    lower_pps: float | None
    upper_pps: float | None
    passes_pps: tuple[float | None, ...] = ()
    open_count: int = 0
    constant_loss: ConstantLoss | None = None
    frames_missing_count: int = 0


@dataclass(frozen=True)
class Result:
    """A search. `max_pps`: the greatest load tried. `problem`: why it ended early, or None; `limited`: because the
    generator reached no load. `left_out_count`: later passes in which it reached none."""

    bounds: list[FoundRate]
    max_pps: float
    trials_count: int
    repeated_count: int
    disturbed_count: int
    took_s: float
    problem: str | None = None
    limited: bool = False
    left_out_count: int = 0


# One attempt at a rate for a time: the trial, and why it is invalid, or None.
Measure = Callable[[float, float], tuple[Trial, str | None]]
# How long a trial at a rate lasts that was to last for a time.
Duration = Callable[[float, float], float]


class _Limited(Exception):
    """The generator cannot offer a load."""

    def __init__(self, reached_pps: float) -> None:
        self.reached_pps = reached_pps


class _TimeUp(RuntimeError):
    """Another trial would end too late."""


def search(
    measure: Measure,
    settings: Settings,
    losses: Sequence[float],
    min_pps: float,
    max_pps: float,
    limit_s: float,
    lasts: Duration = lambda _rate_pps, duration_s: duration_s,
) -> Result:
    """Search the greatest rates with at most these loss ratios, between two loads, within `limit_s`.

    The limit includes everything: repeated trials, restarts, and what a trial takes besides its load. A rate without an
    upper bound is not the device's limit: the generator offers no more. Raises Unsupported without the library, and
    what `measure` raises.
    """
    begun = time.monotonic()
    attempts = Attempts(measure, begun + limit_s, lasts)
    first, tried_pps, problem = _pass(attempts, settings, losses, min_pps, max_pps)
    passes, left_out, longest_s = [first], 0, time.monotonic() - begun
    while problem is None and len(passes) + left_out < settings.passes:
        before = time.monotonic()
        if before + longest_s > begun + limit_s:
            break
        later, reached_pps, words = _pass(attempts, settings, losses, min_pps, max_pps)
        if words is None:
            passes.append(later)
            tried_pps = max(tried_pps, reached_pps)
        elif words != TIME_UP:
            left_out += 1
        longest_s = max(longest_s, time.monotonic() - before)
    limited = problem not in (None, TIME_UP)
    if problem == TIME_UP:
        problem = f"the search did not end within {limit_s:.0f} s"
    attempts.prolong(max(LONGEST_S, settings.trial_s))
    return Result(
        [
            attempts.without_constant_loss(mean(one), min_pps, settings.trial_s)
            for one in zip(*passes, strict=True)
        ],
        tried_pps,
        attempts.trials_count,
        attempts.repeated_count,
        attempts.disturbed_count,
        time.monotonic() - begun,
        problem,
        limited,
        left_out,
    )


def mean(passes: Sequence[FoundRate]) -> FoundRate:
    """Return the result of several passes for one loss ratio: the geometric means of the rate and of both bounds.

    If a pass found no rate or no upper bound, a mean would hide that: then it is the pass in the middle.
    """
    rates = tuple(one.rate_pps for one in passes)
    if all(one.rate_pps and one.lower_pps and one.upper_pps for one in passes):
        rate, lower, upper = (
            math.exp(statistics.fmean(math.log(getattr(one, name)) for one in passes))
            for name in ("rate_pps", "lower_pps", "upper_pps")
        )
        return FoundRate(passes[0].loss_ratio, rate, lower, upper, rates)
    in_order = sorted(passes, key=lambda one: (one.rate_pps or 0.0, one.upper_pps is None))
    count = sum(not (one.rate_pps and one.upper_pps) for one in passes)
    return dataclasses.replace(in_order[(len(in_order) - 1) // 2], passes_pps=rates, open_count=count)


def _pass(
    attempts: Attempts, settings: Settings, losses: Sequence[float], min_pps: float, max_pps: float
) -> tuple[list[FoundRate], float, str | None]:
    """Search once; return the rates, the greatest load tried, and why the search ended early, or None."""
    known = [FoundRate(loss, None, None, None) for loss in losses]
    is_wide = max_pps >= MIN_RANGE * min_pps
    for _ in range(RESTARTS):
        max_pps = max(max_pps, min_pps * MIN_SPAN)
        one = _Search(attempts, settings, losses, min_pps, max_pps)
        try:
            return one.run(), max_pps, None
        except _TimeUp:
            return _joined(one.known(), known), max_pps, TIME_UP
        except _Limited as limit:
            known = _joined(one.known(), known)
            max_pps = limit.reached_pps * REACHED
            if is_wide and max_pps < MIN_RANGE * min_pps:
                break
    return [attempts.with_offered_lower_bound(one) for one in known], max_pps, attempts.limit()


def _joined(later: list[FoundRate], before: list[FoundRate]) -> list[FoundRate]:
    """Return the bounds of a search that has not ended, or else those of the search before its restart."""
    result = []
    for new, old in zip(later, before, strict=True):
        lower, upper = new.lower_pps or old.lower_pps, new.upper_pps or old.upper_pps
        if lower and upper and lower >= upper:
            lower, upper = new.lower_pps, new.upper_pps
        result.append(FoundRate(new.loss_ratio, None, lower, upper))
    return result


class _Search:
    """One search between two loads."""

    def __init__(
        self, attempts: Attempts, settings: Settings, losses: Sequence[float], min_pps: float, max_pps: float
    ) -> None:
        try:  # which takes 60 ms, and other experiments need none
            from MLRsearch import Config, MultipleLossRatioSearch, SearchGoal
        except ImportError:
            raise Unsupported("a search needs the Python package MLRsearch: install it") from None
        self._attempts, self._losses = attempts, losses
        self._goals = [
            SearchGoal(
                loss_ratio=loss,
                exceed_ratio=settings.exceed_ratio,
                relative_width=settings.width,
                initial_trial_duration=settings.trial_s,
                final_trial_duration=settings.trial_s,
                duration_sum=settings.sum_s,
                preceding_targets=settings.preceding,
                fail_fast=False,
            )
            for loss in losses
        ]
        config = Config()
        config.goals = self._goals
        config.min_load = min_pps  # set first: a maximum load below the default minimum is refused
        config.max_load = max_pps
        # `attempts` knows the limit better: the library tries no clock before its first four trials have ended.
        config.search_duration_max = NO_LIMIT_S
        # the first trial at the maximum load is discarded
        config.warmup_duration = min(settings.trial_s, 1.0)
        self._search = MultipleLossRatioSearch(config=config)

    def run(self) -> list[FoundRate]:
        """Return the rates. Raises _TimeUp, _Limited, and what `measure` raises."""
        results = self._search.search(_measurer(self._attempts), debug=lambda _text: None)
        return [
            FoundRate(
                loss,
                _float(results[goal].conditional_throughput),
                _float(results[goal].relevant_lower_bound),
                _float(results[goal].relevant_upper_bound),
            )
            for loss, goal in zip(self._losses, self._goals, strict=True)
        ]

    def known(self) -> list[FoundRate]:
        """Return the bounds so far."""
        search, bounds_by_loss = self._search, []
        for loss, goal in zip(self._losses, self._goals, strict=True):
            bounds = search.database.get_relevant_bounds(target=search.scaling.goal_to_final_target[goal])
            bounds_by_loss.append(FoundRate(loss, None, _float(bounds.clo), _float(bounds.chi)))
        return bounds_by_loss


def _float(load: Any) -> float | None:
    return None if load is None else float(load)


def _measurer(attempts: Attempts) -> Any:
    from MLRsearch import AbstractMeasurer, MeasurementResult

    class Measurer(AbstractMeasurer):  # type: ignore[misc]
        """The measurer that the library calls."""

        def measure(self, intended_duration: float, intended_load: float) -> Any:
            trial = attempts.trial(intended_load, intended_duration)
            # The library's own loss ratio would count frames that were not offered as lost.
            return MeasurementResult(
                intended_duration=intended_duration,
                intended_load=intended_load,
                offered_count=trial.offered_count,
                forwarding_count=trial.offered_count - trial.lost_count,
                intended_count=trial.offered_count,
                # The library sums durations until they suffice: waiting and repeats must not count.
                duration_with_overheads=intended_duration,
            )

    return Measurer()


class Attempts:
    """Trials that are repeated while the machine disturbs them, until a deadline.

    Repeating only disturbed trials biases a search upwards, so repeats are counted and reported. `disturbed_count`:
    trials that stayed disturbed after all repeats.
    """

    def __init__(self, measure: Measure, deadline: float, lasts: Duration) -> None:
        self.trials_count = self.repeated_count = self.disturbed_count = 0
        self._measure, self._deadline, self._lasts = measure, deadline, lasts
        self._besides_s = 0.0  # what the last attempt took besides its load
        self._made: list[Trial] = []
        self._undisturbed: list[Trial] = []
        self._missed: list[tuple[float, Trial]] = []  # the load, and the best trial at it

    def trial(self, rate_pps: float, duration_s: float) -> Trial:
        """Return a trial. Raises _TimeUp before one that would end after the deadline, and _Limited."""
        best = lossless = None
        for number in range(REPEATS + 1):
            trial, disturbance = self._attempt(rate_pps, duration_s)
            self.repeated_count += number > 0
            if disturbance is None:
                return trial
            if best is None or trial.offered_pps > best.offered_pps:
                best = trial
            if not trial.lost_count and (lossless is None or trial.offered_pps > lossless.offered_pps):
                lossless = trial
        assert best is not None
        self.disturbed_count += 1
        # A few frames that one of the disturbed attempts lost say nothing about a load that none of them offered.
        if lossless is not None and best.loss_ratio < FEW_LOST and best.offered_pps < REACHED * rate_pps:
            self._missed.append((rate_pps, lossless))
            raise _Limited(lossless.offered_pps)
        return best

    def _attempt(self, rate_pps: float, duration_s: float) -> tuple[Trial, str | None]:
        begun = time.monotonic()
        lasts_s = self._lasts(rate_pps, duration_s)
        if begun + lasts_s + self._besides_s > self._deadline:
            raise _TimeUp
        self.trials_count += 1
        result = self._measure(rate_pps, duration_s)
        self._besides_s = max(0.0, time.monotonic() - begun - lasts_s)
        self._made.append(result[0])
        if result[1] is None:
            self._undisturbed.append(result[0])
        return result

    def limit(self) -> str:
        """Return in words which loads the generator missed, and for how much of the time it was late."""
        rates, trials = zip(*self._missed, strict=True)
        late = sum(one.slip_s for one in trials) / sum(one.elapsed_s for one in trials)
        most, least = (units.si(rate, "pps") for rate in (max(rates), min(rates)))
        loads = f"every maximum load from {most} down to {least}" if most != least else f"the load of {most}"
        return f"the generator was late for {units.percent(late)} of the time and missed {loads}"

    def with_offered_lower_bound(self, known: FoundRate) -> FoundRate:
        """Return these bounds. A missing lower bound becomes the greatest rate that was offered with so little loss."""
        min_lossy_pps = known.upper_pps or math.inf
        fine = [
            one.offered_pps
            for one in self._made
            if one.loss_ratio <= known.loss_ratio and one.offered_pps < min_lossy_pps
        ]
        return dataclasses.replace(known, lower_pps=known.lower_pps or max(fine, default=None))

    def prolong(self, duration_s: float) -> None:
        """Allow trials for this many more seconds, even after the deadline."""
        self._deadline = max(self._deadline, time.monotonic() + duration_s + self._besides_s)

    def without_constant_loss(self, one: FoundRate, min_pps: float, trial_s: float) -> FoundRate:
        """Return a result, or one without a rate if the path loses more than the goal far below the rate, too.

        While there is time, it takes more trials there if the frames so far are too few to tell.
        """
        if (pps := one.lower_pps or one.upper_pps) is None:
            return one
        comparison = Comparison(self._undisturbed, pps, min_pps, one.loss_ratio)
        with contextlib.suppress(_TimeUp, _Limited):
            while count := comparison.frames_needed():
                left_s = self._deadline - time.monotonic() - self._besides_s
                self.trial(comparison.low_pps, max(trial_s, min(count / comparison.low_pps, left_s)))
                comparison = Comparison(self._undisturbed, pps, min_pps, one.loss_ratio)
        if (loss := comparison.loss()) is not None:
            return FoundRate(one.loss_ratio, None, None, loss.min_pps, constant_loss=loss)
        return dataclasses.replace(one, frames_missing_count=comparison.frames_needed())
