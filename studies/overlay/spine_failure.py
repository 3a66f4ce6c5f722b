"""A spine fails while packets flow over it: what is lost, for how long, and which path the rest takes.

It fails in one of two ways. `carrier`: all its interfaces go down, so the leaves' links lose their carrier, which a
kernel can notice; the sysctl ignore_routes_with_linkdown decides whether routes over such links are still used.
`silent`: it stops forwarding, which nobody notices without a protocol that checks (a routing protocol, BFD).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from labkit.common.errors import BadInput, Failed, choose
from labkit.measure.endpoints import Namespace, Pair
from labkit.measure.topologies import Topology
from labkit.measure.topologies.network.parts import Cable, Network, Node, Part
from labkit.system import netlink
from studies.overlay import ping_probes
from studies.overlay.expected_paths import paths
from studies.overlay.ping_probes import Probe

FAILURES = ("carrier", "silent")
PATIENCE_S = 20.0  # until the first reply: neighbours are resolved, bridge ports begin to forward
FIRST = 3  # answers before it begins
SHARE = 0.25  # a spine with a smaller share of a direction's packets did not carry it; ARP also counts

LINKDOWN = "ipv4/conf/all/ignore_routes_with_linkdown"  # of every interface of the namespace
LOOPBACK = 1  # its index

Counts = dict[str, list[int]]  # per spine: packets in the direction of requests, and of replies


@dataclass(frozen=True)
class Times:
    """Seconds of observation: before the failure, while the spine is down, and after it has come back."""

    before_s: float = 1.0
    down_s: float = 2.0
    after_s: float = 3.0


def spines(network: Network) -> list[str]:
    """Return the interchangeable nodes: they forward and have the same neighbours."""
    neighbours: dict[str, set[str]] = {
        part.name: set() for part in network.parts if isinstance(part, Node) and part.forwards
    }
    for cable in (part for part in network.parts if isinstance(part, Cable)):
        for own, far in ((cable.one.at, cable.other.at), (cable.other.at, cable.one.at)):
            neighbours.get(own, set()).add(far)
    return [
        one
        for one, own in neighbours.items()
        if own and any(own == others for other, others in neighbours.items() if other != one)
    ]


def failure(
    network: Network,
    topology: Topology,
    how: str,
    *,
    ignores_linkdown: bool | None = None,
    interval_s: float = 0.02,
    times: Times | None = None,
) -> dict[str, Any]:
    """Measure one failure in a built network; return the columns of a row.

    `topology` was built from `network`. A ping of the first pair runs all the time. The spine that carries its
    requests fails and comes back with all its routes. `ignores_linkdown` sets the sysctl in every namespace
    meanwhile; None leaves it.

    `path_before`, `path_during`, `path_after`: the spines that carried requests and replies, by the counters of the
    leaves' interfaces; None if none did. `expected_during`: the spines that the description leaves. `down_s`, `up_s`,
    `outage_since_s` and the times in `probes` are seconds since the first probe. Raises BadInput for an unknown
    failure, or a pair with IPv6 addresses. Raises Failed if nothing is answered, or no spine carries the flow,
    before the failure.
    """
    if how not in FAILURES:
        raise BadInput(f"failure={how} is unknown: {choose(how, FAILURES)}")
    times = times or Times()
    watched = _Watched(network, topology)
    with ExitStack() as stack:
        for space in topology.namespaces if ignores_linkdown is not None else ():
            stack.enter_context(_sysctl(space, LINKDOWN, int(bool(ignores_linkdown))))
        settings = watched.settings()
        probe = stack.enter_context(watched.probe(interval_s))
        _wait_for_answers(probe, watched.pair)
        with watched.phase() as before:
            time.sleep(times.before_s)
        failing = watched.carrying(before, probe.so_far())
        with _down(watched.space(failing), how), watched.phase() as during:
            time.sleep(times.down_s)
        with watched.phase() as after:
            time.sleep(times.after_s)
        result = probe.end()
    phases = {"before": before, "during": during, "after": after}
    went = {f"path_{name}": watched.carried(phase, result) for name, phase in phases.items()}
    named = {"failure": how, "failed": failing, "interval_s": interval_s}
    left = {"expected_during": watched.remaining_spines(failing, how, settings["ignores_linkdown"])}
    return named | settings | _timeline(result, during) | went | left


def _timeline(probes: Sequence[Probe], during: _Phase) -> dict[str, Any]:
    """Return the columns of times since the first probe."""
    first_s, longest = probes[0].sent_s, ping_probes.outage(probes, during.begin_s)
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


def _wait_for_answers(probe: ping_probes.LongProbe, pair: Pair) -> None:
    """Wait until probes are answered. Raises Failed when they are not."""
    deadline = time.monotonic() + PATIENCE_S
    while sum(one.rtt_s is not None for one in probe.so_far()) < FIRST:
        if time.monotonic() > deadline:
            raise Failed(
                f"{pair.client.name} gets no answer from {pair.server.name} before anything has failed"
            )
        time.sleep(0.05)


@dataclass
class _Phase:
    """A phase: its start and end (seconds since the epoch), and what every spine carried in it."""

    begin_s: float
    end_s: float
    counts: Counts


class _Watched:
    """A built network under observation: its spines, and the leaves' interfaces towards them."""

    def __init__(self, network: Network, topology: Topology) -> None:
        self.network, self.pair = network, topology.pairs[0]
        client, server = self.pair.client, self.pair.server
        if ":" in server.address:  # IPv6 would need more than IPv4's sysctl and `static_routes`
            both = f"{client.name} and {server.name} use IPv6"
            raise BadInput(
                f"{both}, but spine failures are measured with IPv4 only: give them IPv4 addresses"
            )
        self.spines = spines(network)
        self._spaces = {space.name: space for space in topology.namespaces}
        ends = (client, server)
        self._leaves = [self._behind(one.name, other.address) for one, other in (ends, ends[::-1])]
        self._indexes = {spine: [self._index(leaf, spine) for leaf in self._leaves] for spine in self.spines}

    def _behind(self, source: str, target: str) -> str:
        """Return the leaf to which a spine forwards packets from `source` to `target`."""
        for path in paths(self.network, source, target):
            for spine, leaf in pairwise(path.nodes):
                if spine in self.spines:
                    return leaf
        raise BadInput(f"no path from {source} to {target} uses a spine that another spine can replace")

    def _index(self, leaf: str, spine: str) -> int:
        """Return the index of the leaf's interface to a spine."""
        for cable in (part for part in self.network.parts if isinstance(part, Cable)):
            for own, far in ((cable.one, cable.other), (cable.other, cable.one)):
                if (own.at, far.at) == (leaf, spine):
                    result = {link.name: link.index for link in netlink.links(self._spaces[leaf].netlink)}
                    return result[own.name]
        raise BadInput(
            f"the network {self.network.name} has no cable between {leaf} and {spine}, so its failure cannot be made"
        )

    def settings(self) -> dict[str, Any]:
        """Return the leaves' sysctls for dead links and for multipath (0: hash of addresses only)."""
        spaces = [self._spaces[leaf] for leaf in self._leaves]
        return {
            "ignores_linkdown": all(_read(space, LINKDOWN) == 1 for space in spaces),
            "hash_policy": _read(spaces[0], "ipv4/fib_multipath_hash_policy"),
        }

    def probe(self, interval_s: float) -> AbstractContextManager[ping_probes.LongProbe]:
        """Start probes of the pair."""
        return ping_probes.long_probe(self.pair.client.namespace, self.pair.server.address, interval_s)

    def _counts(self) -> Counts:
        leaves = [self._spaces[leaf].netlink for leaf in self._leaves]
        return {
            spine: [leaf.counters(index).received_count for leaf, index in zip(leaves, indexes, strict=True)]
            for spine, indexes in self._indexes.items()
        }

    @contextmanager
    def phase(self) -> Iterator[_Phase]:
        """Count while the block lasts."""
        first = self._counts()
        phase = _Phase(time.time(), 0.0, {})
        yield phase
        phase.end_s = time.time()
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

    def space(self, spine: str) -> Namespace:
        """Return the namespace of a spine."""
        return self._spaces[spine]

    def remaining_spines(self, failed: str, how: str, noticed: bool) -> list[str]:
        """Return the spines over which the description still routes requests; one flow takes one of them."""
        ends, network, without = (self.pair.client.name, self.pair.server.address), self.network, {failed}
        if how == "silent":
            without = set()
            quiet = tuple(_quiet(part, failed) for part in network.parts)
            network = msgspec.structs.replace(network, parts=quiet)
        result = paths(network, *ends, without=without, noticed=noticed)
        return sorted({node for path in result for node in path.nodes if node in self.spines})


def _quiet(part: Part, name: str) -> Part:
    """Return the part; if it is the named node, without forwarding."""
    if isinstance(part, Node) and part.name == name:
        return msgspec.structs.replace(part, forwards=False)
    return part


@contextmanager
def _down(space: Namespace, how: str) -> Iterator[None]:
    """Let a node fail for the block."""
    with _sysctl(space, "ipv4/ip_forward", 0) if how == "silent" else _shut(space):
        yield


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
