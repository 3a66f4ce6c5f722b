"""The loop that every experiment shares: it measures all points in order, then the profiles.

An experiment describes its points and their loads in a `Plan`. This module does the rest: it surveys the arms, resumes
an unfinished run, reports progress, measures slices and whole runs, stops early, and returns the rows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.common import run_folder
from labkit.common.errors import Failed, Unsupported
from labkit.measure.experiments import context, profiled_runs, slices, survey
from labkit.measure.experiments import early_stop as stopping
from labkit.measure.experiments import rows as row_columns
from labkit.measure.experiments import whole_runs as whole
from labkit.measure.experiments.context import Event, Experiment, Progress, RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.profiled_runs import Profile
from labkit.measure.experiments.rows import Arm, Measured
from labkit.measure.experiments.two_hosts import client_side

UNOBSERVED = "unobserved"  # the point whose rows say why observers cannot be used


@dataclass(frozen=True)
class Load:
    """The traffic that runs between the endpoints of every arm of a point.

    `name` distinguishes the loads of one point; it is empty if there is only one. `whole_runs`: a whole run of every
    arm follows the slices.
    """

    parameters: DatapathParameters
    name: str = ""
    whole_runs: bool = True


@dataclass(frozen=True)
class MeasurementPoint:
    """One fresh set-up of all arms for one number of pairs. Its loads run in random order; progress shows `what`."""

    name: str
    pairs: int
    round: int
    loads: Sequence[Load]
    what: str


@dataclass(frozen=True)
class Plan:
    """What an experiment measures.

    `points` and `profiles` are in measuring order. `finished` is the stop reason of a number of pairs when all its
    points are measured. `early_stop`: before each point, decide whether its number of pairs needs no more points.
    An arm that cannot be measured gets one row for each of the parameters in `refused`, with `refused_columns` added.
    """

    parameters: DatapathParameters
    points: Sequence[MeasurementPoint]
    profiles: Sequence[Profile]
    refused: Sequence[DatapathParameters]
    finished: str
    early_stop: bool = False
    refused_columns: dict[str, Any] = field(default_factory=dict)


def experiment(
    parameters: type[DatapathParameters],
    help_texts: dict[str, str],
    plan: Callable[[Any, int], Plan],
    *,
    about: str = "",
    observers_may_lack: bool = False,
) -> Experiment:
    """Return the experiment that carries out `plan(parameters, seed)`; `help_texts` has one for each parameter, and
    `about` says what it measures.

    `observers_may_lack`: an observer that cannot be used on this machine gets a row with the reason, and all else is
    measured; otherwise such an observer ends the run before anything is measured.
    """

    def measure(values: Any, run_context: RunContext) -> Iterator[Event]:
        blind = profiled_runs.unusable(values) if observers_may_lack else {}
        usable = profiled_runs.without_observers(values, blind)
        return run(plan(usable, run_context.seed), run_context, blind)

    return Experiment(parameters, help_texts, measure, lambda values: planned_s(plan(values, 0)), about)


def planned_s(plan: Plan) -> float:
    """Estimate the duration of the whole plan in seconds."""
    usable = survey.planned_arms(plan.parameters)
    return survey.survey_s(plan.parameters) + _left_s(plan.points, plan.profiles, usable)


def _left_s(points: Sequence[MeasurementPoint], observed: Sequence[Profile], usable: list[Arm]) -> float:
    measured = sum(point_s(point, usable) for point in points)
    return measured + sum(profiled_runs.planned_s(one.parameters, usable) for one in observed)


def point_s(point: MeasurementPoint, usable: list[Arm]) -> float:
    """Estimate the duration of a point in seconds; the progress bar corrects it by the time really spent."""
    each = (_slices_s(point, load, len(usable)) + len(usable) * _whole_s(point, load) for load in point.loads)
    return _set_up_s(point, usable) + sum(each)


def _set_up_s(point: MeasurementPoint, usable: list[Arm]) -> float:
    return len(usable) * (0.05 + 0.01 * point.pairs) + survey.boots_s(usable)


def _slices_s(point: MeasurementPoint, load: Load, arms_count: int) -> float:
    """Estimate the duration of all slices of all arms in seconds."""
    each_s = load.parameters.slices * slices.SLICE_S + 0.1 + 0.02 * point.pairs
    return arms_count * each_s if load.parameters.slices else 0.0


def _whole_s(point: MeasurementPoint, load: Load) -> float:
    """Estimate the duration of a whole run of one arm in seconds; 0 if the load has no whole runs."""
    return (
        load.parameters.omit_s + load.parameters.duration_s + 0.3 + 0.02 * point.pairs
        if load.whole_runs
        else 0.0
    )


def run(plan: Plan, run_context: RunContext, blind: Mapping[str, str]) -> Iterator[Event]:
    """Measure every point that has no rows yet; yield rows, progress, and why the measuring stopped.

    `blind`: observers that cannot be used on this machine, with the reasons.
    """
    parameters, done = plan.parameters, run_context.done()
    profiled_runs.check(parameters)
    usable, refused = survey.survey(parameters, run_context)
    profiled_runs.check_built(parameters)
    refused = [(arm, metrics | plan.refused_columns) for arm, metrics in refused]
    yield from survey.refused_rows(plan.refused, run_context, refused, done)
    if not usable:
        return
    if blind and UNOBSERVED not in done:
        columns = {"point": UNOBSERVED, "method": profiled_runs.METHOD, "status": "unsupported"}
        each = [columns | {"observer": name, "reason": why} for name, why in blind.items()]
        first = usable[0], parameters.pairs[0]
        yield context.rows(
            UNOBSERVED, [row_columns.row_of(parameters, run_context, *first, one) for one in each]
        )
    done -= survey.incomplete_points(run_context, usable)
    left = [point for point in plan.points if point.name not in done]
    observed = [one for one in plan.profiles if one.name not in done]
    begun_s = survey.survey_s(parameters)
    progress = Progress(begun_s + _left_s(left, observed, usable), begun_s)
    kept = [row for row in run_folder.read_rows(run_context.folder) if "arm" in row and row["point"] in done]
    history = stopping.History(parameters, kept if plan.early_stop else [])
    enough: dict[int, str] = {}
    for point in left:
        end_s = progress.done_s + point_s(point, usable)
        if plan.early_stop and (why := history.enough(point.pairs)):
            enough[point.pairs] = why
        if point.pairs not in enough:
            result: list[run_folder.Row] = []
            for stage, stage_s in _measure(plan, run_context, point, usable, result):
                yield progress.event(f"{point.what}: {stage}")
                progress.done_s += stage_s
            if plan.early_stop:
                history.add(result)
            yield context.rows(point.name, result)
        progress.done_s = end_s
    yield from profiled_runs.measure(run_context, observed, usable, progress)
    for pairs in parameters.pairs:
        yield context.stopped_event(pairs, enough.get(pairs) or plan.finished)


def _measure(
    plan: Plan,
    run_context: RunContext,
    point: MeasurementPoint,
    usable: list[Arm],
    rows: list[run_folder.Row],
) -> Iterator[tuple[str, float]]:
    """Measure one point and append its rows to `rows`; yield each stage as it begins, with its planned seconds."""
    yield "set-up", _set_up_s(point, usable)
    measured: list[tuple[Load, Measured]] = []
    yield from (_across if plan.parameters.has_remote_servers else _together)(
        plan, run_context, point, usable, measured
    )
    report = {"point": point.name, "round": point.round}
    for load, (arm, metrics) in measured:
        rows.append(row_columns.row_of(load.parameters, run_context, arm, point.pairs, report | metrics))


def _together(
    plan: Plan,
    run_context: RunContext,
    point: MeasurementPoint,
    usable: list[Arm],
    measured: list[tuple[Load, Measured]],
) -> Iterator[tuple[str, float]]:
    """Build all arms at once, run each load between the endpoints of every arm, and remove the arms."""
    rng = random.Random(f"{run_context.seed} {point.name}")
    built = point.loads[0].parameters if len(point.loads) == 1 else plan.parameters
    with survey.built(built, run_context, point.pairs, usable, rng) as (built_arms, refused):
        of = {one.arm.label: one for one in built_arms}
        order = rng.sample(point.loads, len(point.loads)) if len(point.loads) > 1 else point.loads
        for load in order:
            measured += [(load, one) for one in refused]
            artefacts = run_context.folder / "artefacts" / _artefact_folder(point, load)
            before = f"{load.name}, " if load.name else ""
            if load.parameters.slices and built_arms:
                yield f"{before}slices of {len(built_arms)} arms", _slices_s(point, load, len(built_arms))
                measured += [
                    (load, one) for one in slices.measure(load.parameters, built_arms, rng, artefacts)
                ]
            for label in (
                row_columns.order(run_context, point.pairs, point.round, list(of)) if load.whole_runs else ()
            ):
                yield f"{before}{label}", _whole_s(point, load)
                measured.append((load, whole.measure(load.parameters, of[label], artefacts)))


def _artefact_folder(point: MeasurementPoint, load: Load) -> str:
    return f"{point.name}-{re.sub('[:@]', '-', load.name)}" if load.name else point.name


def _across(
    plan: Plan,
    run_context: RunContext,
    point: MeasurementPoint,
    usable: list[Arm],
    measured: list[tuple[Load, Measured]],
) -> Iterator[tuple[str, float]]:
    """Build and measure one arm after the other across two hosts, because the arms share the two NICs."""
    assert run_context.peer is not None
    of = {arm.label: arm for arm in usable}
    for load in (one for one in point.loads if one.whole_runs):
        for label in row_columns.order(run_context, point.pairs, point.round, list(of)):
            yield label, _whole_s(point, load)
            try:
                with client_side.across(load.parameters, run_context, of[label], point.pairs) as one:
                    one.mark_as_replacement(load.parameters)
                    one.compare(run_context.peer.views[usable[0].topology])
                    artefacts = run_context.folder / "artefacts" / _artefact_folder(point, load)
                    measured.append((load, whole.measure(load.parameters, one, artefacts)))
            except (Failed, Unsupported) as error:
                failed = {"status": "failed", "reason": str(error), "method": "whole"}
                measured.append((load, (of[label], failed)))
