"""The one loop that measures: points in their order, each a fresh set-up of all arms, then rounds of profiles.

An experiment says in a `Plan` which points there are and which loads run at each; everything else is here: the survey
of arms, the resumption of a run, progress, slices, whole runs, the early stop, and the rows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit import records
from labkit.errors import Failed, Unsupported
from labkit.experiments import arms, columns, events, peer, profiles, slices, stopping, whole
from labkit.experiments.asked import Datapaths
from labkit.experiments.columns import Arm, Measured
from labkit.experiments.events import Event, Surroundings
from labkit.experiments.profiles import Profile


@dataclass(frozen=True)
class Load:
    """What is run between the ends of every arm of a point; `name` tells it from the other loads of the point, and is
    empty where there is one. `whole_runs`: it ends with a whole run of every arm."""

    asked: Datapaths
    name: str = ""
    whole_runs: bool = True


@dataclass(frozen=True)
class Point:
    """One fresh set-up of all arms for one number of pairs, its loads in random order; `what` names it in progress."""

    name: str
    pairs: int
    round: int
    loads: Sequence[Load]
    what: str


@dataclass(frozen=True)
class Plan:
    """What an experiment measures: `points` and `profiles` in their order, and why each number of pairs ends when all
    are measured (`finished`). `early_stop` is asked for a number of pairs before each of its points. `refused` are the
    parameters with which rows tell of arms that cannot be measured; `extra_rows` are of points that measure nothing."""

    asked: Datapaths
    points: Sequence[Point]
    profiles: Sequence[Profile]
    refused: Sequence[Datapaths]
    finished: str
    early_stop: bool = False
    refused_columns: dict[str, Any] = field(default_factory=dict)
    extra_rows: dict[str, list[records.Row]] = field(default_factory=dict)


def planned_s(plan: Plan) -> float:
    """About how many seconds all of it takes."""
    usable = arms.planned(plan.asked)
    return arms.survey_s(plan.asked) + _left_s(plan.points, plan.profiles, usable)


def _left_s(points: Sequence[Point], observed: Sequence[Profile], usable: list[Arm]) -> float:
    measured = sum(point_s(point, usable) for point in points)
    return measured + sum(profiles.planned_s(one.asked, usable) for one in observed)


def point_s(point: Point, usable: list[Arm]) -> float:
    """About how many seconds a point takes; the progress bar corrects it by what was seen."""
    each = (_slices_s(point, load, len(usable)) + len(usable) * _whole_s(point, load) for load in point.loads)
    return _set_up_s(point, usable) + sum(each)


def _set_up_s(point: Point, usable: list[Arm]) -> float:
    return len(usable) * (0.05 + 0.01 * point.pairs) + arms.boots_s(usable)


def _slices_s(point: Point, load: Load, arms_count: int) -> float:
    """Of all slices of all arms."""
    each_s = load.asked.slices * slices.SLICE_S + 0.1 + 0.02 * point.pairs
    return arms_count * each_s if load.asked.slices else 0.0


def _whole_s(point: Point, load: Load) -> float:
    """Of a whole run of one arm; 0 where there is none."""
    return load.asked.omit_s + load.asked.duration_s + 0.3 + 0.02 * point.pairs if load.whole_runs else 0.0


def run(plan: Plan, around: Surroundings) -> Iterator[Event]:
    """Rows of every point that has none yet, with progress between, and why it stopped."""
    asked, done = plan.asked, around.done()
    profiles.check(asked)
    usable, refused = arms.survey(asked, around)
    profiles.check_built(asked)
    refused = [(arm, metrics | plan.refused_columns) for arm, metrics in refused]
    yield from arms.refused_rows(plan.refused, around, refused, done)
    if not usable:
        return
    for name, rows in plan.extra_rows.items():
        if name not in done:
            unmeasured = [
                columns.row_of(asked, around, usable[0], asked.pairs[0], {"point": name, **one})
                for one in rows
            ]
            yield events.rows(name, unmeasured)
    done -= arms.lacking(around, usable)
    left = [point for point in plan.points if point.name not in done]
    observed = [one for one in plan.profiles if one.name not in done]
    spent_s = arms.survey_s(asked)
    total_s = spent_s + _left_s(left, observed, usable)
    kept = [row for row in records.read_rows(around.folder) if "arm" in row and row["point"] in done]
    history = stopping.History(asked, kept if plan.early_stop else [])
    enough: dict[int, str] = {}
    for point in left:
        if plan.early_stop and (why := history.enough(point.pairs)):
            enough[point.pairs] = why
        if point.pairs not in enough:
            found: list[records.Row] = []
            within_s = spent_s
            for stage, stage_s in _measure(plan, around, point, usable, found):
                yield events.progress(f"{point.what}: {stage}", within_s, total_s)
                within_s += stage_s
            if plan.early_stop:
                history.add(found)
            yield events.rows(point.name, found)
        spent_s += point_s(point, usable)
    yield from profiles.measure(around, observed, usable, (spent_s, total_s))
    for pairs in asked.pairs:
        yield events.stopped(pairs, enough.get(pairs) or plan.finished)


def _measure(
    plan: Plan, around: Surroundings, point: Point, usable: list[Arm], found: list[records.Row]
) -> Iterator[tuple[str, float]]:
    """Measure one point, leaving the rows in `found`: yields each stage as it begins, with its planned seconds."""
    yield "set-up", _set_up_s(point, usable)
    measured: list[tuple[Load, Measured]] = []
    yield from (_across if plan.asked.nodes == "two" else _together)(plan, around, point, usable, measured)
    told = {"point": point.name, "round": point.round}
    for load, (arm, metrics) in measured:
        found.append(columns.row_of(load.asked, around, arm, point.pairs, told | metrics))


def _together(
    plan: Plan, around: Surroundings, point: Point, usable: list[Arm], measured: list[tuple[Load, Measured]]
) -> Iterator[tuple[str, float]]:
    """All arms stand at once, and each load is run between the ends of every arm before they are taken down."""
    rng = random.Random(f"{around.seed} {point.name}")
    built = point.loads[0].asked if len(point.loads) == 1 else plan.asked
    with arms.built(built, around, point.pairs, usable, rng) as (live, refused):
        of = {one.arm.label: one for one in live}
        order = rng.sample(point.loads, len(point.loads)) if len(point.loads) > 1 else point.loads
        for load in order:
            measured += [(load, one) for one in refused]
            artefacts = around.folder / "artefacts" / _folder_of(point, load)
            before = f"{load.name}, " if load.name else ""
            if load.asked.slices and live:
                yield f"{before}slices of {len(live)} arms", _slices_s(point, load, len(live))
                measured += [(load, one) for one in slices.measure(load.asked, live, rng, artefacts)]
            for label in columns.order(around, point.pairs, point.round, list(of)) if load.whole_runs else ():
                yield f"{before}{label}", _whole_s(point, load)
                measured.append((load, whole.measure(load.asked, of[label], artefacts)))


def _folder_of(point: Point, load: Load) -> str:
    return f"{point.name}-{re.sub('[:@]', '-', load.name)}" if load.name else point.name


def _across(
    plan: Plan, around: Surroundings, point: Point, usable: list[Arm], measured: list[tuple[Load, Measured]]
) -> Iterator[tuple[str, float]]:
    """One arm after the other, each built afresh across two hosts: they share the two NICs."""
    assert around.peer is not None
    of = {arm.label: arm for arm in usable}
    for load in (one for one in point.loads if one.whole_runs):
        for label in columns.order(around, point.pairs, point.round, list(of)):
            yield label, _whole_s(point, load)
            try:
                with peer.across(load.asked, around, of[label], point.pairs) as one:
                    one.stands_in(load.asked)
                    one.compare(around.peer.looks[usable[0].topology])
                    artefacts = around.folder / "artefacts" / _folder_of(point, load)
                    measured.append((load, whole.measure(load.asked, one, artefacts)))
            except (Failed, Unsupported) as error:
                failed = {"status": "failed", "reason": str(error), "method": "whole"}
                measured.append((load, (of[label], failed)))
