"""Compute the MTU of every interface of a Network, through any number of encapsulations."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from labkit.common.errors import BadInput
from labkit.measure.topologies.network import encapsulation
from labkit.measure.topologies.network.encapsulation import LAYER_2, Header
from labkit.measure.topologies.network.model import Address, DescribedInterface, Key, NetworkIndex, remotes
from labkit.measure.topologies.network.parts import Bridge, Cable, Tunnel

MIN_BYTES = {4: 68, 6: 1280}  # RFC 791, RFC 8200
MAX_BYTES = 65535  # of a veth


@dataclass(frozen=True)
class DerivedMtu:
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

    def __init__(self, described: NetworkIndex) -> None:
        self._described = described
        self._derived: dict[Key, DerivedMtu] = {}
        self._in_progress: list[DescribedInterface] = []

    def of(self, one: DescribedInterface) -> int:
        """Return the MTU of an interface in bytes: the configured one, or the largest that fits."""
        return self.derived(one).mtu_bytes

    def derived(self, one: DescribedInterface) -> DerivedMtu:
        """Return the MTU of an interface with its derivation."""
        if one.key not in self._derived:
            if one in self._in_progress:
                raise BadInput(f"{one} carries its own outer packets: give its remote another route")
            self._in_progress.append(one)
            self._derived[one.key] = self._derive(one)
            self._in_progress.pop()
        return self._derived[one.key]

    def _derive(self, one: DescribedInterface) -> DerivedMtu:
        part = one.part
        if isinstance(part, Bridge):
            ports = [
                port for port in self._described.interfaces.values() if (port.at, port.master) == one.key
            ]
            mtus = [self.derived(port) for port in ports]
            return min(mtus, key=lambda mtu: mtu.mtu_bytes, default=self._own(one, None))
        if isinstance(part, Cable) or part.mtu_bytes is not None:
            return self._own(one, part.mtu_bytes)
        return self.largest(one, part)

    def _own(self, one: DescribedInterface, mtu_bytes: int | None) -> DerivedMtu:
        return DerivedMtu(self._described.network.mtu_bytes if mtu_bytes is None else mtu_bytes, one)

    def largest(self, one: DescribedInterface, tunnel: Tunnel) -> DerivedMtu:
        """Return the largest MTU of a tunnel: the minimum over all paths to all remotes."""
        mtus = []
        for remote in map(ip_address, remotes(tunnel)):
            outside = self._outside(one, tunnel, remote)
            added = encapsulation.headers(tunnel.kind, remote.version, key=tunnel.id is not None)
            mtus.append(DerivedMtu(outside.base_bytes, outside.at, (*outside.added, *added)))
        return min(mtus, key=lambda mtu: mtu.mtu_bytes)

    def _outside(self, one: DescribedInterface, tunnel: Tunnel, remote: Address) -> DerivedMtu:
        """Return the MTU for the tunnel's outer packets."""
        if remote.is_multicast:
            return self.derived(self._described.interfaces[one.at, tunnel.link or ""])
        result = self._on_paths(one.at, remote, tunnel.link)
        if result is None:
            raise BadInput(
                f"{one} cannot reach its remote {remote}: give {one.at} and the nodes between a route to it"
            )
        return result

    def _on_paths(self, at: str, to: Address, link: str | None) -> DerivedMtu | None:
        """Return the smallest MTU on any path from a node to an address; None if no path arrives.

        `link`: the interface by which the path must leave.
        """
        described, arrived = self._described, False
        mtus: list[DerivedMtu] = []
        waiting, seen = [(at, to)], {(at, to)}
        while waiting:
            here, target = waiting.pop()
            for hop in described.next_hops(here, target):
                if here == at and target == to and link not in (None, hop.out.name):
                    continue
                near = described.behind(hop, target)
                if near is None or near not in described.owner:
                    continue
                mtus.append(self.derived(hop.out))
                there = described.owner[near].at
                arrived |= there == described.owner[to].at if to in described.owner else False
                if there != here and there != self._node(target) and (there, target) not in seen:
                    seen.add((there, target))
                    waiting.append((there, target))
        return min(mtus, key=lambda mtu: mtu.mtu_bytes) if arrived else None

    def _node(self, address: Address) -> str | None:
        owner = self._described.owner.get(address)
        return None if owner is None else owner.at


def check(described: NetworkIndex, mtus: Mtus) -> None:
    """Raise BadInput, with the arithmetic, for an MTU that does not fit."""
    for one in described.interfaces.values():
        if isinstance(one.part, Tunnel) and one.part.mtu_bytes is not None:
            largest = mtus.largest(one, one.part)
            if one.part.mtu_bytes > largest.mtu_bytes:
                raise BadInput(f"the MTU {one.part.mtu_bytes} of {one} does not fit: {largest}")
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
                f"the MTU {mtus.of(one)} of {one} does not fit through {least} on the same link: {mtus.derived(least)}"
            )


def _check_size(described: NetworkIndex, mtus: Mtus, one: DescribedInterface) -> None:
    """Raise BadInput for an MTU outside the range of its IP version or of a veth."""
    mtu = mtus.derived(one)
    versions = {one.address.version} if one.address is not None else {4}
    routed = [hop for route in described.routes if route.at == one.at for hop in described.hops(route)]
    if any(hop.via is not None and hop.via.version == 6 for hop in routed if hop.out is one):
        versions.add(6)
    least = max(MIN_BYTES[version] for version in versions)
    if mtu.mtu_bytes < least:
        why = "IPv6 needs 1280 (RFC 8200)" if least == MIN_BYTES[6] else "IPv4 needs 68 (RFC 791)"
        derivation = f": {mtu}" if mtu.added else ""
        raise BadInput(f"the MTU {mtu.mtu_bytes} of {one} is too small, {why}{derivation}")
    if mtu.mtu_bytes > MAX_BYTES:
        raise BadInput(f"the MTU {mtu.mtu_bytes} of {one} is too large: the limit of a veth is {MAX_BYTES}")
