"""Match the two ends of tunnels from their attributes in the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any, NamedTuple

import msgspec

from labkit.common.topology_state import InterfaceState, Namespace, Place, TunnelState


class _End(NamedTuple):
    """A tunnel at its place. `key`: what both ends share; `own`: its possible outer addresses."""

    place: Place
    key: tuple[Any, ...]
    own: frozenset[str]
    tunnel: TunnelState

    def sends_to(self, other: _End) -> bool:
        """Return whether the other end has one of the remotes, or joined the multicast group."""
        groups = {remote for remote in self.tunnel.remotes if ip_address(remote).is_multicast}
        return not other.own.union(groups.intersection(other.tunnel.remotes)).isdisjoint(self.tunnel.remotes)


def with_peers(namespaces: list[Namespace]) -> list[Namespace]:
    """Return the namespaces with the peers of their tunnels.

    Peers have the same kind, identifier and port, send to each other, and are connected by links. Unconnected islands,
    like the pairs of `vxlan`, may have equal outer addresses.
    """
    result: dict[tuple[Any, ...], list[_End]] = {}
    ends = {end.place: end for end in _ends(namespaces)}
    for end in ends.values():
        result.setdefault(end.key, []).append(end)

    def peers(end: _End) -> list[Place]:
        others = (other for other in result[end.key] if other.place.namespace != end.place.namespace)
        return [other.place for other in others if end.sends_to(other) and other.sends_to(end)]

    def with_them(space: Namespace, one: InterfaceState) -> InterfaceState:
        end = ends.get(Place(space.name, one.name))
        if end is None:
            return one
        return msgspec.structs.replace(one, tunnel=msgspec.structs.replace(end.tunnel, peers=peers(end)))

    return [
        msgspec.structs.replace(space, interfaces=[with_them(space, one) for one in space.interfaces])
        for space in namespaces
    ]


def _ends(namespaces: list[Namespace]) -> Iterator[_End]:
    """Yield every tunnel; one without a local address may use any address of its namespace."""
    island = _islands(namespaces)
    for space in namespaces:
        addresses = {each.partition("/")[0] for one in space.interfaces for each in one.addresses}
        for one in space.interfaces:
            if one.tunnel is not None:
                own = addresses if one.tunnel.local is None else {one.tunnel.local}
                key = (island[space.name], one.kind, one.tunnel.id, one.tunnel.port)
                yield _End(Place(space.name, one.name), key, frozenset(own), one.tunnel)


def _islands(namespaces: list[Namespace]) -> dict[str, str]:
    """Map each namespace to a representative of all namespaces that links connect to it."""
    joined: dict[str, set[str]] = {space.name: set() for space in namespaces}
    for space in namespaces:
        for one in space.interfaces:
            far = one.peer or one.lower
            if far is not None and far.namespace in joined:
                joined[space.name].add(far.namespace)
                joined[far.namespace].add(space.name)
    island: dict[str, str] = {}
    for name in joined:
        reached = [name] if name not in island else []
        while reached:
            at = reached.pop()
            island[at] = name
            reached += [other for other in joined[at] if other not in island]
    return island
