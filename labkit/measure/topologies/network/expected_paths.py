"""What the description of a Network promises: every way that a packet may take, worked out from the parts alone. The
kernel is never asked, so that what was seen can be held against it.

    paths(overlay.seed(), "cs1", "cs5")[0].nodes    ('cs1', 'con_ns1', 'lc1', 'sc2', 'lc2', 'con_ns3', 'cs5')
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
    ageless,
    alike,
    depth,
    headers,
    layers,
    outer_ttl,
    takes,
)
from labkit.measure.topologies.network.encapsulation import LAYER_2
from labkit.measure.topologies.network.lookup import Lookup, address_of
from labkit.measure.topologies.network.model import remotes
from labkit.measure.topologies.network.parts import CableEnd, Network, Tunnel

DEEPEST = (
    8  # packets in packets; the kernel gives up at as many (XMIT_RECURSION_LIMIT, include/linux/netdevice.h)
)
PING_BYTES = 84  # an echo request as ping sends it where it is not told otherwise, with its headers


@dataclass(frozen=True)
class Path:
    """One way. `nodes`: every namespace that the packet enters, also those that only carry it inside another one;
    `interfaces` (`lc1:lc1_sc2`) in order, tunnels among them; and what who listens there sees: `stacks`, the headers
    down to the innermost IP header, and `lengths_bytes` of the frame. `ttl` of the packet on arrival."""

    nodes: tuple[str, ...]
    interfaces: tuple[str, ...]
    stacks: tuple[str, ...]
    lengths_bytes: tuple[int, ...]
    ttl: int


class PathStep(NamedTuple):
    """What passed an interface."""

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
    """Every way from a node to an address, or to the first address of a node: of equal-cost routes each, of routes with
    metrics the best. Empty where there is none; `no_path` says why.

    MAC addresses are taken as learned. `without`: nodes, or cables by one of their interfaces (`lc1:lc1_sc2`), that
    are down. `noticed`: routes over links without carrier are left out (None: by those nodes that say so with
    `ignores_linkdown`); else they are used, and the packet is lost. `length_bytes`: of the innermost packet, its IP
    header included. Raises BadInput for a node that is not there or has no address.
    """
    walk = _Walk(Lookup(network, without, noticed))
    return [_path(source, trail, packet, length_bytes) for trail, packet in walk.ways(source, target)]


def no_path(
    network: Network, source: str, target: str, *, without: Collection[str] = (), noticed: bool | None = None
) -> str | None:
    """Why there is no way, in one sentence: what ended the attempt that went furthest. None where there is one."""
    walk = _Walk(Lookup(network, without, noticed))
    if any(True for _ in walk.ways(source, target)):
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
    """A packet's ways, tried one after the other to their ends; `ends` are those that came to nothing, with the number
    of interfaces up to there and the reason."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.ends: list[tuple[int, str]] = []
        self.taken = 0  # how many frames somebody has taken

    def ways(self, source: str, target: str) -> Arrivals:
        """Each way, as what passed where, with the packet as it arrives."""
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
        """The trail with one interface more; None where this has passed it before, which would never end."""
        before = [ageless(step.what) for step in trail if (step.node, step.interface) == (node, interface)]
        if ageless(what) not in before:
            return (*trail, PathStep(node, interface, what))
        self._end(trail, f"what is sent comes back to {node}:{interface}: its way is a circle")
        return None

    def _route(self, node: str, packet: EncapsulatedPacket, trail: Trail, out: str | None = None) -> Arrivals:
        """From a node, which has made the packet or forwards it. What is for a group that it is in itself goes out."""
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
                self._end(trail, f"{node} has no address to send from to {packet.target}")

    def _leave(self, node: str, out: str, packet: EncapsulatedPacket, to: str, trail: Trail) -> Arrivals:
        """Out of an interface, in a frame if it is one that has frames."""
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
            self._end(trail, f"nobody answers for {to} at {node}:{out}")

    def _port(self, node: str, name: str, frame: Frame, trail: Trail) -> Arrivals:
        """A frame out of a cable's end or of a tunnel."""
        if tunnel := self.lookup.tunnels.get((node, name)):
            yield from self._encapsulate(tunnel, frame, trail)
        elif passed := self._passes(trail, node, name, frame):
            _, far = self.lookup.cables[node, name]
            if (node, name) not in self.lookup.down:
                yield from self._enter(far, frame, passed)

    def _enter(self, port: CableEnd | Tunnel, frame: Frame, trail: Trail) -> Arrivals:
        """A frame into a node, by a cable or out of a tunnel."""
        passed = self._passes(trail, port.at, port.name, frame)
        if passed is None:
            return
        if port.master is not None:
            yield from self._bridge(port.at, port.master, frame, passed, port.name)
        elif self.lookup.owns(port.at, frame.to):
            self.taken += 1
            yield from self._receive(port.at, frame.packet, passed)

    def _bridge(self, node: str, bridge: str, frame: Frame, trail: Trail, came: str) -> Arrivals:
        """A frame at a bridge: to the node that it is in, or out of every other port; who is not meant, drops it."""
        if came != bridge and self.lookup.owns(node, frame.to):
            if passed := self._passes(trail, node, bridge, frame):
                self.taken += 1
                yield from self._receive(node, frame.packet, passed)
            return
        for port in self.lookup.ports(node, bridge):
            if port.name != came:
                yield from self._port(node, port.name, frame, trail)

    def _receive(self, node: str, packet: EncapsulatedPacket, trail: Trail) -> Arrivals:
        """A packet at a node that was meant to have it."""
        if self.lookup.owns(node, packet.target):
            yield from self._arrive(node, packet, trail)
        elif not self.lookup.nodes[node].forwards:
            self._end(trail, f"{node} does not forward, and {packet.target} is not its own")
        elif packet.ttl <= 1:
            self._end(trail, f"the TTL is used up at {node}")
        else:
            yield from self._route(node, packet._replace(ttl=packet.ttl - 1), trail)

    def _encapsulate(self, tunnel: Tunnel, what: EncapsulatedPacket | Frame, trail: Trail) -> Arrivals:
        """Into a tunnel: what it makes of it is routed from the tunnel's node."""
        passed = self._passes(trail, tunnel.at, tunnel.name, what)
        if passed is None:
            return
        if depth(what) == DEEPEST:
            self._end(
                passed, f"the way from {tunnel.at}:{tunnel.name} to its other end leads into tunnels for ever"
            )
            return
        for remote in self._others(tunnel):
            ttl = outer_ttl(tunnel, remote, what)
            outer = EncapsulatedPacket(tunnel.local or "", remote, ttl, headers(tunnel), what, tunnel)
            yield from self._route(tunnel.at, outer, passed, tunnel.link)

    def _others(self, tunnel: Tunnel) -> list[str]:
        """Where a tunnel sends to. Of a multicast group the others in it, once their addresses are learned."""
        result = []
        for remote in remotes(tunnel):
            if not ip_address(remote).is_multicast or not tunnel.learning:
                result.append(remote)
                continue
            for other in self.lookup.tunnels.values():
                if other != tunnel and alike(other, tunnel) and remote in remotes(other):
                    result.append(other.local or self.lookup.hops(other.at, remote, other.link)[0].source)
        return result

    def _arrive(self, node: str, packet: EncapsulatedPacket, trail: Trail) -> Arrivals:
        """A packet at its target, which takes out what is in it."""
        if packet.inner is None:
            yield trail, packet
            return
        own = (tunnel for (at, _), tunnel in self.lookup.tunnels.items() if at == node)
        tunnel = next((one for one in own if takes(one, packet)), None)
        if tunnel is None:
            kind = packet.by.kind if packet.by else ""
            self._end(trail, f"{node} has no {kind} that takes what {packet.source} sends to {packet.target}")
        elif isinstance(packet.inner, Frame):
            yield from self._enter(tunnel, packet.inner, trail)
        elif passed := self._passes(trail, node, tunnel.name, packet.inner):
            yield from self._receive(node, packet.inner, passed)
