"""A point that compares arms: a fresh set-up of all of them, between whose ends its loads run."""

import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from labkit.common import schema
from labkit.common.errors import Failed, LabkitError, Unsupported
from labkit.common.units import counted, duration
from labkit.measure.experiments import rows as row_columns
from labkit.measure.experiments import slices, survey, whole_runs
from labkit.measure.experiments.built_arm import BuiltArm, LocalArm
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.measuring_loop import Point, Running, Stages
from labkit.measure.experiments.rows import Arm, Measured

Record = Callable[[Measured], None]
# arms, and the failed rows of those that could not be built
Built = tuple[Sequence[BuiltArm], Sequence[Measured]]


@dataclass(frozen=True)
class Load:
    """The traffic that runs between the endpoints of every arm of a point, and what a trial of an arm is.

    `name` distinguishes the loads of one point; it is empty if there is only one. `ends_on`: where requests have their
    ends; None: a point chooses (`slices.ends_of_requests`). Here a trial is a whole run.
    """

    parameters: DatapathParameters
    name: str = ""
    ends_on: str | None = None

    method: ClassVar[str] = "whole"  # the column of a trial that failed
    keeps_rows: ClassVar[bool] = False  # each row as soon as it is there, because a trial takes long

    def columns(self, _arm: Arm) -> dict[str, Any]:
        """Return what all its rows of an arm share beside the parameters."""
        return {} if self.ends_on is None else {"ends_on": self.ends_on}

    def rows(self, measured: Measured) -> list[Measured]:
        """Return the rows of what was measured of an arm, or of why it was not."""
        arm, metrics = measured
        return [(arm, self.columns(arm) | metrics)]

    def has_trials(self, number: int) -> bool:
        """Return whether a trial of every arm follows the slices in round `number` (from 0)."""
        count = self.parameters.whole_runs
        return count is None or number < count

    def trial_s(self, pairs: int) -> float:
        """Estimate the duration of a trial of one arm in seconds."""
        return self.parameters.run_s + 0.02 * pairs

    def trial(self, built_arm: BuiltArm, artefacts: Path, record: Record) -> None:
        """Measure one arm and record its rows. A LabkitError becomes a row with the reason."""
        record(whole_runs.measure(self.parameters, built_arm, artefacts))


@dataclass(frozen=True)
class MeasurementPoint(Point):
    """One fresh set-up of all arms for one number of pairs. Its loads run in random order; progress shows `what`."""

    loads: Sequence[Load]
    what: str

    def arms(self, usable: list[Arm]) -> list[Arm]:
        return usable

    def planned_s(self, usable: list[Arm]) -> float:
        arms = self.arms(usable)
        each = [load for load in self._loads() if load.has_trials(self.round)]
        trials_s = sum(load.trial_s(self.pairs) for load in each)
        slices_s = sum(self._slices_s(load, len(arms)) for load in self.loads)
        return self._set_up_s(usable) + slices_s + len(arms) * trials_s

    def _loads(self, built_arms: Sequence[LocalArm] = ()) -> list[Load]:
        """Return the loads, those of requests for each place of their ends."""
        return [
            replace(load, ends_on=where)
            for load in self.loads
            for where in slices.ends_of_requests(load.parameters, built_arms)
        ]

    def _set_up_s(self, usable: list[Arm]) -> float:
        return len(usable) * (0.05 + 0.01 * self.pairs) + survey.boots_s(usable)

    def _slices_s(self, load: Load, arms_count: int) -> float:
        """Estimate the duration of all slices of all arms in seconds."""
        each_s = load.parameters.slices * slices.SLICE_S + 0.1 + 0.02 * self.pairs
        return arms_count * each_s if load.parameters.slices else 0.0

    def measure(self, running: Running) -> Stages:
        yield f"{self.what}: building {counted(len(running.usable), 'arm')}", self._set_up_s(running.usable)
        rng = running.rng(self)
        with self.built(running, rng) as (built_arms, refused):
            loads = self._loads(_local(built_arms))
            for load in rng.sample(loads, len(loads)) if len(loads) > 1 else loads:
                for one in refused:
                    self._record(running, load, one)
                yield from self._slices(running, load, built_arms, rng)
                if load.has_trials(self.round):
                    yield from self._trials(running, load, built_arms)

    @contextmanager
    def built(self, running: Running, rng: random.Random) -> Iterator[Built]:
        """Build all arms, except those across two hosts: they share the two NICs, so each is built for its trial."""
        parameters = self.loads[0].parameters if len(self.loads) == 1 else running.plan.parameters
        if parameters.has_remote_servers:
            yield [], []
            return
        with survey.built(parameters, running.run_context, self.pairs, running.usable, rng) as result:
            yield result

    def _slices(
        self, running: Running, load: Load, built_arms: Sequence[BuiltArm], rng: random.Random
    ) -> Stages:
        if not load.parameters.slices or not built_arms:
            return
        count, local = len(built_arms), _local(built_arms)
        each = f"{counted(load.parameters.slices, 'slice')} of {1e3 * slices.SLICE_S:.0f} ms"
        yield self._stage(load, f"{each} of each of {counted(count, 'arm')}"), self._slices_s(load, count)
        for one in slices.measure(load.parameters, local, rng, self._artefacts(running, load)):
            self._record(running, load, one)

    def _trials(self, running: Running, load: Load, built_arms: Sequence[BuiltArm]) -> Stages:
        """Measure one arm after the other; yield each label before."""
        of = {one.arm.label: one for one in built_arms}
        seed = f"{running.run_context.seed} {self.pairs}"
        placed = slices.place_round_trips(load.parameters, _local(built_arms), seed, self.round, load.ends_on)
        of |= {one.arm.label: one for one in placed}
        across = load.parameters.has_remote_servers
        for arm in running.order(self, running.usable if across else [one.arm for one in built_arms]):
            planned_s = load.trial_s(self.pairs)
            yield self._stage(load, f"{arm.label} for about {duration(planned_s)}"), planned_s
            try:
                with (
                    self._across(running, load, arm) if across else nullcontext(of[arm.label]) as one,
                    one.while_measured(),
                ):
                    record = functools.partial(self._record, running, load)
                    load.trial(one, self._artefacts(running, load), record)
            except LabkitError as error:
                self._record(running, load, (arm, {**row_columns.not_measured(error), "method": load.method}))

    @contextmanager
    def _across(self, running: Running, load: Load, arm: Arm) -> Iterator[BuiltArm]:
        from labkit.measure.experiments.two_hosts import client_side  # what only two hosts need

        run_context = running.run_context
        assert run_context.peer is not None
        with ExitStack() as stack:
            try:
                one = stack.enter_context(client_side.across(load.parameters, run_context, arm, self.pairs))
            except Unsupported as error:  # the survey could build it
                raise Failed(str(error)) from None
            one.mark_as_replacement(load.parameters)
            one.compare(run_context.peer.views[running.usable[0].topology])
            yield one

    def _stage(self, load: Load, what: str) -> str:
        words = [load.name, schema.ENDS_ON.get(load.ends_on or "", ""), what]
        return f"{self.what}: {', '.join(filter(None, words))}"

    def _artefacts(self, running: Running, load: Load) -> Path:
        return running.artefacts("-".join(filter(None, [self.name, re.sub("[:@]", "-", load.name)])))

    def _record(self, running: Running, load: Load, measured: Measured) -> None:
        for one in load.rows(measured):
            running.record(self, load.parameters, one, keep=load.keeps_rows)


def _local(built_arms: Sequence[BuiltArm]) -> list[LocalArm]:
    """Return the arms with both sides on this host."""
    return [one for one in built_arms if isinstance(one, LocalArm)]
