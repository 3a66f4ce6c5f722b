"""Profiles: whole runs of every arm under each observer, one observer at a time, after the measured rounds.

Profiles never enter a comparison (METHOD.md, "Profiles"). In the same rounds every arm also runs without an observer,
so that each profile has the cost of its observer.
"""

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from labkit.common import run_folder, schema, units
from labkit.common.errors import LabkitError
from labkit.common.units import counted
from labkit.measure.endpoints import Namespace
from labkit.measure.experiments import rows as row_columns
from labkit.measure.experiments import slices, survey, whole_runs
from labkit.measure.experiments.built_arm import LocalArm
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.measuring_loop import OBSERVED, Point, Running, Stages
from labkit.measure.experiments.rows import Arm, Measured
from labkit.measure.experiments.whole_runs import Counting
from labkit.measure.observers.registry import TABLE
from labkit.measure.topologies.base import BETWEEN, end_name
from labkit.measure.traffic.base import FlowGenerator
from labkit.system import machine
from labkit.system.machine.load_programs import program_settings

ARMING_S = 1.0  # about how long an observer needs to arm and to report
MOST_BETWEEN = 6  # the largest number of namespaces between the ends whose settings are kept
FREED_S = 0.3  # after which the kernel has freed the BPF programs of an observer that has ended
DISTURBED = 0.85  # the least share of its throughput that a tracer must leave to a flow


@dataclass(frozen=True)
class Profile(Point):
    """One round of profiles for one number of pairs with one load; `prefix` tells it from those of other loads."""

    parameters: DatapathParameters
    prefix: str = ""

    @property
    def series(self) -> None:
        """None: an early stop of the comparison leaves no profile out."""

    def planned_s(self, usable: list[Arm]) -> float:
        parameters = self.parameters
        runs_s = (1 + len(parameters.observe)) * parameters.run_s
        each_s = (runs_s + len(parameters.observe) * ARMING_S) * len(slices.ends_of_requests(parameters))
        return survey.boots_s(usable) + len(usable) * (0.1 + each_s)

    def run(self, built_arm: LocalArm, artefacts: Path, counting: Counting | None, suffix: str) -> Measured:
        """Run the load once. What `counting` makes is open in the measured window; `suffix` is that of artefacts."""
        return whole_runs.measure(self.parameters, built_arm, artefacts, counting, suffix)

    def measure(self, running: Running) -> Stages:
        parameters, measured = self.parameters, list[Measured]()
        count = len(running.usable) * (1 + len(parameters.observe)) * len(slices.ends_of_requests(parameters))
        each_s = self.planned_s(running.usable) / count
        what = f"{counted(self.pairs, 'pair')}, profile {self.round + 1} of {parameters.profile_rounds}"
        what = f"{self.prefix}, {what}" if self.prefix else what
        for label, observer in self._measure(running, measured):
            yield f"{what}: {label}, {observer or 'not observed'}", each_s
        _report_overhead(parameters, measured)
        for one in measured:
            running.record(self, parameters, one)

    def _measure(self, running: Running, measured: list[Measured]) -> Iterator[tuple[str, str | None]]:
        """Append the rows to `measured`; yield each arm's label and its observer before."""
        parameters, run_context = self.parameters, running.run_context
        rng = running.rng(self)
        observers: list[str | None] = [None, *parameters.observe]
        with survey.built(parameters, run_context, self.pairs, running.usable, rng) as (built_arms, refused):
            measured += [
                (arm, {**metrics, "method": OBSERVED, "ends_on": where})
                for where in slices.ends_of_requests(parameters)
                for arm, metrics in refused
            ]
            bpf, ran = machine.bpf_settings(), list[Measured]()
            programs: dict[str, dict[str, dict[str, str]]] = {}  # by arm and namespace
            seed = f"{run_context.seed} {self.name}"
            for ends_on in slices.ends_of_requests(parameters, built_arms):
                placed = _with_moving_ends(parameters, built_arms, seed, ends_on)
                arm_by_label = {one.arm.label: one for one in placed}
                for observer in rng.sample(observers, len(observers)):
                    for arm in running.order(self, [one.arm for one in placed]):
                        yield arm.label, observer
                        one = arm_by_label[arm.label]
                        recording = _recording_programs(one, programs)
                        with one.while_measured():
                            ran.append(measure_observed(self, one, observer, run_context.folder, recording))
            # They are read after the load, because somebody may have changed them while it ran.
            bpf = _bpf_settings(bpf)
            settings_by_label = {
                one.arm.label: _settings(one, bpf, programs.get(one.arm.label, {}), run_context.folder)
                for one in built_arms
            }
            measured += [(arm, {**metrics, "settings": settings_by_label[arm.label]}) for arm, metrics in ran]


def profiles(
    parameters: DatapathParameters,
    loads: Callable[[str], Iterable[tuple[str, DatapathParameters]]],
    kind: type[Profile] = Profile,
) -> list[Profile]:
    """Return all profiles, round by round.

    `loads` returns the prefixes and parameters of the loads to observe, for the name of a profile without a prefix.
    `kind`: whose runs they are.
    """
    result = []
    for number in range(parameters.profile_rounds if parameters.observe else 0):
        for pairs in parameters.pairs:
            name = f"{pairs}-p{number}"
            for prefix, own in loads(name):
                result.append(kind(f"{prefix}-{name}" if prefix else name, pairs, number, own, prefix))
    return result


def _with_moving_ends(
    parameters: DatapathParameters, built_arms: list[LocalArm], seed: str, ends_on: str | None
) -> list[LocalArm]:
    """Return the arms with moving ends: in every run of the round to the same CPUs at the same times.

    Otherwise one arm's ends may share a CPU in most runs and another's not, and the profiles show that instead of the
    arms. Where slices would not be placed (`slices.placements`), the arms are returned as they are.
    """

    def turns() -> Iterator[list[slices.Cpus]]:
        return filter(None, slices.placements(parameters, built_arms, random.Random(seed)))

    if not built_arms or not isinstance(parameters.load_generator, FlowGenerator):
        return slices.place_round_trips(parameters, built_arms, seed, 0, ends_on)
    if next(slices.placements(parameters, built_arms, random.Random(seed))) is None:
        return built_arms
    return [replace(one, placements=turns) for one in built_arms]


def _bpf_settings(before: dict[str, str]) -> dict[str, str]:
    """Return the loaded BPF programs, without those of labkit's own observers. `before`: those before these ran."""
    now = machine.bpf_settings()
    if now == before:
        return now
    time.sleep(FREED_S)
    return machine.bpf_settings()


def _recording_programs(built_arm: LocalArm, programs: dict[str, dict[str, dict[str, str]]]) -> Counting:
    """Return a context that records the settings of the load's programs as the measured window begins, when all of
    them run."""

    @contextmanager
    def record() -> Iterator[None]:
        inodes = {os.fstat(space.fd).st_ino: name for name, space in _spaces(built_arm).items()}
        programs[built_arm.arm.label] = program_settings(inodes)
        yield

    return record


def _spaces(built_arm: LocalArm) -> dict[str, Namespace]:
    """Return the namespaces of the first pair and between the ends, by name."""
    pair = built_arm.topology.pairs[0]
    ends = {end.namespace.name for one in built_arm.pairs for end in (one.client, one.server)}
    between = [space for space in built_arm.topology.namespaces if space.name not in ends][:MOST_BETWEEN]
    named = {space.name: space for space in (pair.client.namespace, pair.server.namespace, *between)}
    if built_arm.topology.shown is None:
        return named
    # An existing network's have names of their own, and are compared with those of built ones by their roles.
    roles = (end_name(0), end_name(1), *(f"{BETWEEN}{number or ''}" for number in range(len(between))))
    return dict(zip(roles, named.values(), strict=True))


def _settings(
    built_arm: LocalArm, bpf: dict[str, str], programs: Mapping[str, dict[str, str]], folder: Path
) -> str:
    """Write the settings of an arm into the run's folder and return the name of the file.

    They are those of its namespaces with the programs in them, by name, and the machine's BPF programs. Arms with equal
    settings share one file.
    """
    result: dict[str, dict[str, str]] = {
        name: machine.namespace_settings(space.fd) | programs.get(name, {})
        for name, space in _spaces(built_arm).items()
    }
    result["machine"] = bpf
    name = Path(
        "artefacts", f"settings-{machine.digest(msgspec.json.encode(result, order='sorted'))}.json.gz"
    )
    if not (folder / name).exists():
        run_folder.write_artefact(folder / name, result)
    return str(name)


def measure_observed(
    point: Profile, built_arm: LocalArm, observer: str | None, folder: Path, recording: Counting = nullcontext
) -> Measured:
    """Measure one run of an arm under an observer, or without one (None): then `recording` is open in the window."""
    parameters, artefacts = point.parameters, folder / "artefacts" / point.name
    suffix = "-".join(["", *filter(None, [built_arm.ends_on]), observer or "not_observed"])
    own: dict[str, Any] = {"method": OBSERVED, "observer": observer, "ends_on": built_arm.ends_on}
    if built_arm.placements is not None:
        own["placement"] = "balanced"
    try:
        if observer is None:
            arm, metrics = point.run(built_arm, artefacts, recording, suffix)
            return arm, {**metrics, **own}
        with TABLE[observer].armed(
            built_arm.arm.parameters(parameters).load_parameters,
            built_arm.topology,
            artefacts / f"{built_arm.arm.stem}{suffix}",
        ) as watch:
            arm, metrics = point.run(built_arm, artefacts, watch.counting, suffix)
            report = watch.report()
    except LabkitError as error:
        # An observer that has nothing to observe at this arm has not failed: other arms of the run have it.
        reason = str(error) if observer is None else f"{observer}: {error}"
        return built_arm.arm, {**row_columns.not_measured(error), "reason": reason, **own}
    seen = {
        "observed": report.observed,
        "artefact": str(report.artefact.relative_to(folder)) if report.artefact else None,
        "lost_samples_count": report.lost_samples_count,
    }
    return arm, schema.with_doubts({**metrics, **own, **seen}, *report.doubts)


def _report_overhead(parameters: DatapathParameters, measured: list[Measured]) -> None:
    """Add to each row the share of the throughput (or ping rate) that its observer left to the arm in this round."""
    without = {
        (arm.label, metrics.get("ends_on")): _speed(parameters, metrics)
        for arm, metrics in measured
        if metrics.get("observer", "") is None
    }
    for arm, metrics in measured:
        speed, usual = _speed(parameters, metrics), without.get((arm.label, metrics.get("ends_on")))
        if metrics.get("observer") and speed and usual:
            left = metrics["overhead_ratio"] = speed / usual
            if TABLE[metrics["observer"]].disturbs and left < DISTURBED:
                share = units.percent(left)
                text = f"disturbed: {metrics['observer']} reduced the speed to {share}"
                metrics.update(schema.with_doubts(metrics, text))


def _speed(parameters: DatapathParameters, metrics: dict[str, Any]) -> float | None:
    can = parameters.load_generator.capabilities
    value = metrics.get(can.metric)  # a percentile is None if so many requests were lost
    if metrics.get("status") != "ok" or not value:
        return None
    return float(value if can.higher_is_better else 1 / value)
