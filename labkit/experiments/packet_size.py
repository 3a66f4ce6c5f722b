"""What a packet costs by its size: the experiment `datapaths` for datagrams of any number of sizes, which are measured
side by side.

A round measures every size, in random order, each with a fresh set-up of all arms; so a drift of the machine is not
taken for a cost of bytes, and every round gives a line of its own (`labkit.sizes`). So do rounds of profiles.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from labkit import records
from labkit.errors import BadInput, Unsupported
from labkit.experiments import arms, columns, datapaths, events, profiles
from labkit.experiments import asked as usual
from labkit.experiments.asked import Datapaths
from labkit.experiments.columns import Arm
from labkit.experiments.events import Event, Surroundings
from labkit.experiments.parameters import left_out, within
from labkit.traffic.iperf3 import LARGEST_DATAGRAM
from labkit.units import many

SIZES = (16, 64, 200, 400, 800, 1472, 1473, 4000, 16000, 65507)
UNOBSERVED = "unobserved"  # the point whose rows say why
UNUSED = ("half_width",)
LEAST = 16  # what iperf3 takes, and what a ping needs to tell its time

HELP = {
    **usual.HELP,
    "size_bytes": f"payloads of datagrams (udp) or pings, {LEAST} to {LARGEST_DATAGRAM}",
    "protocol": "udp, or ping (round-trip times, closed-loop)",
    "length_bytes": "left out: sizes are size_bytes",
    "half_width": "not used: all rounds are measured",
    "nodes": "not used: sizes are measured on one host",
    "observe": f"{usual.HELP['observe']}; what cannot be observed here is told, and sizes are measured all the same",
    "observe_bytes": "sizes at which is observed; none: all of size_bytes",
}


class PacketSize(Datapaths, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths`, and the sizes; HELP says what each is."""

    protocol: str = "udp"
    size_bytes: tuple[int, ...] = SIZES
    observe_bytes: tuple[int, ...] = ()
    rounds: int = 5
    slices: int = 4
    duration_s: int = 1

    def check(self) -> None:
        """Raises BadInput in one sentence for what cannot be measured."""
        if self.protocol == "tcp":
            raise BadInput(
                "protocol=tcp: TCP cuts a stream as it likes; sizes are of datagrams (udp) and of pings"
            )
        if self.length_bytes is not None:
            raise BadInput(f"length_bytes={self.length_bytes}: say size_bytes, which may be several")
        left_out(self, (*UNUSED, "nodes"), HELP)
        if not self.size_bytes:
            raise BadInput("size_bytes needs at least one value")
        for name, sizes in (("size_bytes", self.size_bytes), ("observe_bytes", self.observe_bytes)):
            if len(set(sizes)) < len(sizes):
                raise BadInput(f"{name} has a value twice: {', '.join(map(str, sizes))}")
            for size in sizes:
                within(
                    name, size, LEAST, LARGEST_DATAGRAM, "what a UDP datagram of iperf3's, or a ping, takes"
                )
        super().check()

    def asdict(self) -> dict[str, Any]:
        """Names and values, as JSON has them, without those that nothing uses."""
        return {name: value for name, value in super().asdict().items() if name not in UNUSED}

    def of_size(self, size_bytes: int) -> Datapaths:
        """The parameters of `datapaths` for one size."""
        given = {name: getattr(self, name) for name in Datapaths.__struct_fields__}
        return Datapaths(**given | {"length_bytes": size_bytes})


@dataclass(frozen=True)
class Point(datapaths.Point):
    """One size in one round for one number of pairs."""

    size_bytes: int

    @property
    def name(self) -> str:
        """`400b-8-r3`"""
        return f"{self.size_bytes}b-{super().name}"


@dataclass(frozen=True)
class Profile(profiles.Profile):
    """One size in one round of profiles for one number of pairs."""

    size_bytes: int

    @property
    def name(self) -> str:
        """`400b-8-p3`"""
        return f"{self.size_bytes}b-{super().name}"


def points(asked: PacketSize, seed: int) -> list[Point]:
    """All points in the order in which they are measured: round by round, everything shuffled in each."""
    rounds = (
        [(pairs, size) for pairs in asked.pairs for size in asked.size_bytes] for _ in range(asked.rounds)
    )
    return [
        Point(pairs, number, size)
        for number, all_of in enumerate(rounds)
        for pairs, size in random.Random(f"{seed} {number}").sample(all_of, len(all_of))
    ]


def profiles_of(asked: PacketSize, seed: int) -> list[Profile]:
    """All points of profiles likewise."""
    found = []
    for one in profiles.points(asked):
        wanted = asked.observe_bytes or asked.size_bytes
        sizes = random.Random(f"{seed} {one.name}").sample(wanted, len(wanted))
        found += [Profile(one.pairs, one.round, size) for size in sizes]
    return found


def planned_s(asked: PacketSize) -> float:
    """About how many seconds all of it takes."""
    return _planned_s(asked, points(asked, 0), profiles_of(asked, 0), arms.planned(asked))


def _planned_s(asked: PacketSize, left: list[Point], observed: list[Profile], usable: list[Arm]) -> float:
    measured = sum(datapaths.planned_s(asked, point, usable) for point in left)
    return arms.survey_s(asked) + measured + len(observed) * profiles.planned_s(asked, usable)


def run(asked: PacketSize, around: Surroundings) -> Iterator[Event]:
    """Rows of every point that has none yet, with progress between."""
    done, everything = around.done(), asked
    asked, blind = _observable(asked)
    usable, refused = arms.survey(asked, around)
    profiles.check_built(asked)
    refused = [(arm, metrics | {"length_bytes": None}) for arm, metrics in refused]
    yield from arms.refused_rows([asked], around, refused, done)
    if not usable:
        return
    if blind and UNOBSERVED not in done:
        unseen = {"point": UNOBSERVED, "method": profiles.METHOD, "status": "unsupported"}
        told = [{**unseen, "observer": name, "reason": why} for name, why in blind.items()]
        rows = [columns.row_of(asked, around, usable[0], asked.pairs[0], one) for one in told]
        yield events.rows(UNOBSERVED, rows)
    done -= arms.lacking(around, usable)
    left = [point for point in points(everything, around.seed) if point.name not in done]
    observed = [point for point in profiles_of(asked, around.seed) if point.name not in done]
    total_s, spent_s = _planned_s(asked, left, observed, usable), arms.survey_s(asked)
    for point in left:
        yield from _measured(asked, around, point, usable, (spent_s, total_s))
        spent_s += datapaths.planned_s(asked, point, usable)
    for profile in observed:
        of_size = asked.of_size(profile.size_bytes)
        for event in profiles.measure(of_size, around, [profile], usable, (spent_s, total_s)):
            if event["event"] == "progress":
                event["what"] = f"{profile.size_bytes} bytes, {event['what']}"
            yield event
        spent_s += profiles.planned_s(asked, usable)
    for pairs in asked.pairs:
        yield events.stopped(
            pairs, f"all {many(asked.rounds, 'round')} of {many(len(asked.size_bytes), 'size')} were measured"
        )


def _observable(asked: PacketSize) -> tuple[PacketSize, dict[str, str]]:
    """What is asked without the observers that this machine does not have, and why it does not have them."""
    blind = {}
    for name in asked.observe:
        try:
            profiles.check(msgspec.structs.replace(asked, observe=(name,)))
        except Unsupported as error:
            blind[name] = str(error)
    left = tuple(name for name in asked.observe if name not in blind)
    return msgspec.structs.replace(asked, observe=left), blind


def _measured(
    asked: PacketSize, around: Surroundings, point: Point, usable: list[Arm], spent_of: tuple[float, float]
) -> Iterator[Event]:
    spent_s, total_s = spent_of
    of_pairs = "" if len(asked.pairs) == 1 else f" for {point.pairs} pairs"
    what = f"{point.size_bytes} bytes{of_pairs}, round {point.round + 1} of {asked.rounds}"
    found: list[records.Row] = []
    of_size = asked.of_size(point.size_bytes)
    for stage, stage_s in datapaths.measure(of_size, around, point, usable, found):
        yield events.progress(f"{what}: {stage}", spent_s, total_s)
        spent_s += stage_s
    yield events.rows(point.name, found)
