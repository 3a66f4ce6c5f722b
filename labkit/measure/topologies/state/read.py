"""Read the live state of a topology from the kernel: every namespace, with names instead of numbers.

Only the names of namespaces and of the pairs' ends, and what BPF programs redirect, come from the topology itself: the
kernel tells that a program is attached, not what it does.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from typing import Any, NamedTuple

from msgspec.structs import replace

from labkit.common.errors import LabkitError
from labkit.common.topology_state import (
    InterfaceState,
    Namespace,
    NextHop,
    PairEnd,
    Place,
    RedirectState,
    Route,
    State,
    TunnelState,
)
from labkit.measure import endpoints
from labkit.measure.topologies.base import BETWEEN, MACHINE, Topology
from labkit.measure.topologies.network.kinds import KINDS, cables
from labkit.measure.topologies.state.packet_path import packet_paths
from labkit.system import netlink
from labkit.system.machine import netfilter
from labkit.system.netlink import encryption, ethtool

ELSEWHERE = "elsewhere"  # a namespace outside the topology


@dataclass
class NamespaceRead:
    """A namespace while it is read: its descriptor, its links, and the namespaces that the kernel numbers in it."""

    name: str
    fd: int
    kernel: netlink.Netlink
    links: dict[int, netlink.Link]
    others: dict[int, NamespaceRead]
    shown: Collection[str] | None = None  # the names of interfaces to report; None: all
    detailed: bool = False  # with queueing disciplines, offloads and rules

    def place(self, link: netlink.Link, index: int) -> Place:
        """Return the interface `index` in the namespace that `link` refers to."""
        at = self if link.link_netnsid is None else self.others.get(link.link_netnsid)
        if at is None or index not in at.links:
            return Place(ELSEWHERE, f"index {index}")
        return Place(at.name, at.links[index].name)


def state(topology: Topology) -> State:
    with _all(topology) as seen:
        for number, one in enumerate(seen):
            _number(one, number, seen)
        used = {
            place
            for one in seen
            if one.name != MACHINE
            for link in one.links.values()
            if (place := _linked_interface(one, link)) is not None
        }
        for one in seen:
            if one.name == MACHINE and len(seen) > 1:  # alone, it is what is looked at
                one.shown = {place.interface for place in used if place.namespace == MACHINE}
        result = [_namespace(one) for one in seen]
    ends = [(_end(pair.client), _end(pair.server)) for pair in topology.pairs]
    if topology.switch is not None:
        from labkit.measure.topologies.open_vswitch.state import with_switch  # what only a switch needs

        result = with_switch(result, topology.switch)
    result = [_with_programs(space, topology) for space in _with_peers(result)]
    made = State(topology.name, os.uname().release, ends, result, *map(list, topology.steps))
    if topology.shown is not None or not ends:  # the routes of an existing network were followed
        return made
    client, server = ends[0]
    (forward,) = packet_paths(replace(made, pairs=[(client, server)]))
    (back,) = packet_paths(replace(made, pairs=[(server, client)]))
    return replace(made, forward=forward, back=back)


def _with_programs(space: Namespace, topology: Topology) -> Namespace:
    """Add what the topology alone knows: what its BPF programs redirect, and programs that relay data."""
    own = {
        one.interface: RedirectState(
            Place(one.at, one.to), one.helper, one.hook, [Place(one.at, name) for name in one.unseen]
        )
        for one in topology.redirects
        if one.at == space.name
    }
    interfaces = [replace(one, redirect=own.get(one.name)) for one in space.interfaces]
    return replace(space, interfaces=[*interfaces, *(topology.relays if space.name == BETWEEN else ())])


def _end(endpoint: endpoints.Endpoint) -> PairEnd:
    return PairEnd(
        endpoint.name, endpoint.namespace.name, endpoint.tap or endpoint.interface, endpoint.address
    )


@contextmanager
def _all(topology: Topology) -> Iterator[list[NamespaceRead]]:
    seen = [namespace_read(space.name, space.fd, space.netlink) for space in topology.namespaces]
    if topology.shown is not None:
        for one in seen:
            one.shown, one.detailed = topology.shown[one.name], True
    machine = topology.spec.machine_netns
    if topology.spec.parent is None or machine is None:
        yield seen
        return
    with netlink.inside(machine):
        kernel = netlink.Netlink()
    with closing(kernel):
        yield [*seen, namespace_read(MACHINE, machine, kernel)]


def namespace_read(name: str, fd: int, kernel: netlink.Netlink) -> NamespaceRead:
    """Read the links of a namespace, without what they refer to in others."""
    return NamespaceRead(name, fd, kernel, {link.index: link for link in netlink.links(kernel)}, {})


def _number(one: NamespaceRead, position: int, seen: list[NamespaceRead]) -> None:
    """Find the namespaces that this one's links refer to.

    A namespace has a number only as seen from another one, and the kernel translates it only for a descriptor.
    Namespaces with many links, and neighbours in the list, are tried first.
    """
    wanted = {link.link_netnsid for link in one.links.values() if link.link_netnsid is not None}
    most = max(seen, key=lambda other: len(other.links))
    order = sorted(range(len(seen)), key=lambda at: (seen[at] is not most, abs(at - position)))
    for at in order:
        if len(one.others) == len(wanted):
            return
        number = netlink.id_of(one.kernel, seen[at].fd)
        if number in wanted:
            one.others[number] = seen[at]


def _linked_interface(one: NamespaceRead, link: netlink.Link) -> Place | None:
    """Return the interface that a link refers to: its peer, or a lower device."""
    index = link.data.get("IFLA_VXLAN_LINK") or link.link
    if not index or (index == link.index and link.link_netnsid is None):
        return None
    return one.place(link, index)


def _namespace(one: NamespaceRead) -> Namespace:
    """Return the state of a namespace, with the interfaces that are shown."""
    addresses: dict[int, list[str]] = {}
    for index, address in netlink.addresses(one.kernel):
        addresses.setdefault(index, []).append(address)
    shown = [link for link in one.links.values() if one.shown is None or link.name in one.shown]
    replicated: dict[int, list[str]] = {}
    for index, remote in netlink.remotes(one.kernel) if any(link.kind == "vxlan" for link in shown) else ():
        replicated.setdefault(index, []).append(remote)
    own = {address.partition("/")[0] for each in addresses.values() for address in each}
    leaving = [each for each in encryption.associations(one.fd) if each.source in own]
    protected = {each.source for each in leaving if each.mode == "transport"}
    interfaces = []
    for link in shown:
        words = addresses.get(link.index, [])
        mode = "esp" if protected.intersection(word.partition("/")[0] for word in words) else _mode(link)
        tunnel = encrypted(one.fd, link, leaving) or tunnel_of(link, replicated.get(link.index, []))
        interfaces.append(_interface(one, link, words, mode, tunnel))
    interfaces = [_with_lower(one.name, each, interfaces) for each in interfaces]
    routes = [] if one.name == MACHINE else [_route(one, route) for route in netlink.routes(one.kernel)]
    if not one.detailed:
        return Namespace(one.name, interfaces, routes)
    names = {link.name for link in shown}
    routes = [route for route in routes if all(hop.interface in names for hop in route.hops)]
    with netlink.inside(one.fd):
        interfaces = [_with_details(one, state) for state in interfaces]
        return Namespace(one.name, interfaces, routes, netfilter.rules())


def _with_details(one: NamespaceRead, state: InterfaceState) -> InterfaceState:
    """Add the queueing discipline, and the offloads in ethtool's groups."""
    qdisc = netlink.qdisc(one.kernel, state.index)
    with suppress(LabkitError):  # an old kernel has no ethtool netlink
        offloads = ethtool.features(state.name)
        named = {name: offloads[name] for name in ethtool.GROUPS if name in offloads}
        return replace(state, qdisc=qdisc, offloads=named)
    return replace(state, qdisc=qdisc)


def _route(one: NamespaceRead, route: netlink.Route) -> Route:
    hops = [
        NextHop(one.links[hop.index].name if hop.index in one.links else None, hop.via, hop.state)
        for hop in route.hops
    ]
    limits = {name: value for name, value in route.metrics.items() if isinstance(value, int)}
    return Route(
        to=route.to,
        hops=hops,
        source=route.source,
        metric=route.metric,
        connected=route.connected,
        limits=limits,
    )


def _interface(
    one: NamespaceRead, link: netlink.Link, addresses: list[str], mode: str | None, tunnel: TunnelState | None
) -> InterfaceState:
    far, has_peer = _linked_interface(one, link), link.kind in cables()
    return InterfaceState(
        name=link.name,
        index=link.index,
        kind=link.kind or ("loopback" if link.mac is None else "nic"),
        mode=mode,
        up=link.up,
        carrier=link.carrier,
        mtu_bytes=link.mtu_bytes,
        mac=link.mac,
        addresses=addresses,
        master=one.links[link.master].name if link.master in one.links else None,
        peer=far if has_peer else None,
        lower=None if has_peer else far,
        tunnel=tunnel,
    )


def _with_lower(at: str, one: InterfaceState, interfaces: list[InterfaceState]) -> InterfaceState:
    """Return a tunnel that is bound to no interface with the one whose subnet has its remote."""
    if one.tunnel is None or one.lower is not None or len(one.tunnel.remotes) != 1:
        return one
    to = ip_address(one.tunnel.remotes[0])
    for other in interfaces:
        if other is not one and any(to in ip_interface(address).network for address in other.addresses):
            return replace(one, lower=Place(at, other.name))
    return one


def _mode(link: netlink.Link) -> str | None:
    """Return the mode of an interface, which pyroute2 gives as a word or a number; None if its kind has no modes."""
    if link.kind not in KINDS:
        return None
    mode = link.data.get(KINDS[link.kind].mode_attribute)
    return next((name for name, number in KINDS[link.kind].modes.items() if number == mode), mode)


def encrypted(netns: int, link: netlink.Link, leaving: list[encryption.Association]) -> TunnelState | None:
    """Return the outside of a WireGuard interface or of ESP in tunnel mode, which the link itself does not have.

    `leaving`: the associations of packets that the namespace itself sends.
    """
    if link.kind == "wireguard":
        with suppress(OSError, netlink.LinkError):  # another user's
            device = encryption.wireguard(netns, link.index)
            return TunnelState(remotes=device.remotes, port=device.port, mark=device.mark or None)
    number = link.data.get("IFLA_XFRM_IF_ID")
    for each in leaving if number else ():
        if each.interface_id == number:
            return TunnelState(id=number, local=each.source, remotes=[each.target])
    return None


def tunnel_of(link: netlink.Link, replicated: list[str]) -> TunnelState | None:
    """Return the encapsulation of an interface. replicated: the remotes of a VXLAN's entries (`netlink.remotes`)."""

    def first_value(what: str) -> Any:
        """Return the first attribute that holds this and has a value; a key or an address of zero is none."""
        tables = [kind.tunnel_data or {} for kind in KINDS.values() if not kind.is_encrypted]
        # A GRE tunnel may expect another key (IKEY) than it sends, and is known by that one.
        names = [
            name for table in tables for name, holds in table.items() if holds == what and "_IKEY" not in name
        ]
        values = (link.data.get(name) for each in names for name in (each, f"{each}6"))
        return next((value for value in values if value not in (None, 0, "0.0.0.0", "::")), None)

    remote = first_value("remote")
    remotes = replicated or ([remote] if remote is not None else [])
    result = TunnelState(
        remotes=remotes, **{what: first_value(what) for what in ("id", "local", "port", "ttl", "mark")}
    )
    return None if result == TunnelState() else result


class _TunnelEnd(NamedTuple):
    """A tunnel at its place. `key`: what both ends share; `own`: its possible outer addresses."""

    place: Place
    key: tuple[Any, ...]
    own: frozenset[str]
    tunnel: TunnelState

    def sends_to(self, other: _TunnelEnd) -> bool:
        """Return whether the other end has one of the remotes, or joined the multicast group."""
        groups = {remote for remote in self.tunnel.remotes if ip_address(remote).is_multicast}
        return not other.own.union(groups.intersection(other.tunnel.remotes)).isdisjoint(self.tunnel.remotes)


def _with_peers(namespaces: list[Namespace]) -> list[Namespace]:
    """Return the namespaces with the peers of their tunnels.

    Peers have the same kind, identifier and port, send to each other, and are connected by links. Unconnected islands,
    like the pairs of `vxlan`, may have equal outer addresses.
    The ends of an encrypted tunnel may have different ports; equal ones tell several tunnels between two nodes apart.
    """
    result: dict[tuple[Any, ...], list[_TunnelEnd]] = {}
    ends = {end.place: end for end in _tunnel_ends(namespaces)}
    for end in ends.values():
        result.setdefault(end.key, []).append(end)

    def peers(end: _TunnelEnd) -> list[Place]:
        others = (other for other in result[end.key] if other.place.namespace != end.place.namespace)
        joined = [other for other in others if end.sends_to(other) and other.sends_to(end)]
        same = [other for other in joined if other.tunnel.port == end.tunnel.port]
        return [other.place for other in same or (joined if len(joined) == 1 else [])]

    def with_them(space: Namespace, one: InterfaceState) -> InterfaceState:
        end = ends.get(Place(space.name, one.name))
        if end is None:
            return one
        return replace(one, tunnel=replace(end.tunnel, peers=peers(end)))

    return [
        replace(space, interfaces=[with_them(space, one) for one in space.interfaces]) for space in namespaces
    ]


def _tunnel_ends(namespaces: list[Namespace]) -> Iterator[_TunnelEnd]:
    """Yield every tunnel; one without a local address may use any address of its namespace."""
    island = _islands(namespaces)
    for space in namespaces:
        addresses = {each.partition("/")[0] for one in space.interfaces for each in one.addresses}
        for one in space.interfaces:
            if one.tunnel is not None:
                own = addresses if one.tunnel.local is None else {one.tunnel.local}
                port = None if KINDS[str(one.kind)].is_encrypted else one.tunnel.port
                key = (island[space.name], one.kind, one.tunnel.id, port)
                yield _TunnelEnd(Place(space.name, one.name), key, frozenset(own), one.tunnel)


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
