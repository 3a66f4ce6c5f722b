"""A spine fails while packets flow over it: what is lost, for how long, and which path the rest takes.

It fails in one of two ways. `carrier`: all its interfaces go down, so the leaves' links lose their carrier, which a
kernel can notice; the sysctl ignore_routes_with_linkdown decides whether routes over such links are still used.
`silent`: it stops forwarding, which nobody notices without a protocol that checks (a routing protocol, BFD).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from labkit.common.errors import BadInput, Failed
from labkit.measure.endpoints import Namespace, Pair
from labkit.measure.topologies import Topology
from labkit.measure.topologies.network.parts import Cable, CableEnd, Network, Node
from labkit.system import netlink
from studies.overlay.expected_paths import paths
from studies.probes import Probe, Probing, probing

FAILURES = ("carrier", "silent")
PATIENCE_S = 20.0  # until the first reply: neighbours are resolved, bridge ports begin to forward
FIRST = 3  # answers before it begins
SHARE = 0.25  # a spine with a smaller share of a direction's packets did not carry it; ARP also counts

LINKDOWN = "ipv4/conf/all/ignore_routes_with_linkdown"  # of every interface of the namespace
LOOPBACK = 1  # its index

Counts = dict[str, list[int]]  # per spine: packets in the direction of requests, and of replies


def _cables(network: Network) -> Iterator[tuple[CableEnd, CableEnd]]:
    """Yield every cable from both of its ends."""
    for part in network.parts:
        if isinstance(part, Cable):
            yield part.one, part.other
            yield part.other, part.one


def spines(network: Network) -> list[str]:
    """Return the interchangeable nodes: they forward and have the same neighbours."""
    neighbours: dict[str, set[str]] = {
        part.name: set() for part in network.parts if isinstance(part, Node) and part.forwards
    }
    for own, far in _cables(network):
        neighbours.get(own.at, set()).add(far.at)
    return [
        one
        for one, own in neighbours.items()
        if own and any(own == others for other, others in neighbours.items() if other != one)
    ]


def failure(
    network: Network, topology: Topology, how: str, *, ignores_linkdown: bool, interval_s: float,
    times_s: tuple[float, float, float],
) -> dict[str, Any]:  # fmt: skip
    """Measure one failure in a built network; return the columns of a row.

    `topology` was built from `network`. Probes of the first pair run all the time. The spine that carries their
    requests fails and comes back with all its routes. `times_s`: of observation before the failure, while the spine is
    down, and after it has come back. `ignores_linkdown` sets the sysctl in every namespace meanwhile.

    The counters of the leaves' interfaces tell which spines carried packets. The pair has IPv4 addresses: IPv6 would
    need more than this sysctl and `static_routes`. Raises Failed if nothing is answered, or no spine carries the flow,
    before the failure.
    """
    watched, (before_s, down_s, after_s) = _Watched(network, topology), times_s
    with ExitStack() as stack:
        for space in topology.namespaces:
            stack.enter_context(_sysctl(space, LINKDOWN, int(ignores_linkdown)))
        running = stack.enter_context(probing([watched.pair], 1 / interval_s))
        _wait_for_answers(running, watched.pair)
        with watched.phase() as before:
            time.sleep(before_s)
        failing = watched.carrying(before, running.so_far())
        with watched.down(failing, how), watched.phase() as during:
            time.sleep(down_s)
        with watched.phase() as after:
            time.sleep(after_s)
    # They go on while the last answers are waited for.
    probes = [one for one in running.probes if one.sent_s < after.end_s]
    phases = {"before": before, "during": during, "after": after}
    went = {f"path_{name}": watched.carried(phase, probes) for name, phase in phases.items()}
    return {
        "failure": how, "failed": failing, "interval_s": interval_s, "ignores_linkdown": ignores_linkdown,
        "hash_policy": watched.hash_policy, **_timeline(probes, during), **went,
        "expected_during": watched.remaining_spines(failing, how, ignores_linkdown),
    }  # fmt: skip


class Outage(NamedTuple):
    """The longest time without a reply: its length, the time of the last reply before it (time.monotonic()), and
    whether a reply followed."""

    length_s: float
    since_s: float
    over: bool


def outage(all_probes: Sequence[Probe], since_s: float = 0.0) -> Outage:
    """Return the longest time without a reply, among those that end after `since_s` (time.monotonic()).

    It lasts from one reply to the next, minus the normal interval between replies (the median between two probes), and
    at least 0; it is exact to one interval. A late reply ends the outage when it arrives. Nothing is known before the
    first reply, of which there must be one. Without a later reply the outage extends to one interval after the last
    probe and is not `over`.
    """
    came = sorted(probe.sent_s + probe.rtt_s for probe in all_probes if probe.rtt_s is not None)
    steps = [after.sent_s - before.sent_s for before, after in pairwise(all_probes)]
    interval_s = statistics.median(steps) if steps else 0.0
    gaps = [
        Outage(max(0.0, after - before - interval_s), before, True)
        for before, after in pairwise(came)
        if after >= since_s
    ]
    end_s = max(probe.sent_s for probe in all_probes) + interval_s
    gaps.append(Outage(max(0.0, end_s - came[-1] - interval_s), came[-1], False))
    return max(gaps, key=lambda gap: (gap.length_s, gap.over))


def _timeline(probes: Sequence[Probe], during: _Phase) -> dict[str, Any]:
    """Return the columns of times since the first probe."""
    first_s, longest = probes[0].sent_s, outage(probes, during.begin_s)
    return {
        "sent_count": len(probes),
        "received_count": sum(one.rtt_s is not None for one in probes),
        "outage_s": longest.length_s,
        "outage_since_s": longest.since_s - first_s,
        "outage_over": longest.over,
        "down_s": during.begin_s - first_s,
        "up_s": during.end_s - first_s,
        "probes": [[one.sent_s - first_s, one.rtt_s] for one in probes],
    }


def _wait_for_answers(running: Probing, pair: Pair) -> None:
    """Wait until probes are answered. Raises Failed when they are not."""
    deadline = time.monotonic() + PATIENCE_S
    while sum(one.rtt_s is not None for one in running.so_far()) < FIRST:
        if time.monotonic() > deadline:
            raise Failed(
                f"{pair.client.name} gets no answer from {pair.server.name} before anything has failed"
            )
        time.sleep(0.05)


@dataclass
class _Phase:
    """A phase: its start and end (time.monotonic()), and what every spine carried in it."""

    begin_s: float
    end_s: float
    counts: Counts


class _Watched:
    """A built network under observation: its spines, and the leaves' interfaces towards them."""

    def __init__(self, network: Network, topology: Topology) -> None:
        self.network, self.pair = network, topology.pairs[0]
        self.spines = spines(network)
        self._spaces = {space.name: space for space in topology.namespaces}
        ends = self.pair.client, self.pair.server
        self._leaves = [self._behind(one.name, other.address) for one, other in (ends, ends[::-1])]
        kernels = [self._spaces[leaf].netlink for leaf in self._leaves]
        towards = {(own.at, far.at): own.name for own, far in _cables(network)}
        indexes = [{link.name: link.index for link in netlink.links(kernel)} for kernel in kernels]
        # Per spine, the kernel and the index of each leaf's interface to it. Spines have the same neighbours.
        self._ports = {
            spine: [
                (kernel, of[towards[leaf, spine]])
                for leaf, kernel, of in zip(self._leaves, kernels, indexes, strict=True)
            ]
            for spine in self.spines
        }

    def _behind(self, source: str, target: str) -> str:
        """Return the leaf to which a spine forwards packets from `source` to `target`."""
        for path in paths(self.network, source, target):
            for spine, leaf in pairwise(path.nodes):
                if spine in self.spines:
                    return leaf
        raise BadInput(f"no path from {source} to {target} uses a spine that another spine can replace")

    @property
    def hash_policy(self) -> int:
        """The leaves' sysctl for multipath (0: hash of addresses only)."""
        return _read(self._spaces[self._leaves[0]], "ipv4/fib_multipath_hash_policy")

    def _counts(self) -> Counts:
        return {
            spine: [kernel.counters(index).received_count for kernel, index in ports]
            for spine, ports in self._ports.items()
        }

    @contextmanager
    def phase(self) -> Iterator[_Phase]:
        """Count while the block lasts."""
        first = self._counts()
        phase = _Phase(time.monotonic(), 0.0, {})
        yield phase
        phase.end_s = time.monotonic()
        for spine, counts in self._counts().items():
            phase.counts[spine] = [now - then for now, then in zip(counts, first[spine], strict=True)]

    def carried(self, phase: _Phase, probes: Sequence[Probe]) -> list[str | None]:
        """Return the spines that carried requests and replies; None if none did."""
        sent = sum(phase.begin_s <= one.sent_s < phase.end_s for one in probes)
        least = max(FIRST, SHARE * sent)
        carriers: list[str | None] = []
        for direction in (0, 1):
            most = max(self.spines, key=lambda spine: phase.counts[spine][direction])
            carriers.append(most if phase.counts[most][direction] >= least else None)
        return carriers

    def carrying(self, phase: _Phase, probes: Sequence[Probe]) -> str:
        """Return the spine that carried the requests. Raises Failed if none did."""
        carrier = self.carried(phase, probes)[0]
        if carrier is None:
            raise Failed(f"probes are answered, but none of {', '.join(self.spines)} carries them")
        return carrier

    def down(self, spine: str, how: str) -> AbstractContextManager[None]:
        """Let a spine fail for the block."""
        space = self._spaces[spine]
        return _sysctl(space, "ipv4/ip_forward", 0) if how == "silent" else _shut(space)

    def remaining_spines(self, failed: str, how: str, noticed: bool) -> list[str]:
        """Return the spines over which the description still routes requests; one flow takes one of them."""
        ends, network, without = (self.pair.client.name, self.pair.server.address), self.network, {failed}
        if how == "silent":
            without = set()
            parts = (
                msgspec.structs.replace(part, forwards=False)
                if isinstance(part, Node) and part.name == failed
                else part
                for part in network.parts
            )
            network = msgspec.structs.replace(network, parts=tuple(parts))
        result = paths(network, *ends, without=without, noticed=noticed)
        return sorted({node for path in result for node in path.nodes if node in self.spines})


@contextmanager
def _shut(space: Namespace) -> Iterator[None]:
    """Set every interface down for the block; then up again, with the lost routes."""
    indexes = [link.index for link in netlink.links(space.netlink) if link.up and link.index != LOOPBACK]
    routes = netlink.static_routes(space.netlink)
    space.netlink.do(*(netlink.shut_link(index) for index in indexes))
    try:
        yield
    finally:
        space.netlink.do(*(netlink.set_link(index) for index in indexes), *routes)


@contextmanager
def _sysctl(space: Namespace, name: str, value: int) -> Iterator[None]:
    """Set net.`name` for the block."""
    before = _read(space, name)
    space.sysctl(name, value)
    try:
        yield
    finally:
        space.sysctl(name, before)


def _read(space: Namespace, name: str) -> int:
    return int(space.read(f"/proc/sys/net/{name}"))
