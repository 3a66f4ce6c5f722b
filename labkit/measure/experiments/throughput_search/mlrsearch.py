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
NO_LIMIT_S = 1e9


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


class _TimeUp(RuntimeError):
    """Another trial would end too late."""


def search(
    measure: Measure,
    settings: Settings,
    losses: Sequence[float],
    least_pps: float,
    most_pps: float,
    limit_s: float,
) -> Result:
    """Search the greatest rates with at most these loss ratios, between two loads, within `limit_s`.

    The limit includes everything: repeated trials, restarts, and what a trial takes besides its load. A rate without an
    upper bound is not the device's limit: the generator offers no more. Raises Unsupported without the library, and
    what `measure` raises.
    """
    begun = time.monotonic()
    attempts = Attempts(measure, begun + limit_s)
    known = [FoundRate(loss, None, None, None) for loss in losses]
    problem: str | None = f"the generator's own rate fell {RESTARTS} times during the search"
    for _ in range(RESTARTS):
        most_pps = max(most_pps, least_pps * MIN_SPAN)
        one = _Search(attempts, settings, losses, least_pps, most_pps)
        try:
            found, problem = one.run(), None
        except _TimeUp:
            found, problem = one.known(), f"the search did not end within {limit_s:.0f} s"
        except _Limited as limit:
            known = _joined(one.known(), known)
            most_pps = limit.reached_pps * REACHED
            continue
        known = found if problem is None else _joined(found, known)
        break
    took_s = time.monotonic() - begun
    return Result(
        known,
        most_pps,
        attempts.trials_count,
        attempts.repeated_count,
        attempts.disturbed_count,
        took_s,
        problem,
    )


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
        self,
        attempts: Attempts,
        settings: Settings,
        losses: Sequence[float],
        least_pps: float,
        most_pps: float,
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
        config.min_load = least_pps  # set first: a maximum load below the default minimum is refused
        config.max_load = most_pps
        # `attempts` knows the limit better: the library tries no clock before its first four trials have ended.
        config.search_duration_max = NO_LIMIT_S
        config.warmup_duration = min(
            settings.trial_s, 1.0
        )  # the first trial at the maximum load is discarded
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
        search, found = self._search, []
        for loss, goal in zip(self._losses, self._goals, strict=True):
            bounds = search.database.get_relevant_bounds(target=search.scaling.goal_to_final_target[goal])
            found.append(FoundRate(loss, None, _float(bounds.clo), _float(bounds.chi)))
        return found


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

    def __init__(self, measure: Measure, deadline: float) -> None:
        self.trials_count = self.repeated_count = self.disturbed_count = 0
        self._measure, self._deadline = measure, deadline
        self._besides_s = 0.0  # what the last attempt took besides its load

    def trial(self, rate_pps: float, duration_s: float) -> Trial:
        """Return a trial. Raises _TimeUp before one that would end after the deadline, and _Limited."""
        best: Trial | None = None
        for number in range(REPEATS + 1):
            trial, disturbance = self._attempt(rate_pps, duration_s)
            self.repeated_count += number > 0
            if disturbance is None:
                return trial
            if best is None or trial.offered_pps > best.offered_pps:
                best = trial
        assert best is not None
        self.disturbed_count += 1
        if not best.lost_count and best.offered_pps < REACHED * rate_pps:
            raise _Limited(best.offered_pps)
        return best

    def _attempt(self, rate_pps: float, duration_s: float) -> tuple[Trial, str | None]:
        begun = time.monotonic()
        if begun + duration_s + self._besides_s > self._deadline:
            raise _TimeUp
        self.trials_count += 1
        result = self._measure(rate_pps, duration_s)
        self._besides_s = max(0.0, time.monotonic() - begun - duration_s)
        return result
