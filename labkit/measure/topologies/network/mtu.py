"""Compute the MTU of every interface of a Network, through any number of encapsulations."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from labkit.common.errors import BadInput
from labkit.measure.topologies.network import encapsulation
from labkit.measure.topologies.network.encapsulation import LAYER_2, Header
from labkit.measure.topologies.network.model import Address, Described, DescribedInterface, Key, remotes
from labkit.measure.topologies.network.parts import Bridge, Cable, Tunnel

MIN_BYTES = {4: 68, 6: 1280}  # RFC 791, RFC 8200
MAX_BYTES = 65535  # of a veth


@dataclass(frozen=True)
class Room:
    """An MTU and where it comes from: the MTU of interface `at`, minus the headers added on the way there."""

    base_bytes: int
    at: DescribedInterface
    added: tuple[Header, ...] = ()

    @property
    def mtu_bytes(self) -> int:
        """The MTU that is left, in bytes."""
        return self.base_bytes - encapsulation.length_bytes(self.added)

    def __str__(self) -> str:
        return encapsulation.arithmetic(self.base_bytes, self.at.name, self.added)


class Mtus:
    """The MTUs of a network's interfaces, each computed once.

    Raises BadInput for a tunnel whose remote is unreachable or reached through the tunnel itself.
    """

    def __init__(self, described: Described) -> None:
        self._described = described
        self._rooms: dict[Key, Room] = {}
        self._in_progress: list[DescribedInterface] = []

    def of(self, one: DescribedInterface) -> int:
        """Return the MTU of an interface in bytes: the configured one, or the largest that fits."""
        return self.room(one).mtu_bytes

    def room(self, one: DescribedInterface) -> Room:
        """Return the MTU of an interface with its derivation."""
        if one.key not in self._rooms:
            if one in self._in_progress:
                raise BadInput(f"{one} carries its own outer packets: give its remote another route")
            self._in_progress.append(one)
            self._rooms[one.key] = self._room(one)
            self._in_progress.pop()
        return self._rooms[one.key]

    def _room(self, one: DescribedInterface) -> Room:
        part = one.part
        if isinstance(part, Bridge):
            ports = [
                port for port in self._described.interfaces.values() if (port.at, port.master) == one.key
            ]
            rooms = [self.room(port) for port in ports]
            return min(rooms, key=lambda room: room.mtu_bytes, default=self._own(one, None))
        if isinstance(part, Cable) or part.mtu_bytes is not None:
            return self._own(one, part.mtu_bytes)
        return self.fitting(one, part)

    def _own(self, one: DescribedInterface, mtu_bytes: int | None) -> Room:
        return Room(self._described.network.mtu_bytes if mtu_bytes is None else mtu_bytes, one)

    def fitting(self, one: DescribedInterface, tunnel: Tunnel) -> Room:
        """Return the largest MTU of a tunnel: the minimum over all paths to all remotes."""
        rooms = []
        for remote in map(ip_address, remotes(tunnel)):
            outside = self._outside(one, tunnel, remote)
            added = encapsulation.headers(tunnel.kind, remote.version, key=tunnel.id is not None)
            rooms.append(Room(outside.base_bytes, outside.at, (*outside.added, *added)))
        return min(rooms, key=lambda room: room.mtu_bytes)

    def _outside(self, one: DescribedInterface, tunnel: Tunnel, remote: Address) -> Room:
        """Return the room for the tunnel's outer packets."""
        if remote.is_multicast:
            return self.room(self._described.interfaces[one.at, tunnel.link or ""])
        result = self._on_paths(one.at, remote, tunnel.link)
        if result is None:
            raise BadInput(
                f"{one} cannot reach its remote {remote}: give {one.at} and the nodes between a route to it"
            )
        return result

    def _on_paths(self, at: str, to: Address, link: str | None) -> Room | None:
        """Return the smallest room on any path from a node to an address; None if no path arrives.

        `link`: the interface by which the path must leave.
        """
        described, arrived = self._described, False
        rooms: list[Room] = []
        waiting, seen = [(at, to)], {(at, to)}
        while waiting:
            here, target = waiting.pop()
            for hop in described.next_hops(here, target):
                if here == at and target == to and link not in (None, hop.out.name):
                    continue
                near = described.behind(hop, target)
                if near is None or near not in described.owner:
                    continue
                rooms.append(self.room(hop.out))
                there = described.owner[near].at
                arrived |= there == described.owner[to].at if to in described.owner else False
                if there != here and there != self._node(target) and (there, target) not in seen:
                    seen.add((there, target))
                    waiting.append((there, target))
        return min(rooms, key=lambda room: room.mtu_bytes) if arrived else None

    def _node(self, address: Address) -> str | None:
        owner = self._described.owner.get(address)
        return None if owner is None else owner.at


def check(described: Described, mtus: Mtus) -> None:
    """Raise BadInput, with the arithmetic, for an MTU that does not fit."""
    for one in described.interfaces.values():
        if isinstance(one.part, Tunnel) and one.part.mtu_bytes is not None:
            fitting = mtus.fitting(one, one.part)
            if one.part.mtu_bytes > fitting.mtu_bytes:
                raise BadInput(f"the MTU {one.part.mtu_bytes} of {one} does not fit: {fitting}")
    for one in described.interfaces.values():
        _check_size(described, mtus, one)
    narrowest: dict[Key, DescribedInterface] = {}
    for one in described.interfaces.values():
        key = described.link[one.key]
        if one.kind != "bridge":  # a bridge is as narrow as its narrowest port
            narrowest[key] = min(narrowest.get(key, one), one, key=mtus.of)
    for one in described.interfaces.values():
        least = narrowest.get(described.link[one.key], one)
        frames = one.kind in ("veth", "bridge", *LAYER_2)  # the ends of a layer 3 tunnel may differ
        if one.address is not None and frames and mtus.of(one) > mtus.of(least):
            raise BadInput(
                f"the MTU {mtus.of(one)} of {one} does not fit through {least} on the same link: {mtus.room(least)}"
            )


def _check_size(described: Described, mtus: Mtus, one: DescribedInterface) -> None:
    """Raise BadInput for an MTU outside the range of its IP version or of a veth."""
    room = mtus.room(one)
    versions = {one.address.version} if one.address is not None else {4}
    routed = [hop for route in described.routes if route.at == one.at for hop in described.hops(route)]
    if any(hop.via is not None and hop.via.version == 6 for hop in routed if hop.out is one):
        versions.add(6)
    least = max(MIN_BYTES[version] for version in versions)
    if room.mtu_bytes < least:
        why = "IPv6 needs 1280 (RFC 8200)" if least == MIN_BYTES[6] else "IPv4 needs 68 (RFC 791)"
        room_text = f": {room}" if room.added else ""
        raise BadInput(f"the MTU {room.mtu_bytes} of {one} is too small, {why}{room_text}")
    if room.mtu_bytes > MAX_BYTES:
        raise BadInput(f"the MTU {room.mtu_bytes} of {one} is too large: the limit of a veth is {MAX_BYTES}")
