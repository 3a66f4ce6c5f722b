"""The loop that every experiment shares: it measures the points of a plan in their order.

An experiment describes its points in a `Plan`. This module does the rest: it surveys the arms, resumes an unfinished
run, reports progress, estimates durations, stops early, and returns the rows.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from labkit.common import run_folder
from labkit.common.errors import Unsupported
from labkit.measure.experiments import context, early_stop, survey
from labkit.measure.experiments import rows as row_columns
from labkit.measure.experiments.context import Event, Experiment, Progress, RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import Arm, Measured
from labkit.measure.observers.registry import TABLE

UNOBSERVED = "unobserved"  # the point whose rows say why observers cannot be used
OBSERVED = "profile"  # the method of rows that are measured under an observer, or beside those
Case = TypeVar("Case")
Stages = Iterator[tuple[str, float]]  # what is done next, in words, and about how many seconds it takes


@dataclass(frozen=True)
class Point(abc.ABC):
    """What has its rows in one file: measured as a whole, or else again when the run is resumed.

    `name`: of the file. `pairs`: how many send at once.
    """

    name: str
    pairs: int
    round: int

    needs_arms: ClassVar[bool] = True  # is measured only if the survey finds an arm

    @property
    def series(self) -> Hashable:
        """What it shares with the points that are left out if it is (`Running.stop`); None: it is always measured."""
        return self.pairs

    def measured_arms(self, usable: list[Arm]) -> list[Arm]:
        """Return the arms of which it has rows when it is complete."""
        return usable

    @abc.abstractmethod
    def planned_s(self, usable: list[Arm]) -> float:
        """Estimate its duration in seconds; the progress bar corrects it by the time really spent."""

    @abc.abstractmethod
    def measure(self, running: Running) -> Stages:
        """Measure it and give its rows to `running`; yield each stage as it begins."""


@dataclass
class Running:
    """What a point knows of its run, and where its rows go.

    `usable`: the arms that the survey found. `rows`: those of the point so far. `remembered`: those of other
    points that the plan remembers.
    """

    plan: Plan
    run_context: RunContext
    usable: list[Arm]
    remembered: list[run_folder.Row]
    rows: list[run_folder.Row] = field(default_factory=list)
    why_stopped: dict[int, str] = field(default_factory=dict)  # by number of pairs
    left_out: set[Hashable] = field(default_factory=set)
    _opened: tuple[Hashable, Any] = (None, None)
    _stack: ExitStack = field(default_factory=ExitStack)

    def rng(self, point: Point) -> random.Random:
        return random.Random(f"{self.run_context.seed} {point.name}")

    def order(self, point: Point, arms: Sequence[Arm]) -> list[Arm]:
        return balanced(arms, self.run_context.seed, point.pairs, point.round)

    def artefacts(self, name: str) -> Path:
        """Return the folder for a point's artefacts."""
        return self.run_context.folder / "artefacts" / name

    def record(
        self, point: Point, parameters: DatapathParameters, measured: Measured, *, keep: bool = False
    ) -> None:
        """Add a row to the point. `keep`: at once, so that a killed run has it (`RunContext.keep_unfinished`)."""
        arm, metrics = measured
        columns = {"point": point.name, "round": point.round, **self.plan.columns, **metrics}
        self.rows.append(row_columns.row_of(parameters, self.run_context, arm, point.pairs, columns))
        if keep:
            self.run_context.keep_unfinished(point.name, self.rows[-1:])

    def is_open(self, key: Hashable) -> bool:
        """Return whether `opened` has what has this key."""
        return self._opened[0] == key

    def opened(self, key: Hashable, make: Callable[[], AbstractContextManager[Any]]) -> Any:
        """Return what `make` opens. It stays open for the points that follow with the same key."""
        if not self.is_open(key):
            self.close()
            self._opened = (key, self._stack.enter_context(make()))
        return self._opened[1]

    def close(self) -> None:
        self._opened = (None, None)
        self._stack.close()

    def stop(self, point: Point, why: str) -> None:
        """Leave out the points of the same series that are not yet measured."""
        self.left_out.add(point.series)
        self.why_stopped[point.pairs] = why


@dataclass(frozen=True)
class Plan:
    """What an experiment measures.

    `points`: in measuring order, or a function that returns them for the arms that the survey found. `finished`: the
    stop reason of a number of pairs when all its points are measured. `early_stop`: before each point, decide whether
    its number of pairs needs no more points. `arms`: those that need no survey.
    An arm that cannot be measured gets one row for each of the parameters in `refused` (none: those of the plan), with
    `refused_columns` added. `columns`: of every row. `remembers`: chooses the rows that later points need.
    """

    parameters: DatapathParameters
    points: Sequence[Point] | Callable[[list[Arm]], Sequence[Point]]
    finished: str
    refused: Sequence[DatapathParameters] = ()
    early_stop: bool = False
    arms: Sequence[Arm] | None = None
    remembers: Callable[[run_folder.Row], bool] = lambda _row: False
    columns: Mapping[str, Any] = field(default_factory=dict)
    refused_columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def survey_s(self) -> float:
        """The estimated duration of the survey in seconds."""
        return survey.survey_s(self.parameters) if self.arms is None else 0.0

    def points_of(self, usable: list[Arm]) -> Sequence[Point]:
        return self.points(usable) if callable(self.points) else self.points

    @property
    def planned_s(self) -> float:
        """The estimated duration in seconds, as if all arms were usable."""
        usable = survey.planned_arms(self.parameters) if self.arms is None else list(self.arms)
        return self.survey_s + sum(point.planned_s(usable) for point in self.points_of(usable))


def shuffled(rounds: int, seed: int, cases: Sequence[Case]) -> Iterator[tuple[int, Case]]:
    """Yield the number of each round with every case, in a random order of that round."""
    for number in range(rounds):
        for case in random.Random(f"{seed} {number}").sample(cases, len(cases)):
            yield number, case


def balanced(arms: Sequence[Arm], seed: int, pairs: int, number: int) -> list[Arm]:
    """Return the arms of a round in a random order, A B B A: an arm that is first in one round is last in the next."""
    result = sorted(arms, key=lambda arm: arm.label)
    random.Random(f"{seed} {pairs} {number // 2}").shuffle(result)
    return result[:: -1 if number % 2 else 1]


def experiment(
    parameters: type[DatapathParameters],
    plan: Callable[[Any, int], Plan],
    *,
    about: str = "",
    observers_may_lack: bool = False,
) -> Experiment:
    """Return the experiment that carries out `plan(parameters, seed)`; `about` says what it measures.

    `observers_may_lack`: an observer that cannot be used on this machine gets a row with the reason, and all else is
    measured; otherwise such an observer ends the run before anything is measured.
    """

    def measure(values: Any, run_context: RunContext) -> Iterator[Event]:
        blind = _unusable_observers(values) if observers_may_lack else {}
        left = tuple(name for name in values.observe if name not in blind)
        return run(plan(msgspec.structs.replace(values, observe=left), run_context.seed), run_context, blind)

    return Experiment(parameters, measure, lambda values: plan(values, 0).planned_s, about)


def _unusable_observers(parameters: DatapathParameters) -> dict[str, str]:
    """Return the observers that cannot be used on this machine, each with the reason."""
    result = {}
    for name in parameters.observe:
        try:
            TABLE[name].check(parameters)
        except Unsupported as error:
            result[name] = str(error)
    return result


def run(plan: Plan, run_context: RunContext, blind: Mapping[str, str]) -> Iterator[Event]:
    """Measure every point that has no rows yet; yield rows, progress, and why the measuring stopped.

    `blind`: observers that cannot be used on this machine, with the reasons.
    """
    parameters, done = plan.parameters, run_context.done()
    usable = (yield from _surveyed(plan, run_context, blind, done)) if plan.arms is None else list(plan.arms)
    points = [one for one in plan.points_of(usable) if usable or not one.needs_arms]
    of_points = {one.name: one.measured_arms(usable) for one in points}
    done -= survey.incomplete_points(run_context, usable, of_points)
    left = [one for one in points if one.name not in done]
    progress = Progress(plan.survey_s + sum(one.planned_s(usable) for one in left), plan.survey_s)
    running = Running(plan, run_context, usable, [])
    history = early_stop.History(parameters, [], run_context.latency)
    for row in run_folder.read_rows(run_context.folder):
        if row["point"] in done:
            _remember([row], running, history)
    with ExitStack() as stack:
        stack.callback(running.close)
        for point in left:
            end_s = progress.done_s + point.planned_s(usable)
            enough = plan.early_stop and point.series is not None and history.enough(point.pairs)
            if enough:
                running.stop(point, enough)
            if point.series not in running.left_out:
                for what, stage_s in point.measure(running):
                    yield progress.event(what)
                    progress.done_s += stage_s
                rows, running.rows = running.rows, []
                _remember(rows, running, history)
                if rows:
                    yield context.rows(point.name, rows)
            progress.done_s = end_s
        for pairs in parameters.pairs if usable else ():
            if why := running.why_stopped.get(pairs) or plan.finished:
                yield {"event": "stopped", "pairs": pairs, "why": why}


def _remember(rows: list[run_folder.Row], running: Running, history: early_stop.History) -> None:
    """Keep what the next points and the early stop need."""
    running.remembered += filter(running.plan.remembers, rows)
    if running.plan.early_stop:
        history.add([row for row in rows if "arm" in row])


def _surveyed(
    plan: Plan, run_context: RunContext, blind: Mapping[str, str], done: Set[str]
) -> Generator[Event, None, list[Arm]]:
    """Return the arms that can be measured here; yield the rows that say why arms and observers cannot be used."""
    parameters = plan.parameters
    for name in parameters.observe:
        TABLE[name].check(parameters)
    usable, refused = survey.survey(parameters, run_context)
    for name in parameters.observe:  # building loads kernel modules with further functions
        TABLE[name].check_built(parameters)
    refused = [(arm, {**metrics, **plan.columns, **plan.refused_columns}) for arm, metrics in refused]
    yield from survey.refused_rows(plan.refused or [parameters], run_context, refused, done)
    if usable and blind and UNOBSERVED not in done:
        columns = {"point": UNOBSERVED, "method": OBSERVED, "status": "unsupported"}
        each = [columns | {"observer": name, "reason": why} for name, why in blind.items()]
        first = usable[0], parameters.pairs[0]
        yield context.rows(
            UNOBSERVED, [row_columns.row_of(parameters, run_context, *first, one) for one in each]
        )
    return usable
