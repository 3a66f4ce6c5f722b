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

import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from labkit import hosts, records, topologies
from labkit.errors import BadInput
from labkit.experiments import arms, events, slices, stopping, whole
from labkit.experiments.events import Event, Surroundings
from labkit.experiments.parameters import Parameters, one_of, within
from labkit.traffic.iperf3 import Load

IP_AND_UDP = {4: 28, 6: 48}
LARGEST_DATAGRAM = 65507  # 65535 - 20 - 8
LEAST_MTU = {4: 68, 6: 1280}  # RFC 791, RFC 8200


HELP = {
    "where": "the kernel that it runs on: here, vm:KERNEL (a lab VM), or ssh:NAME",
    "topology": "what is compared; the first is the baseline",
    "protocol": "tcp, udp or ping (round-trip times, closed-loop)",
    "pairs": "numbers of pairs of endpoints that are loaded at the same time",
    "mtu_bytes": "of every endpoint's interface",
    "length_bytes": "of a write (TCP), datagram (UDP) or ping payload; none: iperf3's, or what fits the MTU",
    "rate_bps": "of each stream; none: as fast as it goes",
    "streams": "parallel streams of each pair",
    "duration_s": "of a whole run, without the warm-up",
    "omit_s": "warm-up that is left out of a whole run",
    "family": "4 or 6, the version of IP",
    "rounds": "fresh set-ups of all arms: 5 quick, 10 normal, 20 for publication",
    "slices": "slices of 100 ms of each arm in each round; 0: whole runs only",
    "whole_runs": "rounds that end with one whole run of each arm; none: every round",
    "half_width": "stop early, after 8 rounds or more, when every ratio is known to plus or minus this",
    "mss_bytes": "TCP maximum segment size; none: the path's",
    "congestion": "TCP congestion control; none: the kernel's default",
    "zerocopy": "iperf3 -Z",
    "affinity": "client's CPU, server's CPU: 0,1",
    "parent": "a NIC of this machine under macvlan and ipvlan; none: a veth made for it",
    "seed": "of every random order; none: drawn and recorded",
}


class Datapaths(Parameters, frozen=True, kw_only=True):
    """Parameters of the experiment; HELP says what each is."""

    where: str = "here"
    topology: tuple[str, ...] = ("veth_bridge",)
    protocol: str = "tcp"
    pairs: tuple[int, ...] = (1,)
    mtu_bytes: int = 1500
    length_bytes: int | None = None
    rate_bps: float | None = None
    streams: int = 1
    duration_s: int = 5
    omit_s: int = 1
    family: int = 4
    rounds: int = 1
    slices: int = 0
    whole_runs: int | None = None
    half_width: float = 0.02
    mss_bytes: int | None = None
    congestion: str | None = None
    zerocopy: bool = False
    affinity: str | None = None
    parent: str | None = None
    seed: int | None = None

    def check(self) -> None:
        """Raises BadInput in one sentence for what cannot be measured."""
        hosts.check(self.where)
        topologies.check_names(self.topology)
        for name, values in (("topology", self.topology), ("pairs", self.pairs)):
            if not values or len(set(values)) < len(values):
                raise BadInput(
                    f"{name} needs at least one value, and none twice;"
                    " the baseline's second measurement is added by itself"
                )
        one_of("protocol", self.protocol, ("tcp", "udp", "ping"))
        one_of("family", self.family, (4, 6))
        for pairs in self.pairs:
            within("pairs", pairs, 1, 500, "a Linux bridge has 1,023 ports")
        within("mtu_bytes", self.mtu_bytes, LEAST_MTU[self.family], 65535, f"what IPv{self.family} allows")
        within("rate_bps", self.rate_bps, 1e3, 1e12)
        within("streams", self.streams, 1, 128, "iperf3 takes no more")
        within("duration_s", self.duration_s, 1, 3600)
        within("omit_s", self.omit_s, 0, 60, "iperf3 takes no more")
        within("rounds", self.rounds, 1, 1000)
        within("slices", self.slices, 0, 1000)
        within("whole_runs", self.whole_runs, 0, self.rounds, "it counts rounds")
        within("half_width", self.half_width, 0, 1)
        within("seed", self.seed, 0, 2**31 - 1)
        within("mss_bytes", self.mss_bytes, 88, 65495)
        self._check_load()
        self._check_names()

    def _check_load(self) -> None:
        least, most = {"tcp": (1, 1 << 20), "udp": (16, LARGEST_DATAGRAM), "ping": (16, 65507)}[self.protocol]
        within(
            "length_bytes",
            self.length_bytes,
            least,
            most,
            f"what {self.protocol} by {'ping' if self.protocol == 'ping' else 'iperf3'} takes",
        )
        if self.slices and (self.protocol == "ping" or self.rate_bps is not None):
            raise BadInput(
                "slices measure senders that send as fast as they can: with ping or rate_bps say slices=0"
            )
        if not self.slices and self.whole_runs == 0:
            raise BadInput("slices=0 and whole_runs=0 leave nothing to measure")
        if self.protocol == "ping" and (self.rate_bps is not None or self.streams > 1):
            raise BadInput("ping takes neither rate_bps nor streams")

    def _check_names(self) -> None:
        # These go into argument lists: only what such a name can be.
        for name, value, form in (
            ("congestion", self.congestion, r"[a-z0-9_]{1,15}"),
            ("parent", self.parent, r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"),
            ("affinity", self.affinity, r"\d{1,4}(,\d{1,4})?"),
        ):
            if value is not None and not re.fullmatch(form, value):
                raise BadInput(f"{name}={value!r} is not of the form {form}")
        for cpu in self.affinity.split(",") if self.affinity else []:
            if int(cpu) not in os.sched_getaffinity(0):
                raise BadInput(
                    f"affinity={self.affinity}: there is no CPU {cpu}; there are {sorted(os.sched_getaffinity(0))}"
                )
        if self.parent is not None:
            for name in self.topology:
                if not name.startswith(("macvlan", "ipvlan")):
                    raise BadInput(f"parent={self.parent}: {name} has no parent; macvlan and ipvlan have")

    @property
    def datagram_bytes(self) -> int:
        """The payload of a UDP datagram: as asked, else the largest that is not fragmented."""
        return self.length_bytes or min(self.mtu_bytes - IP_AND_UDP[self.family], LARGEST_DATAGRAM)

    def load(self) -> Load:
        """What iperf3 is asked for."""
        names = (
            "protocol",
            "rate_bps",
            "streams",
            "duration_s",
            "omit_s",
            "mss_bytes",
            "congestion",
            "zerocopy",
            "affinity",
        )
        length = self.datagram_bytes if self.protocol == "udp" else self.length_bytes
        return Load(**{name: getattr(self, name) for name in names}, length_bytes=length)

    def spec(self, pairs: int, machine_netns: int | None) -> topologies.Spec:
        """What a topology is asked for."""
        return topologies.Spec(pairs, self.mtu_bytes, self.family, self.parent, machine_netns)


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


def set_up_s(point: Point, arms_count: int) -> float:
    """About how many seconds it takes to build that many arms."""
    return arms_count * (0.05 + 0.01 * point.pairs)


def slices_s(asked: Datapaths, point: Point, arms_count: int) -> float:
    """About how many seconds all slices of a point take."""
    return arms_count * (asked.slices * slices.SLICE_S + 0.1 + 0.02 * point.pairs) if asked.slices else 0.0


def whole_s(asked: Datapaths, point: Point) -> float:
    """About how many seconds a whole run of one arm takes; 0 in a round that has none."""
    return asked.omit_s + asked.duration_s + 0.3 + 0.02 * point.pairs if is_whole(asked, point) else 0.0


def planned_s(asked: Datapaths, point: Point, arms_count: int) -> float:
    """About how many seconds a point takes; the progress bar corrects it by what was seen."""
    wholes = arms_count * whole_s(asked, point)
    return set_up_s(point, arms_count) + slices_s(asked, point, arms_count) + wholes


def run(asked: Datapaths, around: Surroundings) -> Iterator[Event]:
    """Rows of every point that has none yet, with progress between, and why it stopped."""
    done = records.finished_points(around.folder)
    left = [point for point in points(asked, around.seed) if point.name not in done]
    usable, refused = arms.survey(asked, around)
    for pairs in asked.pairs:
        name = f"{pairs}-refused"
        if refused and name not in done:
            yield events.rows(
                name, [arms.row_of(asked, around, arm, pairs, metrics) for arm, metrics in refused]
            )
    if not usable:
        return
    total = sum(planned_s(asked, point, len(usable)) for point in left)
    spent = 0.0
    history = stopping.History(asked, records.read_rows(around.folder))
    enough: dict[int, str] = {}
    for point in left:
        cost = planned_s(asked, point, len(usable))
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
    for pairs in asked.pairs:
        yield events.stopped(pairs, enough.get(pairs) or f"all {asked.rounds} rounds were measured")


def measure(
    asked: Datapaths, around: Surroundings, point: Point, usable: list[arms.Arm], found: list[records.Row]
) -> Iterator[tuple[str, float]]:
    """Measure one point, leaving the rows in `found`: yields each stage as it begins, with its planned
    seconds."""
    rng = random.Random(f"{around.seed} {point.name}")
    artefacts = around.folder / "artefacts" / point.name
    yield "set-up", set_up_s(point, len(usable))
    with arms.built(asked, around, point.pairs, usable, rng) as (live, refused):
        measured = list(refused)
        if asked.slices and live:
            yield f"slices of {len(live)} arms", slices_s(asked, point, len(live))
            measured += slices.measure(asked, live, rng, artefacts)
        if is_whole(asked, point):
            # A B B A: what comes first in one round comes last in the next
            order = sorted(live, key=lambda one: one.arm.label)
            random.Random(f"{around.seed} {point.pairs} {point.round // 2}").shuffle(order)
            for one in order[:: -1 if point.round % 2 else 1]:
                yield one.arm.label, whole_s(asked, point)
                measured.append(whole.measure(asked, one, artefacts))
    for arm, metrics in measured:
        found.append(
            arms.row_of(
                asked, around, arm, point.pairs, {"point": point.name, "round": point.round, **metrics}
            )
        )
