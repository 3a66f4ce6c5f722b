"""Slices: all arms have established flows, and one arm at a time sends for 100 ms, in random order.

Adjacent slices see similar background noise, and their ratio cancels it. On two shared virtual cores, slices find in
a minute a difference that rounds of two seconds do not find in an hour. The first 30 ms of a slice are not measured:
the sender's caches and the queues of the previous slice settle.

Which CPUs the two ends of a flow run on changes the ratio of two datapaths more than anything else: the kernel keeps a
placement for seconds or minutes, so a few rounds see an accidental mixture of placements. Therefore slices are blocks:
slice by slice the ends are bound to other CPUs, in every arm to the same ones, and all placements come equally often.
"""

import itertools
import operator
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.common import run_folder, schema
from labkit.common.errors import Failed
from labkit.measure.experiments import server_counters
from labkit.measure.experiments.built_arm import LocalArm
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import Measured
from labkit.measure.observers.counters.receive_counters import Receivers, receivers
from labkit.measure.traffic.base import FlowGenerator, Flows, LatencyGenerator, RequestGenerator
from labkit.system import machine

SLICE_S = 0.1
SETTLE_S = 0.03
# Programs in containers and guests get their signals by way of another process. How long they may take, and in which
# steps labkit looks.
SIGNAL_S, LOOK_S = 0.5, 0.01
# For the first data on every flow; more for each flow: 128 pairs take longer.
ESTABLISH_S, FLOW_ESTABLISH_S = 10.0, 0.1


NOT_SENDING = f"no data arrived at one of the servers for {SIGNAL_S:g} s after the flows went on"
LATE = (
    f"nothing arrived in the first {1e3 * SETTLE_S:.0f} ms of the slice, which it leaves out: if the path delays"
    " packets for so long, use whole runs (slices=0)"
)
STILL_SENDING = f"data still arrived {SIGNAL_S:g} s after the flows were held: the next slice has some of it"
Cpus = tuple[int, int]  # the CPU of a flow's client and that of its server
ONE_CPU, TWO_CPUS = schema.ENDS_ON


def establish_s(flows_count: int) -> float:
    """Return how long the flows of an arm may take until each has carried data: the CPUs start them in turn."""
    return ESTABLISH_S + FLOW_ESTABLISH_S * flows_count


class Sender:
    """An arm with its established flows and the counters of its receivers."""

    def __init__(self, built_arm: LocalArm, flows: Flows, counters: Receivers) -> None:
        self.built_arm = built_arm
        self.flows = flows
        self.counters = counters
        self.problem: str | None = None
        self._starts: list[str] = []  # doubts about how the flows started

    def establish(self) -> None:
        """Start the flows, wait until data arrives on each of them, and hold them. Raises Failed if data is late."""
        ready = server_counters.LocalServer(self.flows, self.counters)
        within_s = establish_s(len(self.counters.per_server()))
        self.flows.stage()
        try:
            self.flows.go()
            if not ready.carrying(within_s):
                self.built_arm.metered()  # raises Failed if a program that joins the ends has ended
                words = self.flows.early_end()
                late = f"not every flow of {self.built_arm.arm.label} carried data within {within_s:.0f} s"
                raise Failed(words or late)
            self._starts = ready.doubts
        finally:
            self.flows.hold()  # also if some flows failed: the others must not send beside other arms
        self._data_stops()

    def slice(self, number: int, placement: list[Cpus] | None = None) -> Measured:
        """Send for slice `number`, bound to `placement`; return its row: the counters of SETTLE_S to SLICE_S."""
        if placement is not None:
            self.flows.bind(placement)
        before = self.counters.per_server() if self._is_prompt else []
        self.flows.go()
        begun = self._data_arrives()
        end = time.monotonic() + SLICE_S
        time.sleep(SETTLE_S)
        is_late = self._is_prompt and self.counters.per_server() == before
        metered = self.built_arm.metered()
        seen = server_counters.window(
            self.counters, lambda until: time.sleep(max(0.01, until - time.monotonic())), end
        )
        joined = metered()
        self.flows.hold()
        doubts = [*self._starts, *([] if begun else [NOT_SENDING]), *([LATE] if is_late else [])]
        doubts += [] if self._data_stops() else [STILL_SENDING]
        self.problem = self.flows.early_end()
        return self.built_arm.measured(
            {
                "method": "slice",
                "slice": number,
                "placement": None if placement is None else ",".join(map(str, placement[0])),
                "sent_count": seen.sent_count,
                "fragments_count": seen.fragments_count,
                **seen.columns,
                **joined,
            },
            [*machine.stolen(seen.steal_s, seen.window_s), *doubts],
        )

    @property
    def _is_prompt(self) -> bool:
        """Whether all programs are in namespaces, and get their signals at once."""
        return all(end.runtime is None for end in self.built_arm.topology.ends)

    def _data_arrives(self) -> bool:
        """Wait until data has arrived at every server since now. Return whether that was in time."""
        return self._within_time(lambda begin, _before, now: all(map(operator.gt, now, begin)))

    def _data_stops(self) -> bool:
        """Wait until no more data arrives. Return whether that was in time."""
        return self._within_time(lambda _begin, before, now: now == before)

    def _within_time(self, holds: Callable[[list[int], list[int], list[int]], bool]) -> bool:
        """Look every LOOK_S, for at most SIGNAL_S, whether a condition holds of what each server had received at the
        beginning, when labkit looked before, and now. There is nothing to wait for if the programs are prompt.
        """
        if self._is_prompt:
            return True
        begin = now = self.counters.per_server()
        deadline = time.monotonic() + SIGNAL_S
        while time.monotonic() < deadline:
            time.sleep(LOOK_S)
            before, now = now, self.counters.per_server()
            if holds(begin, before, now):
                return True
        return False


def measure(
    parameters: DatapathParameters, built_arms: list[LocalArm], rng: random.Random, artefacts: Path
) -> list[Measured]:
    """Measure `parameters.slices` slices of every arm and return their rows.

    An arm whose flows fail gives one failed row, and no slices after it.
    """
    generator = parameters.load_generator
    assert isinstance(generator, FlowGenerator)  # Generator.check: slices need one that can be held
    rows: list[Measured] = []
    with ExitStack() as stack:
        senders = []
        for one in built_arms:
            own = one.arm.parameters(parameters)
            counters = receivers(one.topology.pairs, own.protocol, own.datagram_bytes, own.direction)
            try:
                # Some sysctls act when a socket is made, others while it sends.
                with one.while_measured():
                    flows = stack.enter_context(
                        generator.flows(one.topology.pairs, own, emulated=one.emulated, endless=True)
                    )
                    sender = Sender(one, flows, counters)
                    sender.establish()
                senders.append(sender)
            except Failed as error:
                rows.append((one.arm, _failed_columns(str(error))))
        bound = placements(parameters, built_arms, rng)
        for number in range(parameters.slices):
            placement = next(bound)
            for sender in rng.sample(senders, len(senders)):
                try:
                    with sender.built_arm.while_measured():
                        rows.append(sender.slice(number, placement))
                except Failed as error:  # a program that joins the ends has ended
                    sender.problem = str(error)
                    sender.flows.hold()
                    rows.append((sender.built_arm.arm, {}))
                if sender.problem:
                    rows[-1] = (sender.built_arm.arm, _failed_columns(sender.problem) | {"slice": number})
                    senders.remove(sender)
        for sender in senders:
            _end(sender, artefacts)
    return rows


def ends_of_requests(
    parameters: DatapathParameters, built_arms: Sequence[LocalArm] = ()
) -> Sequence[str | None]:
    """Return where the ends of requests are in each round, one after the other: values of the column ends_on.

    A request wakes the other end. On one CPU a round trip took 5 µs, and between two CPUs 65 µs (Linux 6.18). A ratio
    of two datapaths differs as well, so a mean of both describes neither: each is a comparison of its own. A sender
    that keeps a rate has a CPU of its own. None: the scheduler chooses, or (of ping) only one end has a program.
    """
    requests = isinstance(parameters.load_generator, RequestGenerator)
    if not requests or not _places_round_trips(parameters, built_arms):
        return (None,)
    own = [parameters.with_change(one) for one in (None, *parameters.change)]
    return (ONE_CPU, TWO_CPUS) if all(one.rate_rps is None for one in own) else (TWO_CPUS,)


def place_round_trips(
    parameters: DatapathParameters, built_arms: list[LocalArm], seed: str, number: int, ends_on: str | None
) -> list[LocalArm]:
    """Return the arms with the ends of round trips on CPUs: in round `number` of all arms alike, others in the next.

    The scheduler would keep its choice for a whole run.
    """
    if not built_arms or not _places_round_trips(parameters, built_arms):
        return built_arms
    fitting = (
        cpus
        for cpus in placements(parameters, built_arms, random.Random(seed))
        if cpus is not None and ends_on in (None, _ends_on(cpus[0]))
    )
    cpus = next(itertools.islice(fitting, number, None))
    return [replace(one, cpus=cpus, ends_on=ends_on) for one in built_arms]


def _ends_on(cpus: Cpus) -> str:
    return ONE_CPU if cpus[0] == cpus[1] else TWO_CPUS


def _places_round_trips(parameters: DatapathParameters, built_arms: Sequence[LocalArm]) -> bool:
    """Return whether the load is round trips whose CPUs labkit chooses."""
    return isinstance(parameters.load_generator, LatencyGenerator) and _are_placed(parameters, built_arms)


def placements(
    parameters: DatapathParameters, built_arms: list[LocalArm], rng: random.Random
) -> Iterator[list[Cpus] | None]:
    """Yield for each slice the CPUs of every pair's client and server, or None: the scheduler chooses.

    With n CPUs there are n * n placements. A placement has a first CPU and a distance: the clients of the pairs have
    the CPUs from the first one on, in turn, and each server has the CPU at that distance from its client's. All
    placements come in random order before one comes again.
    """
    if not _are_placed(parameters, built_arms):
        while True:
            yield None
    cpus = sorted(os.sched_getaffinity(0))
    count = len(cpus)
    while True:
        for one in rng.sample(range(count * count), count * count):
            first, distance = divmod(one, count)
            clients = [first + number for number in range(len(built_arms[0].topology.pairs))]
            yield [(cpus[client % count], cpus[(client + distance) % count]) for client in clients]


def _are_placed(parameters: DatapathParameters, built_arms: Sequence[LocalArm]) -> bool:
    """Return whether labkit chooses the CPUs of programs, in all arms alike.

    Otherwise the scheduler does: with `placement=scheduler`, with one CPU, where an arm binds its programs itself, and
    where a program of any arm runs in a guest. Programs of round trips start on their CPUs. Flows are moved while they
    run, which excludes several threads and containers.
    """
    moved = not isinstance(parameters.load_generator, LatencyGenerator)
    kinds = {"namespace"} if moved else {"namespace", "container"}
    own = [parameters, *(one.arm.parameters(parameters) for one in built_arms)]
    ends = (end for one in built_arms for end in one.topology.ends)
    return (
        parameters.placement != "scheduler"
        and kinds.issuperset(parameters.endpoint)
        and len(os.sched_getaffinity(0)) > 1
        and not any(one.affinity or (moved and one.streams > 1) for one in own)
        and all(end.runtime is None or (not moved and end.kernel.is_here) for end in ends)
    )


def _failed_columns(reason: str) -> dict[str, Any]:
    return {"status": "failed", "reason": reason, "method": "slice"}


def _end(sender: Sender, artefacts: Path) -> None:
    """Interrupt the flows and write their raw reports as an artefact."""
    sender.flows.interrupt()
    pages, _interrupted = sender.flows.finish(time.monotonic() + 2)
    run_folder.write_artefact(artefacts / f"{sender.built_arm.arm.stem}-slices.json.gz", pages)
