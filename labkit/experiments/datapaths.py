"""Which datapath is faster, by how much: throughput or round-trip time of topologies, for any number of pairs
at once.

The question is Claassen's (Container Network Solutions, University of Amsterdam 2015): veth bridges, macvlan
and ipvlan, TCP and UDP, 1 to 128 pairs. All topologies are arms of one experiment, the first of them the
baseline, which is measured twice under two names (A/A control).

A **round** is one fresh set-up of all arms for one number of pairs. In it every arm is measured in `slices`
slices of 100 ms, one arm sending at a time, order random; and, in the first `whole_runs` rounds, by one whole
iperf3 (or ping) run of each arm.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from labkit import records
from labkit.errors import Failed, Unsupported
from labkit.experiments import arms, columns, events, peer, profiles, slices, stopping, whole
from labkit.experiments.asked import Datapaths
from labkit.experiments.events import Event, Surroundings
from labkit.units import many


@dataclass(frozen=True)
class Point:
    """One round for one number of pairs."""

    pairs: int
    round: int

    @property
    def name(self) -> str:
        """`8-r3`"""
        return f"{self.pairs}-r{self.round}"


def points(asked: Datapaths, seed: int) -> list[Point]:
    """All points in the order in which they are measured: round by round, the numbers of pairs shuffled in
    each."""
    order = []
    for number in range(asked.rounds):
        pairs = random.Random(f"{seed} {number}").sample(asked.pairs, len(asked.pairs))
        order += [Point(one, number) for one in pairs]
    return order


def is_whole(asked: Datapaths, point: Point) -> bool:
    """Whether the round of this point ends with whole runs."""
    return point.round < (asked.rounds if asked.whole_runs is None else asked.whole_runs)


def set_up_s(point: Point, usable: list[columns.Arm]) -> float:
    """About how many seconds it takes to build these arms."""
    return len(usable) * (0.05 + 0.01 * point.pairs) + arms.boots_s(usable)


def slices_s(asked: Datapaths, point: Point, arms_count: int) -> float:
    """About how many seconds all slices of a point take."""
    return arms_count * (asked.slices * slices.SLICE_S + 0.1 + 0.02 * point.pairs) if asked.slices else 0.0


def whole_s(asked: Datapaths, point: Point) -> float:
    """About how many seconds a whole run of one arm takes; 0 in a round that has none."""
    return asked.omit_s + asked.duration_s + 0.3 + 0.02 * point.pairs if is_whole(asked, point) else 0.0


def planned_s(asked: Datapaths, point: Point, usable: list[columns.Arm]) -> float:
    """About how many seconds a point takes; the progress bar corrects it by what was seen."""
    wholes = len(usable) * whole_s(asked, point)
    return set_up_s(point, usable) + slices_s(asked, point, len(usable)) + wholes


def whole_planned_s(asked: Datapaths) -> float:
    """About how many seconds all of it takes."""
    usable = arms.planned(asked)
    measured = sum(planned_s(asked, one, usable) for one in points(asked, 0))
    return arms.survey_s(asked) + measured + len(profiles.points(asked)) * profiles.planned_s(asked, usable)


def run(asked: Datapaths, around: Surroundings) -> Iterator[Event]:
    """Rows of every point that has none yet, with progress between, and why it stopped."""
    done = around.done()
    profiles.check(asked)
    usable, refused = arms.survey(asked, around)
    profiles.check_built(asked)
    yield from arms.refused_rows([asked], around, refused, done)
    if not usable:
        return
    done -= arms.lacking(around, usable)
    left = [point for point in points(asked, around.seed) if point.name not in done]
    observed = [point for point in profiles.points(asked) if point.name not in done]
    spent = arms.survey_s(asked)
    total = spent + sum(planned_s(asked, point, usable) for point in left)
    total += len(observed) * profiles.planned_s(asked, usable)
    kept = [row for row in records.read_rows(around.folder) if "arm" in row and row["point"] in done]
    history = stopping.History(asked, kept)
    enough: dict[int, str] = {}
    for point in left:
        cost = planned_s(asked, point, usable)
        enough |= {point.pairs: why} if (why := history.enough(point.pairs)) else {}
        if point.pairs not in enough:
            what = f"{point.pairs} pair{'s' if point.pairs > 1 else ''}, round {point.round + 1} of {asked.rounds}"
            found: list[records.Row] = []
            within_s = spent
            for stage, stage_s in measure(asked, around, point, usable, found):
                yield events.progress(f"{what}: {stage}", within_s, total)
                within_s += stage_s
            history.add(found)
            yield events.rows(point.name, found)
        spent += cost
    yield from profiles.measure(asked, around, observed, usable, (spent, total))
    for pairs in asked.pairs:
        yield events.stopped(pairs, enough.get(pairs) or f"all {many(asked.rounds, 'round')} were measured")


def measure(
    asked: Datapaths, around: Surroundings, point: Point, usable: list[columns.Arm], found: list[records.Row]
) -> Iterator[tuple[str, float]]:
    """Measure one point, leaving the rows in `found`: yields each stage as it begins, with its planned
    seconds."""
    yield "set-up", set_up_s(point, usable)
    measured: list[columns.Measured] = []
    yield from (_across if asked.nodes == "two" else _together)(asked, around, point, usable, measured)
    for arm, metrics in measured:
        found.append(
            columns.row_of(
                asked, around, arm, point.pairs, {"point": point.name, "round": point.round, **metrics}
            )
        )


def _together(
    asked: Datapaths,
    around: Surroundings,
    point: Point,
    usable: list[columns.Arm],
    measured: list[columns.Measured],
) -> Iterator[tuple[str, float]]:
    """All arms stand at once."""
    rng = random.Random(f"{around.seed} {point.name}")
    artefacts = around.folder / "artefacts" / point.name
    with arms.built(asked, around, point.pairs, usable, rng) as (live, refused):
        measured += refused
        if asked.slices and live:
            yield f"slices of {len(live)} arms", slices_s(asked, point, len(live))
            measured += slices.measure(asked, live, rng, artefacts)
        if is_whole(asked, point):
            of = {one.arm.label: one for one in live}
            for label in columns.order(around, point.pairs, point.round, list(of)):
                yield label, whole_s(asked, point)
                measured.append(whole.measure(asked, of[label], artefacts))


def _across(
    asked: Datapaths,
    around: Surroundings,
    point: Point,
    usable: list[columns.Arm],
    measured: list[columns.Measured],
) -> Iterator[tuple[str, float]]:
    """One arm after the other, each built afresh across two hosts: they share the two NICs."""
    assert around.peer is not None
    of = {arm.label: arm for arm in usable}
    for label in columns.order(around, point.pairs, point.round, list(of)) if is_whole(asked, point) else []:
        yield label, whole_s(asked, point)
        try:
            with peer.across(asked, around, of[label], point.pairs) as one:
                one.stands_in(asked)
                one.compare(around.peer.looks[usable[0].topology])
                measured.append(whole.measure(asked, one, around.folder / "artefacts" / point.name))
        except (Failed, Unsupported) as error:
            measured.append((of[label], {"status": "failed", "reason": str(error), "method": "whole"}))
