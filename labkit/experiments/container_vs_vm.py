"""Containers against virtual machines: the experiment `datapaths` over kinds of ends, with several loads in a round.

Guests take their time to boot, so all arms of a round stand at once, and each load, in random order, is run between
the ends of every arm before they are taken down.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from labkit import records
from labkit.errors import BadInput
from labkit.experiments import arms, columns, datapaths, events, profiles, whole
from labkit.experiments import asked as usual
from labkit.experiments.asked import Datapaths
from labkit.experiments.columns import Arm
from labkit.experiments.datapaths import Point
from labkit.experiments.events import Event, Surroundings
from labkit.experiments.parameters import left_out
from labkit.traffic import registry

LOADS = ("udp:800", "tcp", "ping")
UNUSED = ("generator", "protocol", "length_bytes", "slices", "whole_runs", "half_width")

HELP = {
    **usual.HELP,
    "loads": "what is run between the ends, one after the other: udp:BYTES, tcp, ping, each with or without :BYTES",
    "topology": "what joins the ends, one",
    "generator": "say loads instead",
    "protocol": "say loads instead",
    "length_bytes": "say loads instead",
    "slices": "not used: loads are whole runs",
    "whole_runs": "not used: every round has whole runs",
    "half_width": "not used: all rounds are measured",
    "nodes": "not used: guests are of one host",
    "observe": f"{usual.HELP['observe']}; with the first load",
}


class ContainerVsVm(Datapaths, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths`, and the loads; HELP says what each is."""

    endpoint: tuple[str, ...] = ("namespace", "container", "guest", "shared_guest")
    protocol: str = "udp"
    loads: tuple[str, ...] = LOADS
    rounds: int = 3
    duration_s: int = 2
    profile_rounds: int = 3

    def check(self) -> None:
        """Raises BadInput in one sentence for what cannot be measured."""
        left_out(self, (*UNUSED, "nodes"), HELP)
        if len(self.topology) > 1:
            raise BadInput(
                f"topology={','.join(self.topology)}: kinds of ends are compared on one topology at a time"
            )
        if not self.loads or len(set(self.loads)) < len(self.loads):
            raise BadInput("loads needs at least one value, and none twice")
        super().check()
        for load in self.loads:
            self.of_load(load).check()

    def asdict(self) -> dict[str, Any]:
        """Names and values, as JSON has them, without those that nothing uses."""
        return {name: value for name, value in super().asdict().items() if name not in UNUSED}

    def of_load(self, load: str) -> Datapaths:
        """The parameters of `datapaths` for one load. Raises BadInput for what is none."""
        protocol, colon, size = load.partition(":")
        is_size = size.isascii() and size.isdigit() and len(size) < 7
        if protocol not in registry.PROTOCOLS or bool(colon) != is_size:
            raise BadInput(
                f"loads={load}: a load is {', '.join(registry.PROTOCOLS)}, each with or without :BYTES"
            )
        given = {name: getattr(self, name) for name in Datapaths.__struct_fields__}
        given |= {"protocol": protocol, "length_bytes": int(size) if colon else None}
        return Datapaths(**given)


def planned_s(asked: ContainerVsVm) -> float:
    """About how many seconds all of it takes."""
    usable = arms.planned(asked)
    rounds = sum(_round_s(asked, point, usable) for point in datapaths.points(asked, 0))
    return arms.survey_s(asked) + rounds + len(profiles.points(asked)) * profiles.planned_s(asked, usable)


def _round_s(asked: ContainerVsVm, point: Point, usable: list[Arm]) -> float:
    runs_s = len(asked.loads) * len(usable) * datapaths.whole_s(asked, point)
    return datapaths.set_up_s(point, usable) + runs_s


def run(asked: ContainerVsVm, around: Surroundings) -> Iterator[Event]:
    """Rows of every point that has none yet, with progress between."""
    done = around.done()
    profiles.check(asked)
    usable, refused = arms.survey(asked, around)
    profiles.check_built(asked)
    loads = [asked.of_load(load) for load in asked.loads]
    yield from arms.refused_rows(loads, around, refused, done)
    if not usable:
        return
    done -= arms.lacking(around, usable)
    left = [point for point in datapaths.points(asked, around.seed) if point.name not in done]
    observed = [point for point in profiles.points(asked) if point.name not in done]
    each_s, spent_s = [_round_s(asked, point, usable) for point in left], arms.survey_s(asked)
    total_s = spent_s + sum(each_s) + len(observed) * profiles.planned_s(asked, usable)
    for point, round_s in zip(left, each_s, strict=True):
        yield from _measured(asked, around, point, usable, (spent_s, total_s))
        spent_s += round_s
    yield from profiles.measure(loads[0], around, observed, usable, (spent_s, total_s))
    for pairs in asked.pairs:
        yield events.stopped(pairs, f"all {asked.rounds} rounds of {len(asked.loads)} loads were measured")


def _measured(
    asked: ContainerVsVm, around: Surroundings, point: Point, usable: list[Arm], spent_of: tuple[float, float]
) -> Iterator[Event]:
    """The rows of a round: all loads between the same ends."""
    spent_s, total_s = spent_of
    what = f"{point.pairs} pair{'s' * (point.pairs > 1)}, round {point.round + 1} of {asked.rounds}"
    rng = random.Random(f"{around.seed} {point.name}")
    rows: list[records.Row] = []
    yield events.progress(f"{what}: set-up", spent_s, total_s)
    with arms.built(asked, around, point.pairs, usable, rng) as (live, refused):
        spent_s += datapaths.set_up_s(point, usable)
        of = {one.arm.label: one for one in live}
        for load in rng.sample(asked.loads, len(asked.loads)):
            one_load, found = asked.of_load(load), list(refused)
            artefacts = around.folder / "artefacts" / f"{point.name}-{load.replace(':', '-')}"
            for label in columns.order(around, point.pairs, point.round, list(of)):
                yield events.progress(f"{what}, {load}: {label}", spent_s, total_s)
                found.append(whole.measure(one_load, of[label], artefacts))
                spent_s += datapaths.whole_s(asked, point)
            told = {"point": point.name, "round": point.round}
            rows += [
                columns.row_of(one_load, around, arm, point.pairs, told | metrics) for arm, metrics in found
            ]
    yield events.rows(point.name, rows)
