"""Every path that a packet may take in a Network, computed from its description alone.

The kernel is not read, so measured paths can be compared with these.

  paths(leaf_spine_overlay.leaf_spine_network(), "cs1", "cs5")[0].nodes
  ('cs1', 'con_ns1', 'lc1', 'sc2', 'lc2', 'con_ns3', 'cs5')
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import groupby
from typing import NamedTuple

from labkit.common.errors import BadInput
from labkit.measure.topologies.network.model import (
    DescribedInterface,
    Key,
    NetworkIndex,
    RouteChoice,
    address_of,
    are_compatible,
)
from labkit.measure.topologies.network.parts import Network, Tunnel, UpperDevice
from studies.overlay.encapsulated_packets import (
    EncapsulatedPacket,
    Frame,
    decapsulates,
    headers,
    layers,
    nesting_depth,
    outer_ttl,
    without_ttl,
)

# Nested packets; the kernel's limit is the same (XMIT_RECURSION_LIMIT, include/linux/netdevice.h).
DEEPEST = 8
SHARING = ("bridge", "l2", "l3", "l3s")  # modes of upper devices that pass frames among themselves
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
        nodes, network = self.index.nodes, self.index.network
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

    def _owns(self, node: str, address: str) -> bool:
        """Return whether a node accepts packets to an address.

        It may have the address on any interface (weak host model, arp_ignore 0), or a VXLAN that joined the group.
        """
        to = ip_address(address)
        if to.is_multicast:
            return any(address in tunnel.remotes for one, tunnel in self._tunnels() if one.at == node)
        return to in self.index.owner and self.index.owner[to].at == node

    def _tunnels(self) -> Iterator[tuple[DescribedInterface, Tunnel]]:
        for one in self.index.tunnels:
            if isinstance(one.part, Tunnel):
                yield one, one.part

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

    def _passes(
        self, trail: Trail, one: DescribedInterface, what: EncapsulatedPacket | Frame
    ) -> Trail | None:
        """Return the trail with one more interface; None if the packet passed it before, which would be a loop."""
        before = [without_ttl(step.what) for step in trail if (step.node, step.interface) == one.key]
        if without_ttl(what) not in before:
            return (*trail, PathStep(*one.key, what))
        self._end(trail, f"the packet returns to {one.at}:{one.name}, which is a routing loop")
        return None

    def _route(self, node: str, packet: EncapsulatedPacket, trail: Trail, out: str | None = None) -> Arrivals:
        """Route a packet that a node made or forwards; multicast always goes out."""
        to = ip_address(packet.target)
        if self._owns(node, packet.target) and not to.is_multicast:
            yield from self._arrive(node, packet, trail)
            return
        hops = self._hops(node, packet.target, out)
        if not hops:
            self._end(trail, f"{node} has no route to {packet.target}")
        for hop in hops:
            source = packet.source or self.index.source(hop.out, to.version)
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
        frame, taken = Frame(to, packet), self.taken
        if out.kind == "bridge":
            if passed := self._passes(trail, out, frame):
                yield from self._bridge(out, frame, passed, out)
        else:
            yield from self._port(out, frame, trail)
        if self.taken == taken:
            self._end(trail, f"no node answers for {to} at {out.at}:{out.name}")

    def _port(self, port: DescribedInterface, frame: Frame, trail: Trail) -> Arrivals:
        """Send a frame out of a cable's end or a tunnel."""
        if isinstance(port.part, Tunnel):
            yield from self._encapsulate(port, port.part, frame, trail)
        elif isinstance(port.part, UpperDevice):
            if passed := self._passes(trail, port, frame):
                yield from self._share(port.part.lower, port, frame, passed)
        elif (passed := self._passes(trail, port, frame)) and port.far and port.key not in self.down:
            yield from self._enter(self.index.interfaces[port.far], frame, passed)

    def _enter(self, port: DescribedInterface, frame: Frame, trail: Trail) -> Arrivals:
        """Receive a frame at a node, from a cable or a tunnel."""
        passed = self._passes(trail, port, frame)
        if passed is None:
            return
        if any(isinstance(one.part, UpperDevice) and one.part.lower == port.key for one in self._uppers()):
            yield from self._share(port.key, None, frame, passed)
        if port.master is not None:
            yield from self._bridge(self.index.interfaces[port.at, port.master], frame, passed, port)
        elif self._owns(port.at, frame.to):
            self.taken += 1
            yield from self._receive(port.at, frame.packet, passed)

    def _uppers(self) -> list[DescribedInterface]:
        return [one for one in self.index.interfaces.values() if isinstance(one.part, UpperDevice)]

    def _share(self, lower: Key, came: DescribedInterface | None, frame: Frame, trail: Trail) -> Arrivals:
        """Give a frame to the other devices on a lower device, and send it out there if one of them made it."""
        for one in self._uppers():
            shares = came is None or not isinstance(came.part, UpperDevice) or came.part.mode in SHARING
            if isinstance(one.part, UpperDevice) and one.part.lower == lower and one is not came and shares:
                yield from self._enter(one, frame, trail)
        if came is not None:
            yield from self._port(self.index.interfaces[lower], frame, trail)

    def _bridge(
        self, bridge: DescribedInterface, frame: Frame, trail: Trail, came: DescribedInterface
    ) -> Arrivals:
        """Bridge a frame: to its own node, or out of every other port, where other nodes drop it."""
        if came is not bridge and self._owns(bridge.at, frame.to):
            if passed := self._passes(trail, bridge, frame):
                self.taken += 1
                yield from self._receive(bridge.at, frame.packet, passed)
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
        self, one: DescribedInterface, tunnel: Tunnel, what: EncapsulatedPacket | Frame, trail: Trail
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
        for remote in self._others(tunnel):
            ttl = outer_ttl(tunnel, remote, what)
            outer = EncapsulatedPacket(tunnel.local or "", remote, ttl, headers(tunnel), what, tunnel)
            yield from self._route(tunnel.at, outer, passed, tunnel.link)

    def _others(self, tunnel: Tunnel) -> list[str]:
        """Return where a tunnel sends to; for a multicast group the other members, as if their addresses were
        learned."""
        result = []
        for remote in tunnel.remotes:
            to = ip_address(remote)
            if not to.is_multicast or not tunnel.learning:
                result.append(remote)
                continue
            for _, other in self._tunnels():
                if other != tunnel and are_compatible(other, tunnel) and remote in other.remotes:
                    [hop, *_] = self._hops(other.at, remote, other.link)
                    result.append(other.local or self.index.source(hop.out, to.version))
        return result

    def _arrive(self, node: str, packet: EncapsulatedPacket, trail: Trail) -> Arrivals:
        """Deliver a packet at its target, which decapsulates it if necessary."""
        if packet.inner is None:
            yield trail, packet
            return
        own = (one for one, tunnel in self._tunnels() if one.at == node and decapsulates(tunnel, packet))
        tunnel = next(own, None)
        if tunnel is None:
            kind = packet.by.kind if packet.by else ""
            self._end(
                trail, f"{node} has no {kind} that accepts packets from {packet.source} to {packet.target}"
            )
        elif isinstance(packet.inner, Frame):
            yield from self._enter(tunnel, packet.inner, trail)
        elif passed := self._passes(trail, tunnel, packet.inner):
            yield from self._receive(node, packet.inner, passed)
