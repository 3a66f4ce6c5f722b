"""The other host of two nodes, as the clients' host has it: asked through whoever started both, and arms across both.

Clocks are not compared: each side counts seconds of its own, and what has to follow something else is asked for after
it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from labkit.common.errors import Failed, Unsupported
from labkit.measure import topologies
from labkit.measure.endpoints import FarPair
from labkit.measure.experiments.built_arm import BuiltArm, offloads, qdisc
from labkit.measure.experiments.context import RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import Arm
from labkit.measure.experiments.server_counters import ServerSide, Window
from labkit.measure.experiments.server_link import Peer
from labkit.measure.traffic import ping
from labkit.measure.traffic.base import FlowGenerator, Flows, Page
from labkit.system import machine

CLOCK = 1.02  # times what passed here another host's clock may count before it is doubted


class RemoteServer:
    """The servers of a run are on the other host."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        before = time.monotonic()
        peer.ask("times")
        self._way_s = time.monotonic() - before  # there and back
        self._used: dict[str, Any] = {}

    def idle(self) -> bool:
        """Whether no flow has carried data yet."""
        return bool(self._peer.ask("idle")["idle"])

    def carrying(self, within_s: float) -> bool:
        """Wait until data has arrived on every flow; False if not in time, or when one has ended."""
        return bool(self._peer.ask("carrying", within_s=within_s)["carrying"])

    def window(self, until: float) -> Window:
        """Count until then, less what asking takes: it must be over before the first flow may end."""
        times, begun = machine.cpu_times(), time.monotonic()
        report = self._peer.ask("window", for_s=max(0.0, until - begun - self._way_s))
        passed_s, used = time.monotonic() - begun, machine.cpu_times() - times
        seen = msgspec.convert(report["window"], Window)
        of_theirs = ("cpu_s", "softirq_s", "steal_s")
        self._used = {f"peer_{name}": getattr(seen, name) for name in of_theirs}
        here = {"cpu_s": used.busy_s, "softirq_s": used.softirq_s, "steal_s": used.steal_s}
        seen = msgspec.structs.replace(seen, **here)
        # Asking takes time, so less may have been counted there than here, but not more.
        if seen.window_s > CLOCK * passed_s:
            doubt = f"the servers' host counted {seen.window_s:.2f} s in {passed_s:.2f} s of this one: a clock is wrong"
            seen = msgspec.structs.replace(seen, doubts=[*seen.doubts, doubt])
        return seen

    def pages(self) -> list[Page]:
        """The servers' own JSON, after their ends."""
        result: list[Page] = self._peer.ask("pages")["pages"]
        return result

    def report(self) -> dict[str, Any]:
        """The CPU time of the other host."""
        return self._used


@dataclass(frozen=True, kw_only=True)
class Across(BuiltArm):
    """An arm whose clients are on this host and whose servers are on the other."""

    peer: Peer
    far_pairs: Sequence[FarPair]

    @property
    def pairs(self) -> Sequence[FarPair]:
        """What load is run between."""
        return self.far_pairs

    @contextmanager
    def serving(
        self, parameters: DatapathParameters, generator: FlowGenerator
    ) -> Iterator[tuple[Flows, ServerSide]]:
        """Flows whose servers listen over there, and what is counted there."""
        self.peer.ask("listen")
        try:
            with generator.far_flows(self.far_pairs, parameters) as flows:
                yield flows, RemoteServer(self.peer)
        finally:
            self.peer.ask("quiet")

    def elsewhere(self) -> Callable[[float], dict[str, Any]]:
        """From now on, the CPU time of the other host."""
        begun = self.peer.ask("times")

        def until_now(_window_s: float) -> dict[str, Any]:
            now = self.peer.ask("times")
            return {f"peer_{name}": now[name] - begun[name] for name in ("cpu_s", "softirq_s", "steal_s")}

        return until_now


@contextmanager
def across(parameters: DatapathParameters, run_context: RunContext, arm: Arm, pairs: int) -> Iterator[Across]:
    """An arm across both hosts, built afresh and found reachable; one stands at a time, because they share the NICs.

    Raises Unsupported, with what to do, when the path does not carry the MTU, and Failed when it carries nothing.
    """
    peer = run_context.peer
    assert peer is not None
    ours = os.urandom(2)
    with ExitStack() as stack:
        report = peer.ask("build", topology=arm.topology, pairs=pairs, ours=ours.hex())
        stack.callback(peer.ask, "clear")
        spec = parameters.spec(pairs, run_context.machine_netns, topologies.CLIENTS, ours)
        ends = stack.enter_context(topologies.half(arm.topology, spec))
        made = [FarPair(end, far) for end, far in zip(ends, topologies.far_ends(spec), strict=True)]
        _check_path(made, parameters)
        one = Across(
            arm=arm,
            offloads=offloads(ends[0]),
            server_offloads=report["offloads"],
            qdisc=qdisc(ends[0]),
            peer=peer,
            far_pairs=made,
        )
        peer.views.setdefault(arm.topology, one)
        yield one


def _check_path(pairs: Sequence[FarPair], parameters: DatapathParameters) -> None:
    words = ping.reachable(pairs, parameters.mtu_bytes, parameters.family)
    if words is None:
        return
    if ping.silent(pairs[0]):
        raise Failed(
            f"{words}, nor to a small one: is there a cable, or a switch, between the NICs of the two hosts?"
        )
    raise Unsupported(
        f"the path between the two hosts does not carry MTU {parameters.mtu_bytes}: a small ping is answered,"
        f" and one of {parameters.mtu_bytes} bytes is not; raise the MTU of what is between them, or lower mtu_bytes"
    )
