"""Every path that a packet may take in a Network, computed from its description alone.

The kernel is not read, so measured paths can be compared with these.

  paths(leaf_spine_overlay.leaf_spine_network(), "cs1", "cs5")[0].nodes
  ('cs1', 'con_ns1', 'lc1', 'sc2', 'lc2', 'con_ns3', 'cs5')
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import groupby
from typing import NamedTuple

from labkit.common.errors import BadInput
from labkit.measure.topologies.network.encapsulated_packets import (
    EncapsulatedPacket,
    Frame,
    are_compatible,
    decapsulates,
    headers,
    layers,
    nesting_depth,
    outer_ttl,
    without_ttl,
)
from labkit.measure.topologies.network.encapsulation import LAYER_2
from labkit.measure.topologies.network.lookup import Lookup, address_of
from labkit.measure.topologies.network.model import remotes
from labkit.measure.topologies.network.parts import CableEnd, Network, Tunnel

# Nested packets; the kernel's limit is the same (XMIT_RECURSION_LIMIT, include/linux/netdevice.h).
DEEPEST = 8
PING_BYTES = 84  # the size of ping's default echo request with its headers


@dataclass(frozen=True)
class Path:
    """One path of a packet.

    `nodes`: every namespace that it enters, also inside another packet. `interfaces` (`lc1:lc1_sc2`) in order, with
    tunnels. `stacks` and `lengths_bytes`: the headers down to the innermost IP header, and the length, at each
    interface. `ttl`: on arrival.
    """

    nodes: tuple[str, ...]
    interfaces: tuple[str, ...]
    stacks: tuple[str, ...]
    lengths_bytes: tuple[int, ...]
    ttl: int


class PathStep(NamedTuple):
    """A packet or frame that passed an interface."""

    node: str
    interface: str
    what: EncapsulatedPacket | Frame


Trail = tuple[PathStep, ...]
Arrivals = Iterator[tuple[Trail, EncapsulatedPacket]]


def paths(
    network: Network,
    source: str,
    target: str,
    *,
    without: Collection[str] = (),
    noticed: bool | None = None,
    length_bytes: int = PING_BYTES,
) -> list[Path]:
    """Return every path from a node to an address, or to the first address of a node.

    Equal-cost routes each give a path; of routes with metrics only the best. Empty if there is none (`no_path` says
    why). MAC addresses count as learned. `without`: nodes, or cables by one of their interfaces (`lc1:lc1_sc2`), that
    are down. `noticed`: whether routes over links without carrier are skipped (None: by nodes with
    `ignores_linkdown`); otherwise such packets are lost. `length_bytes`: of the innermost packet with its IP header.
    Raises BadInput for a node that does not exist or has no address.
    """
    walk = _Walk(Lookup(network, without, noticed))
    return [_path(source, trail, packet, length_bytes) for trail, packet in walk.arrivals(source, target)]


def no_path(
    network: Network, source: str, target: str, *, without: Collection[str] = (), noticed: bool | None = None
) -> str | None:
    """Return, in one sentence, why there is no path: what ended the longest attempt. None if there is a path."""
    walk = _Walk(Lookup(network, without, noticed))
    if any(True for _ in walk.arrivals(source, target)):
        return None
    return max(walk.ends, key=lambda end: end[0])[1]


def _path(source: str, trail: Trail, packet: EncapsulatedPacket, length_bytes: int) -> Path:
    stacks = [layers(step.what) for step in trail]
    return Path(
        nodes=tuple(name for name, _ in groupby([source, *(step.node for step in trail)])),
        interfaces=tuple(f"{step.node}:{step.interface}" for step in trail),
        stacks=tuple(" / ".join(name for name, _ in each) for each in stacks),
        # the innermost IP header is part of the innermost packet
        lengths_bytes=tuple(length_bytes + sum(size for _, size in each[:-1]) for each in stacks),
        ttl=packet.ttl,
    )


class _Walk:
    """Tries all paths of a packet. `ends` are the failed attempts: (number of interfaces passed, reason)."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.ends: list[tuple[int, str]] = []
        self.taken = 0  # frames that a node has accepted

    def arrivals(self, source: str, target: str) -> Arrivals:
        """Yield each path as its trail, with the packet as it arrives."""
        nodes, network = self.lookup.nodes, self.lookup.network
        if source not in nodes:
            raise BadInput(f"{network.name} has no node {source}; there are {', '.join(nodes)}")
        to = address_of(network, target) if target in nodes else target
        try:
            ip_address(to)
        except ValueError:
            raise BadInput(f"{target} is neither a node of {network.name} nor an address") from None
        yield from self._route(source, EncapsulatedPacket("", to), ())

    def _end(self, trail: Trail, why: str) -> None:
        self.ends.append((len(trail), why))

    def _passes(
        self, trail: Trail, node: str, interface: str, what: EncapsulatedPacket | Frame
    ) -> Trail | None:
        """Return the trail with one more interface; None if the packet passed it before, which would be a loop."""
        before = [
            without_ttl(step.what) for step in trail if (step.node, step.interface) == (node, interface)
        ]
        if without_ttl(what) not in before:
            return (*trail, PathStep(node, interface, what))
        self._end(trail, f"the packet returns to {node}:{interface}, which is a routing loop")
        return None

    def _route(self, node: str, packet: EncapsulatedPacket, trail: Trail, out: str | None = None) -> Arrivals:
        """Route a packet that a node made or forwards; multicast always goes out."""
        if self.lookup.owns(node, packet.target) and not ip_address(packet.target).is_multicast:
            yield from self._arrive(node, packet, trail)
            return
        hops = self.lookup.hops(node, packet.target, out)
        if not hops:
            self._end(trail, f"{node} has no route to {packet.target}")
        for hop in hops:
            sent = packet if packet.source else packet._replace(source=hop.source)
            if sent.source:
                yield from self._leave(node, hop.out, sent, hop.via or packet.target, trail)
            else:
                self._end(trail, f"{node} has no source address for {packet.target}")

    def _leave(self, node: str, out: str, packet: EncapsulatedPacket, to: str, trail: Trail) -> Arrivals:
        """Send a packet out of an interface, in a frame if the interface has frames."""
        tunnel = self.lookup.tunnels.get((node, out))
        if tunnel is not None and tunnel.kind not in LAYER_2:
            yield from self._encapsulate(tunnel, packet, trail)
            return
        frame, taken = Frame(to, packet), self.taken
        if (node, out) in self.lookup.bridges:
            if passed := self._passes(trail, node, out, frame):
                yield from self._bridge(node, out, frame, passed, out)
        else:
            yield from self._port(node, out, frame, trail)
        if self.taken == taken:
            self._end(trail, f"no node answers for {to} at {node}:{out}")

    def _port(self, node: str, name: str, frame: Frame, trail: Trail) -> Arrivals:
        """Send a frame out of a cable's end or a tunnel."""
        if tunnel := self.lookup.tunnels.get((node, name)):
            yield from self._encapsulate(tunnel, frame, trail)
        elif passed := self._passes(trail, node, name, frame):
            _, far = self.lookup.cables[node, name]
            if (node, name) not in self.lookup.down:
                yield from self._enter(far, frame, passed)

    def _enter(self, port: CableEnd | Tunnel, frame: Frame, trail: Trail) -> Arrivals:
        """Receive a frame at a node, from a cable or a tunnel."""
        passed = self._passes(trail, port.at, port.name, frame)
        if passed is None:
            return
        if port.master is not None:
            yield from self._bridge(port.at, port.master, frame, passed, port.name)
        elif self.lookup.owns(port.at, frame.to):
            self.taken += 1
            yield from self._receive(port.at, frame.packet, passed)

    def _bridge(self, node: str, bridge: str, frame: Frame, trail: Trail, came: str) -> Arrivals:
        """Bridge a frame: to its own node, or out of every other port, where other nodes drop it."""
        if came != bridge and self.lookup.owns(node, frame.to):
            if passed := self._passes(trail, node, bridge, frame):
                self.taken += 1
                yield from self._receive(node, frame.packet, passed)
            return
        for port in self.lookup.ports(node, bridge):
            if port.name != came:
                yield from self._port(node, port.name, frame, trail)

    def _receive(self, node: str, packet: EncapsulatedPacket, trail: Trail) -> Arrivals:
        """Handle a packet at a node that it was addressed to on this link."""
        if self.lookup.owns(node, packet.target):
            yield from self._arrive(node, packet, trail)
        elif not self.lookup.nodes[node].forwards:
            self._end(trail, f"{node} does not forward, and {packet.target} is not its address")
        elif packet.ttl <= 1:
            self._end(trail, f"the TTL expires at {node}")
        else:
            yield from self._route(node, packet._replace(ttl=packet.ttl - 1), trail)

    def _encapsulate(self, tunnel: Tunnel, what: EncapsulatedPacket | Frame, trail: Trail) -> Arrivals:
        """Send into a tunnel; the outer packet is routed from the tunnel's node."""
        passed = self._passes(trail, tunnel.at, tunnel.name, what)
        if passed is None:
            return
        if nesting_depth(what) == DEEPEST:
            self._end(
                passed, f"the path from {tunnel.at}:{tunnel.name} to its other end nests tunnels without end"
            )
            return
        for remote in self._others(tunnel):
            ttl = outer_ttl(tunnel, remote, what)
            outer = EncapsulatedPacket(tunnel.local or "", remote, ttl, headers(tunnel), what, tunnel)
            yield from self._route(tunnel.at, outer, passed, tunnel.link)

    def _others(self, tunnel: Tunnel) -> list[str]:
        """Return where a tunnel sends to; for a multicast group the other members, as if their addresses were
        learned."""
        result = []
        for remote in remotes(tunnel):
            if not ip_address(remote).is_multicast or not tunnel.learning:
                result.append(remote)
                continue
            for other in self.lookup.tunnels.values():
                if other != tunnel and are_compatible(other, tunnel) and remote in remotes(other):
                    result.append(other.local or self.lookup.hops(other.at, remote, other.link)[0].source)
        return result

    def _arrive(self, node: str, packet: EncapsulatedPacket, trail: Trail) -> Arrivals:
        """Deliver a packet at its target, which decapsulates it if necessary."""
        if packet.inner is None:
            yield trail, packet
            return
        own = (tunnel for (at, _), tunnel in self.lookup.tunnels.items() if at == node)
        tunnel = next((one for one in own if decapsulates(one, packet)), None)
        if tunnel is None:
            kind = packet.by.kind if packet.by else ""
            self._end(
                trail, f"{node} has no {kind} that accepts packets from {packet.source} to {packet.target}"
            )
        elif isinstance(packet.inner, Frame):
            yield from self._enter(tunnel, packet.inner, trail)
        elif passed := self._passes(trail, node, tunnel.name, packet.inner):
            yield from self._receive(node, packet.inner, passed)
