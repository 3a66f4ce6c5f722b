"""The search for the rates at which loss begins: MLRsearch (RFC 9971), with the library of that name.

The library sees only rates and loss ratios. It measures with a `Measure`: an attempt that the machine disturbed is
repeated. A load that the generator cannot offer ends the search, with a lower maximum load, so that the generator's
limit does not look like loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.common.errors import Unsupported
from labkit.measure.traffic.base import Trial

REPEATS = 6
RESTARTS = 4
REACHED = 0.97  # share of the requested rate: below it, the maximum load is lowered
MIN_SPAN = 1.05  # ratio of the maximum to the minimum load


@dataclass(frozen=True)
class Settings:
    """How a search decides (RFC 9971).

    A load is a lower bound if, over `sum_s` seconds of trials of `trial_s`, at most the share `exceed_ratio` lost more
    than the goal. Bounds are at most `width` apart, relative to the upper one. `preceding`: number of coarser searches
    before.
    """

    trial_s: float
    sum_s: float
    exceed_ratio: float
    width: float
    preceding: int = 2


# `mlrsearch`: short trials of which half may fail, for noisy machines; on this project's machine its results spread by
# 7 to 25 %, those of a binary search by 57 to 70 %. `rfc2544`: one trial of 60 s without loss (sections 24, 26.1).
PRESETS = {
    "mlrsearch": Settings(trial_s=0.2, sum_s=2.1, exceed_ratio=0.5, width=0.05),
    "rfc2544": Settings(trial_s=60.0, sum_s=60.0, exceed_ratio=0.0, width=0.01, preceding=0),
}


@dataclass(frozen=True)
class FoundRate:
    """The result for one loss ratio: the rate and its bounds; None for a missing bound."""

    loss_ratio: float
    rate_pps: float | None
    lower_pps: float | None
    upper_pps: float | None


@dataclass(frozen=True)
class Result:
    """A search. `most_pps`: the greatest load tried. `problem`: why it ended early, or None."""

    bounds: list[FoundRate]
    most_pps: float
    trials_count: int
    repeated_count: int
    disturbed_count: int
    took_s: float
    problem: str | None = None


# One attempt at a rate for a time: the trial, and why it is invalid, or None.
Measure = Callable[[float, float], tuple[Trial, str | None]]


class _Limited(Exception):
    """The generator cannot offer a load."""

    def __init__(self, reached_pps: float) -> None:
        self.reached_pps = reached_pps


def search(
    measure: Measure,
    settings: Settings,
    losses: Sequence[float],
    least_pps: float,
    most_pps: float,
    limit_s: float,
) -> Result:
    """Search the greatest rates with at most these loss ratios, between two loads.

    A rate without an upper bound is not the device's limit: the generator offers no more. Raises Unsupported without
    the library, and what `measure` raises.
    """
    begun = time.monotonic()
    counts = _Counts()
    for _ in range(RESTARTS):
        most_pps = max(most_pps, least_pps * MIN_SPAN)
        left_s = max(1.0, limit_s - (time.monotonic() - begun))
        try:
            result, ended = _once(measure, settings, losses, least_pps, most_pps, left_s, counts)
            problem = None if ended else f"the search did not end within {limit_s:.0f} s"
            break
        except _Limited as limit:
            most_pps = limit.reached_pps * REACHED
    else:
        result = [FoundRate(loss, None, None, None) for loss in losses]
        problem = f"the generator's own rate fell {RESTARTS} times during the search"
    took_s = time.monotonic() - begun
    return Result(result, most_pps, counts.trials, counts.repeated, counts.disturbed, took_s, problem)


@dataclass
class _Counts:
    trials: int = 0
    repeated: int = 0
    disturbed: int = 0  # still disturbed after all repeats


def _once(
    measure: Measure,
    settings: Settings,
    losses: Sequence[float],
    least_pps: float,
    most_pps: float,
    limit_s: float,
    counts: _Counts,
) -> tuple[list[FoundRate], bool]:
    """Search once between two loads; return the rates and whether the search ended in time."""
    try:  # which takes 60 ms, and other experiments need none
        from MLRsearch import Config, MultipleLossRatioSearch, SearchGoal
    except ImportError:
        raise Unsupported("a search needs the Python package MLRsearch: install it") from None
    goals = [
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
    config.goals = goals
    config.min_load = least_pps  # set first: a maximum load below the default minimum is refused
    config.max_load = most_pps
    config.search_duration_max = limit_s
    config.warmup_duration = min(settings.trial_s, 1.0)  # the first trial at the maximum load is discarded
    one = MultipleLossRatioSearch(config=config)
    ended = True
    try:
        results = one.search(_measurer(measure, counts), debug=lambda _text: None)
        bounds = [(results[goal].relevant_lower_bound, results[goal].relevant_upper_bound) for goal in goals]
        rates = [results[goal].conditional_throughput for goal in goals]
    except RuntimeError:  # time is up: keep what it knows
        ended = False
        targets = [one.scaling.goal_to_final_target[goal] for goal in goals]
        known = [one.database.get_relevant_bounds(target=target) for target in targets]
        bounds, rates = [(each.clo, each.chi) for each in known], [None] * len(goals)
    return [
        FoundRate(loss, _float(rate), _float(lower), _float(upper))
        for loss, rate, (lower, upper) in zip(losses, rates, bounds, strict=True)
    ], ended


def _float(load: Any) -> float | None:
    return None if load is None else float(load)


def _measurer(measure: Measure, counts: _Counts) -> Any:
    from MLRsearch import AbstractMeasurer, MeasurementResult

    class Measurer(AbstractMeasurer):  # type: ignore[misc]
        """The measurer that the library calls."""

        def measure(self, intended_duration: float, intended_load: float) -> Any:
            trial = attempts(measure, intended_load, intended_duration, counts)
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


def attempts(measure: Measure, rate_pps: float, duration_s: float, counts: _Counts) -> Trial:
    """Run a trial and repeat it while the machine disturbs it.

    Repeating only disturbed trials biases a search upwards, so repeats are counted and reported.
    """
    best: Trial | None = None
    for attempt in range(REPEATS + 1):
        counts.trials += 1
        counts.repeated += attempt > 0
        trial, disturbance = measure(rate_pps, duration_s)
        if disturbance is None:
            return trial
        if best is None or trial.offered_pps > best.offered_pps:
            best = trial
    assert best is not None
    counts.disturbed += 1
    if not best.lost_count and best.offered_pps < REACHED * rate_pps:
        raise _Limited(best.offered_pps)
    return best
