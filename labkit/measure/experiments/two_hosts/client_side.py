"""The clients' side of two nodes: requests to the servers' host, and arms across both hosts.

Clocks are not compared: each side counts its own seconds, and requests order the steps.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from labkit.common import existing_names
from labkit.common.errors import Failed, Unsupported
from labkit.measure import topologies
from labkit.measure.endpoints import Kernel, RemotePair
from labkit.measure.experiments.built_arm import BuiltArm
from labkit.measure.experiments.context import Peer, RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import Arm
from labkit.measure.experiments.server_counters import ServerSide, Window
from labkit.measure.traffic import ping
from labkit.measure.traffic.base import Arrived, FlowGenerator, Flows, Page, TrialGenerator, Trials
from labkit.system import machine

if TYPE_CHECKING:
    from labkit.measure.traffic.packet_sender import Mix

CLOCK = 1.02  # ratio of the other host's clock to this one beyond which its time is doubted


class RemoteServer(ServerSide):
    """The servers of a run on the other host."""

    begun = 0.0

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        before = time.monotonic()
        peer.ask("times")
        self._way_s = time.monotonic() - before  # there and back
        self._used: dict[str, Any] = {}

    def idle(self) -> bool:
        return bool(self._peer.ask("idle"))

    def carrying(self, within_s: float) -> bool:
        return bool(self._peer.ask("carrying", within_s=within_s))

    def window(self, until: float) -> Window:
        """Count until `until`, minus the time of a request, so that the window ends before the first flow may end."""
        times, begun = machine.cpu_times(), time.monotonic()
        report = self._peer.ask("window", for_s=max(0.0, until - begun - self._way_s))
        passed_s, used = time.monotonic() - begun, machine.cpu_times() - times
        seen = msgspec.convert(report, Window)
        self._used = {f"peer_{name}": getattr(seen, name) for name in used.columns}
        seen = msgspec.structs.replace(seen, **used.columns)
        # The request takes time, so the other host may count less time than this one, but not more.
        if seen.window_s > CLOCK * passed_s:
            doubt = (
                f"the servers' host measured {seen.window_s:.2f} s and this host {passed_s:.2f} s: one"
                " clock is wrong"
            )
            seen = msgspec.structs.replace(seen, doubts=[*seen.doubts, doubt])
        return seen

    def pages(self) -> list[Page]:
        result: list[Page] = self._peer.ask("pages")
        return result

    def report(self) -> dict[str, Any]:
        return self._used


@dataclass(frozen=True)
class RemoteReceiving:
    """The receivers of a load on the other host."""

    peer: Peer
    names: Sequence[str]
    settle_s: float

    def learn(self) -> None:
        """Send a frame from each receiver, from which switches learn its port."""
        self.peer.ask("learn")

    def read(self) -> Arrived:
        """Return what has arrived since the receivers exist."""
        return msgspec.convert(self.peer.ask("arrived"), Arrived)


@dataclass(frozen=True, kw_only=True)
class Across(BuiltArm):
    """An arm with its clients on this host and its servers on the other."""

    peer: Peer
    pairs: Sequence[RemotePair]

    @contextmanager
    def serving(
        self, parameters: DatapathParameters, generator: FlowGenerator
    ) -> Iterator[tuple[Flows, ServerSide]]:
        self.peer.ask("listen")
        try:
            with generator.flows(self.pairs, parameters) as flows:
                yield flows, RemoteServer(self.peer)
        finally:
            self.peer.ask("stop_servers")

    @property
    def own_kernels(self) -> Sequence[Kernel]:
        return [] if existing_names.is_network(self.arm.topology) else self.namespaces

    @contextmanager
    def trials(self, generator: TrialGenerator, mix: Mix, _direction: str) -> Iterator[Trials]:
        names, settle_s = self.peer.ask("receive", mix=dataclasses.asdict(mix))
        try:
            receiving = RemoteReceiving(self.peer, names, settle_s)
            with generator.trials_to(self.pairs, mix, receiving) as trials:
                yield trials
        finally:
            self.peer.ask("stop_servers")

    def remote_cpu(self) -> Callable[[float], dict[str, Any]]:
        begun = self.peer.ask("times")

        def until_now(_window_s: float) -> dict[str, Any]:
            now = self.peer.ask("times")
            return {f"peer_{name}": now[name] - begun[name] for name in begun}

        return until_now


@contextmanager
def across(parameters: DatapathParameters, run_context: RunContext, arm: Arm, pairs: int) -> Iterator[Across]:
    """Build an arm across both hosts and check reachability; only one exists at a time, because arms share the NICs.

    Raises Unsupported, with the remedy, if the path does not carry the MTU, Failed if it carries nothing.
    """
    peer = run_context.peer
    assert peer is not None
    ours = os.urandom(2)
    with ExitStack() as stack:
        there = peer.ask("build", topology=arm.topology, pairs=pairs, ours=ours.hex())
        stack.callback(peer.ask, "clear")
        spec = parameters.spec(pairs, run_context.machine_netns, topologies.CLIENTS, ours)
        side = stack.enter_context(topologies.half(arm.topology, spec))
        made = [
            RemotePair(end, dataclasses.replace(far, port_offset=there["port_offset"]))
            for end, far in zip(side.ends, side.far, strict=True)
        ]
        _check_path(made, parameters, arm.topology)
        side.begin(made)
        one = Across(
            arm=arm,
            offloads=side.ends[0].kernel.offloads(side.ends[0].interface),
            server_offloads=there["offloads"],
            qdisc=side.ends[0].kernel.qdisc(side.ends[0].interface, side.ends[0].index),
            peer=peer,
            pairs=made,
            namespaces=list({id(pair.client.namespace): pair.client.namespace for pair in made}.values()),
            topology=side,
            doubts=list(dict.fromkeys((*side.doubts, *there["doubts"]))),
        )
        peer.views.setdefault(arm.topology, one)
        yield one


def _check_path(pairs: Sequence[RemotePair], parameters: DatapathParameters, topology: str) -> None:
    words = ping.reachable(pairs, parameters.mtu_bytes, parameters.family)
    if words is None:
        return
    exists = existing_names.is_network(topology)
    if ping.silent(pairs[0]):
        question = "is there a cable, or a switch, between the NICs of the two hosts?"
        if exists:
            question = "do rules let ICMP echo pass between the ends?"
        raise Failed(f"{words}, nor to a small one: {question}")
    raise Unsupported(
        f"the path between the two hosts does not carry MTU {parameters.mtu_bytes}: a small ping is answered,"
        f" one of {parameters.mtu_bytes} bytes is not; raise the MTU of the devices between them, or lower"
        f" {'that of both ends' if exists else 'mtu_bytes'}"
    )
