"""Every path that a packet may take in a Network, computed from its description alone.

The kernel is not read, so measured paths can be compared with these. Cables, bridges and tunnels between addresses are
followed; the overlay has neither macvlan or ipvlan devices nor multicast groups.

  paths(leaf_spine_overlay.leaf_spine_network(), "cs1", "cs5")[0].nodes
  ('cs1', 'con_ns1', 'lc1', 'sc2', 'lc2', 'con_ns3', 'cs5')
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import groupby
from typing import NamedTuple

from labkit.measure.topologies.network import kinds
from labkit.measure.topologies.network.model import (
    DescribedInterface,
    Key,
    NetworkIndex,
    RouteChoice,
    address_of,
    are_compatible,
)
from labkit.measure.topologies.network.parts import UDP_PORTS, Network, Tunnel

# Nested packets; the kernel's limit is the same (XMIT_RECURSION_LIMIT, include/linux/netdevice.h).
DEEPEST = 8
PING_BYTES = 84  # the size of ping's default echo request with its headers
TTL = 64  # net.ipv4.ip_default_ttl


class EncapsulatedPacket(NamedTuple):
    """An IP packet; if a tunnel (`by`) made it, `inner` is its content, after `headers` (name, bytes).

    `to`: it is in an Ethernet frame to the owner of this address (ARP), or in none if it is empty.
    """

    source: str
    target: str
    ttl: int = TTL
    headers: tuple[tuple[str, int], ...] = ()
    inner: EncapsulatedPacket | None = None
    by: Tunnel | None = None
    to: str = ""


def layers(packet: EncapsulatedPacket) -> list[tuple[str, int]]:
    """Return the headers from the outside in, each with its size."""
    frame = [("Ethernet", kinds.ETHERNET.length_bytes)] * bool(packet.to)
    version = ip_address(packet.source).version
    words = f"IP{'' if version == 4 else 6} {packet.source} > {packet.target}"
    inner = () if packet.inner is None else layers(packet.inner)
    return [*frame, (words, kinds.IP[version].length_bytes), *packet.headers, *inner]


def headers(tunnel: Tunnel) -> tuple[tuple[str, int], ...]:
    """Return the headers that a tunnel puts between the outer IP header and its content."""
    if tunnel.kind in UDP_PORTS:
        udp, own = kinds.KINDS[tunnel.kind].headers[:2]
        return (f"UDP {tunnel.udp_port}", udp.length_bytes), (f"{own.name} {tunnel.id}", own.length_bytes)
    if tunnel.kind == "ipip":
        return ()
    key = 0 if tunnel.id is None else kinds.GRE_KEY.length_bytes
    name = "GRE" if tunnel.id is None else f"GRE key {tunnel.id}"
    return ((name, kinds.GRE.length_bytes + key),)


def nesting_depth(packet: EncapsulatedPacket) -> int:
    """Return how many packets are nested."""
    return 1 + (0 if packet.inner is None else nesting_depth(packet.inner))


def decapsulates(tunnel: Tunnel, packet: EncapsulatedPacket) -> bool:
    """Return whether a tunnel decapsulates a packet.

    vxlan checks only the VNI, geneve also the sender, the others both addresses (vxlan_rcv, geneve_lookup,
    ip_tunnel_lookup).
    """
    if packet.by is None or not are_compatible(tunnel, packet.by):
        return False
    from_there = tunnel.kind == "vxlan" or packet.source in tunnel.remotes
    return from_there and (tunnel.kind in UDP_PORTS or tunnel.local in (None, packet.target))


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
    what: EncapsulatedPacket


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
    Raises BadInput for a node that has no address.
    """
    walk = _Walk(network, without, noticed)
    return [_path(source, trail, packet, length_bytes) for trail, packet in walk.arrivals(source, target)]


def no_path(
    network: Network, source: str, target: str, *, without: Collection[str] = (), noticed: bool | None = None
) -> str | None:
    """Return, in one sentence, why there is no path: what ended the longest attempt. None if there is a path."""
    walk = _Walk(network, without, noticed)
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

    def __init__(self, network: Network, without: Collection[str], noticed: bool | None) -> None:
        self.index, self.noticed = NetworkIndex(network), noticed
        self.down: set[Key] = set()
        for one in self.index.interfaces.values():
            if one.far is not None and (one.at in without or f"{one.at}:{one.name}" in without):
                self.down |= {one.key, one.far}
        self.ends: list[tuple[int, str]] = []
        self.taken = 0  # frames that a node has accepted

    def arrivals(self, source: str, target: str) -> Arrivals:
        """Yield each path as its trail, with the packet as it arrives."""
        to = address_of(self.index.network, target) if target in self.index.nodes else target
        yield from self._route(source, EncapsulatedPacket("", to), ())

    def _end(self, trail: Trail, why: str) -> None:
        self.ends.append((len(trail), why))

    def _owns(self, node: str, address: str) -> bool:
        """Return whether a node accepts packets to an address: on any interface (weak host model, arp_ignore 0)."""
        to = ip_address(address)
        return to in self.index.owner and self.index.owner[to].at == node

    def _hops(self, node: str, target: str, out: str | None) -> list[RouteChoice]:
        """Return the next hops of a node to a target, all of equal cost.

        `out`: only over this interface; without a route the target is assumed to be on that link, as the kernel does.
        """
        to = ip_address(target)
        noticed = self.index.nodes[node].ignores_linkdown if self.noticed is None else self.noticed
        for entry in self.index.routing_tables[node]:
            usable = [
                hop
                for hop in entry.hops
                if out in (None, hop.out.name) and not (noticed and hop.out.key in self.down)
            ]
            if to in entry.to and usable:
                return usable
        return [RouteChoice(self.index.interfaces[node, out], None)] if out is not None else []

    def _passes(self, trail: Trail, one: DescribedInterface, what: EncapsulatedPacket) -> Trail | None:
        """Return the trail with one more interface; None if the packet passed it before, which would be a loop."""
        before = [step.what._replace(ttl=0) for step in trail if (step.node, step.interface) == one.key]
        if what._replace(ttl=0) not in before:
            return (*trail, PathStep(*one.key, what))
        self._end(trail, f"the packet returns to {one.at}:{one.name}, which is a routing loop")
        return None

    def _route(self, node: str, packet: EncapsulatedPacket, trail: Trail, out: str | None = None) -> Arrivals:
        """Route a packet that a node made or forwards."""
        if self._owns(node, packet.target):
            yield from self._arrive(node, packet, trail)
            return
        hops = self._hops(node, packet.target, out)
        if not hops:
            self._end(trail, f"{node} has no route to {packet.target}")
        for hop in hops:
            source = packet.source or self.index.source(hop.out, ip_address(packet.target).version)
            if source:
                near = packet.target if hop.via is None else str(hop.via)
                yield from self._leave(hop.out, packet._replace(source=source), near, trail)
            else:
                self._end(trail, f"{node} has no source address for {packet.target}")

    def _leave(self, out: DescribedInterface, packet: EncapsulatedPacket, to: str, trail: Trail) -> Arrivals:
        """Send a packet out of an interface, in a frame if the interface has frames."""
        if isinstance(out.part, Tunnel) and not out.carries_frames:
            yield from self._encapsulate(out, out.part, packet, trail)
            return
        frame, taken = packet._replace(to=to), self.taken
        if out.kind == "bridge":
            if passed := self._passes(trail, out, frame):
                yield from self._bridge(out, frame, passed, out)
        else:
            yield from self._port(out, frame, trail)
        if self.taken == taken:
            self._end(trail, f"no node answers for {to} at {out.at}:{out.name}")

    def _port(self, port: DescribedInterface, frame: EncapsulatedPacket, trail: Trail) -> Arrivals:
        """Send a frame out of a cable's end or a tunnel."""
        if isinstance(port.part, Tunnel):
            yield from self._encapsulate(port, port.part, frame, trail)
        elif (passed := self._passes(trail, port, frame)) and port.far and port.key not in self.down:
            yield from self._enter(self.index.interfaces[port.far], frame, passed)

    def _enter(self, port: DescribedInterface, frame: EncapsulatedPacket, trail: Trail) -> Arrivals:
        """Receive a frame at a node, from a cable or a tunnel."""
        passed = self._passes(trail, port, frame)
        if passed is None:
            return
        if port.master is not None:
            yield from self._bridge(self.index.interfaces[port.at, port.master], frame, passed, port)
        elif self._owns(port.at, frame.to):
            self.taken += 1
            yield from self._receive(port.at, frame._replace(to=""), passed)

    def _bridge(
        self, bridge: DescribedInterface, frame: EncapsulatedPacket, trail: Trail, came: DescribedInterface
    ) -> Arrivals:
        """Bridge a frame: to its own node, or out of every other port, where other nodes drop it."""
        if came is not bridge and self._owns(bridge.at, frame.to):
            if passed := self._passes(trail, bridge, frame):
                self.taken += 1
                yield from self._receive(bridge.at, frame._replace(to=""), passed)
            return
        for port in self.index.interfaces.values():
            if (port.at, port.master) == bridge.key and port is not came:
                yield from self._port(port, frame, trail)

    def _receive(self, node: str, packet: EncapsulatedPacket, trail: Trail) -> Arrivals:
        """Handle a packet at a node that it was addressed to on this link."""
        if self._owns(node, packet.target):
            yield from self._arrive(node, packet, trail)
        elif not self.index.nodes[node].forwards:
            self._end(trail, f"{node} does not forward, and {packet.target} is not its address")
        elif packet.ttl <= 1:
            self._end(trail, f"the TTL expires at {node}")
        else:
            yield from self._route(node, packet._replace(ttl=packet.ttl - 1), trail)

    def _encapsulate(
        self, one: DescribedInterface, tunnel: Tunnel, what: EncapsulatedPacket, trail: Trail
    ) -> Arrivals:
        """Send into a tunnel; the outer packet is routed from the tunnel's node."""
        passed = self._passes(trail, one, what)
        if passed is None:
            return
        if nesting_depth(what) == DEEPEST:
            self._end(
                passed, f"the path from {tunnel.at}:{tunnel.name} to its other end nests tunnels without end"
            )
            return
        # The inner TTL (ip_tunnel_xmit, ip_tunnel.c), or the namespace's default (vxlan_xmit_one, vxlan_core.c).
        ttl = TTL if tunnel.kind in UDP_PORTS else what.ttl
        for remote in tunnel.remotes:
            outer = EncapsulatedPacket(tunnel.local or "", remote, ttl, headers(tunnel), what, tunnel)
            yield from self._route(tunnel.at, outer, passed, tunnel.link)

    def _arrive(self, node: str, packet: EncapsulatedPacket, trail: Trail) -> Arrivals:
        """Deliver a packet at its target, which decapsulates it if necessary."""
        if packet.inner is None:
            yield trail, packet
            return
        own = (
            one
            for one in self.index.tunnels
            if one.at == node and isinstance(one.part, Tunnel) and decapsulates(one.part, packet)
        )
        tunnel = next(own, None)
        if tunnel is None:
            kind = packet.by.kind if packet.by else ""
            self._end(
                trail, f"{node} has no {kind} that accepts packets from {packet.source} to {packet.target}"
            )
        elif packet.inner.to:
            yield from self._enter(tunnel, packet.inner, trail)
        elif passed := self._passes(trail, tunnel, packet.inner):
            yield from self._receive(node, packet.inner, passed)
