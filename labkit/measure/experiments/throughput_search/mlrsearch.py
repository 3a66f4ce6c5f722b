"""The search for the rates at which loss begins: MLRsearch (RFC 9971) by the library of that name.

The library sees rates and loss ratios alone. What it measures is a `Measure`: an attempt that the machine disturbed is
repeated, and a load that the generator cannot offer ends the search with a lower greatest load, so that no limit of the
generator is taken for loss of the device.
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
REACHED = 0.97  # of the asked rate: less, and the greatest load is lowered
LEAST_SPAN = 1.05  # between the least and the greatest load


@dataclass(frozen=True)
class Settings:
    """How a search decides (RFC 9971). A load is a lower bound when, over `sum_s` seconds of trials of `trial_s`, no
    more than `exceed_ratio` of them lost more than the goal; bounds are at most `width` apart (of the upper one).
    `preceding`: coarser searches that go ahead."""

    trial_s: float
    sum_s: float
    exceed_ratio: float
    width: float
    preceding: int = 2


# `mlrsearch`: short trials that may fail in half of the time, for noisy machines; on this project's it spread by 7 to
# 25 % where a binary search spread by 57 to 70 %. `rfc2544`: one trial of 60 s that loses nothing (section 24, 26.1).
PRESETS = {
    "mlrsearch": Settings(trial_s=0.2, sum_s=2.1, exceed_ratio=0.5, width=0.05),
    "rfc2544": Settings(trial_s=60.0, sum_s=60.0, exceed_ratio=0.0, width=0.01, preceding=0),
}


@dataclass(frozen=True)
class Found:
    """What a search found for one loss ratio: the rate, and the loads between which it lies; None where a bound is
    missing."""

    loss_ratio: float
    rate_pps: float | None
    lower_pps: float | None
    upper_pps: float | None


@dataclass(frozen=True)
class Result:
    """A search. `most_pps`: the greatest load that was tried. `problem`: why it did not end as it should, or None."""

    bounds: list[Found]
    most_pps: float
    trials_count: int
    repeated_count: int
    disturbed_count: int
    took_s: float
    problem: str | None = None


# One attempt at a rate and for a time: the trial, and why it says nothing about the device, or None.
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
    """The greatest rates with no more than these ratios of loss, between two loads.

    A rate without an upper bound is not the device's: the generator offers no more. Raises Unsupported without the
    library, and what `measure` raises.
    """
    begun = time.monotonic()
    counts = _Counts()
    for _ in range(RESTARTS):
        most_pps = max(most_pps, least_pps * LEAST_SPAN)
        left_s = max(1.0, limit_s - (time.monotonic() - begun))
        try:
            result, ended = _once(measure, settings, losses, least_pps, most_pps, left_s, counts)
            problem = None if ended else f"the search did not end within {limit_s:.0f} s"
            break
        except _Limited as limit:
            most_pps = limit.reached_pps * REACHED
    else:
        result = [Found(loss, None, None, None) for loss in losses]
        problem = f"the generator's own rate fell {RESTARTS} times while it was searched"
    took_s = time.monotonic() - begun
    return Result(result, most_pps, counts.trials, counts.repeated, counts.disturbed, took_s, problem)


@dataclass
class _Counts:
    trials: int = 0
    repeated: int = 0
    disturbed: int = 0  # stayed so after all repeats


def _once(
    measure: Measure,
    settings: Settings,
    losses: Sequence[float],
    least_pps: float,
    most_pps: float,
    limit_s: float,
    counts: _Counts,
) -> tuple[list[Found], bool]:
    """One search between two loads, and whether it ended in time."""
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
    config.min_load = least_pps  # first: a greatest load below the usual least one is refused
    config.max_load = most_pps
    config.search_duration_max = limit_s
    config.warmup_duration = min(settings.trial_s, 1.0)  # the first trial at the greatest load is thrown away
    one = MultipleLossRatioSearch(config=config)
    ended = True
    try:
        results = one.search(_measurer(measure, counts), debug=lambda _text: None)
        bounds = [(results[goal].relevant_lower_bound, results[goal].relevant_upper_bound) for goal in goals]
        rates = [results[goal].conditional_throughput for goal in goals]
    except RuntimeError:  # out of time: what it knows by then is not lost
        ended = False
        targets = [one.scaling.goal_to_final_target[goal] for goal in goals]
        known = [one.database.get_relevant_bounds(target=target) for target in targets]
        bounds, rates = [(each.clo, each.chi) for each in known], [None] * len(goals)
    return [
        Found(loss, _float(rate), _float(lower), _float(upper))
        for loss, rate, (lower, upper) in zip(losses, rates, bounds, strict=True)
    ], ended


def _float(load: Any) -> float | None:
    return None if load is None else float(load)


def _measurer(measure: Measure, counts: _Counts) -> Any:
    from MLRsearch import AbstractMeasurer, MeasurementResult

    class Measurer(AbstractMeasurer):  # type: ignore[misc]
        """What the library measures."""

        def measure(self, intended_duration: float, intended_load: float) -> Any:
            trial = attempts(measure, intended_load, intended_duration, counts)
            # Its loss ratio would add what was not sent: what the generator did not offer is no loss.
            return MeasurementResult(
                intended_duration=intended_duration,
                intended_load=intended_load,
                offered_count=trial.offered_count,
                forwarding_count=trial.offered_count - trial.lost_count,
                intended_count=trial.offered_count,
                # It sums these up until they are enough: waiting and repeats are no evidence.
                duration_with_overheads=intended_duration,
            )

    return Measurer()


def attempts(measure: Measure, rate_pps: float, duration_s: float, counts: _Counts) -> Trial:
    """A trial, repeated while the machine disturbs it. It only repeats bad ones, which biases a search upwards: so
    repeats are counted and reported."""
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
