"""The way of packets from one end to another through the namespaces of this machine, interface by interface.

Each namespace is asked for its route, and each link layer is followed to the interface that owns the next address.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from labkit.measure.existing.checks.spaces import Machine, Space
from labkit.measure.existing.spaces import UPPERS, Node
from labkit.measure.topologies.network.kinds import tunnels
from labkit.measure.topologies.state.read import tunnel_of
from labkit.system import netlink

MAX_HOPS, MAX_PLACES = 16, 4096
PRIVATE = {"private", "vepa", 1, 2}  # modes of macvlan in which two of them do not reach each other


@dataclass(frozen=True)
class Place:
    """An interface of a namespace."""

    space: Space
    index: int

    @property
    def link(self) -> netlink.Link:
        """The interface as the kernel lists it."""
        return self.space.links[self.index]

    @property
    def name(self) -> str:
        """Its name."""
        return self.link.name

    def __str__(self) -> str:
        return f"{self.space.name} {self.name}"


@dataclass(frozen=True)
class Problem:
    """Why the way ends, or goes on only in theory: the cause's name, a sentence, where, and a command that helps."""

    cause: str
    what: str
    where: str
    undo: str | None = None


@dataclass
class Way:
    """The way from an address of `start` to another address.

    places: each interface in order. arrivals: where a packet enters each namespace that routes it, or the last one.
    problems: why it ends or would be refused. complete: the other end was reached. domains: the interfaces of each link
    layer that it crosses. outer: what the outer packets of its tunnels have (`rules.may_match`).
    """

    start: Space
    source: str
    destination: str
    places: list[Place] = field(default_factory=list)
    arrivals: list[Place] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    domains: list[dict[Place, Place | None]] = field(default_factory=list)
    hops: list[tuple[Place, str, Place]] = field(default_factory=list)  # sender, next address, its owner
    routes: list[tuple[Space, dict[str, object]]] = field(default_factory=list)
    complete: bool = False
    tunnel_places: list[Place] = field(default_factory=list)
    circles: list[Place] = field(default_factory=list)  # where frames come back to an interface
    outer: list[dict[str, str]] = field(default_factory=list)


class Paths:
    """Finds ways among the namespaces of a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._spaces = machine, machine.spaces

    def way(self, start: Space, source: str, destination: str, depth: int = 0) -> Way:
        """Return the way of a packet."""
        result = Way(start, source, destination)
        at, arrived = start, None
        for _ in range(MAX_HOPS):
            if destination in at.addresses:
                result.complete = True
                return result
            route = self._route(result, at, arrived)
            out = at.index(str(route.get("dev")))
            if out is None or route.get("type") in ("unreachable", "blackhole", "prohibit"):
                return result
            via = route.get("via")
            next_hop = str(
                route.get("gateway") or (via.get("host") if isinstance(via, dict) else None) or destination
            )
            arrived = self._across(result, Place(at, out), next_hop, depth)
            if arrived is None:
                return result
            at = arrived.space
            result.arrivals.append(arrived)
        result.problems.append(
            Problem(
                "routing loop", f"packets to {destination} come back to namespaces where they were", at.name
            )
        )
        return result

    def _route(self, way: Way, at: Space, arrived: Place | None) -> dict[str, object]:
        from_there = ("from", way.source, "iif", arrived.name) if arrived else ("from", way.source)
        route, words = at.route(way.destination, *from_there)
        if words:
            way.problems.append(_refused(at, way, arrived, words))
            route, _ = at.route(way.destination)
        elif arrived and not forwards(at, arrived, "ipv6" if ":" in way.destination else "ipv4"):
            way.problems.append(_refused(at, way, arrived, ""))  # IPv6 tells it only to packets
        if route:
            way.routes.append((at, route))
        return route

    def _across(self, way: Way, out: Place, next_hop: str, depth: int) -> Place | None:
        """Follow a link layer to the owner of an address; None if nobody there has it."""
        domain = self._domain(way, out, depth)
        way.domains.append(domain)
        owners = [place for place in domain if owns(place, next_hop) and place != out]
        below = [one for one in owners if (by := domain[one]) and self._is_lower(by, one)]
        if not (real := [one for one in owners if one not in below]):
            way.places.append(out)
            way.problems.append(_nobody(out, next_hop, below))
            return None
        real.sort(key=lambda one: one.space.addresses[next_hop] != one.index)
        way.hops += [(out, next_hop, one) for one in real]
        steps: list[Place] = []
        step: Place | None = real[0]
        while step is not None:
            steps.append(step)
            step = domain[step]
        way.places += reversed(steps)
        return real[0]

    def _place(self, node: Node) -> Place:
        return Place(self._machine.space(node.space), node.index)

    def _is_lower(self, upper: Place, lower: Place) -> bool:
        """Return whether an interface is the lower device of another one with which it exchanges nothing."""
        if upper.link.kind not in UPPERS or upper.link.kind == "vlan":
            return False
        node = Node(upper.space.inode, upper.index)
        return self._spaces.referred(node, upper.link.link) == Node(lower.space.inode, lower.index)

    def _domain(self, way: Way, start: Place, depth: int) -> dict[Place, Place | None]:
        """Return every interface that frames of one can reach, each with the one before it."""
        came: dict[Place, Place | None] = {start: None}
        waiting = deque([start])
        while waiting and len(came) < MAX_PLACES:
            here = waiting.popleft()
            beside = [
                self._place(node) for node, _how in self._spaces.beside(Node(here.space.inode, here.index))
            ]
            for there in [*beside, *self._far_ends(way, here, depth)]:
                if there not in came:
                    came[there] = here
                    waiting.append(there)
                elif there in beside and came[here] != there and came[there] != here:
                    way.circles.append(there)
        return came

    def _far_ends(self, way: Way, here: Place, depth: int) -> Iterator[Place]:
        """Yield the other ends of a tunnel, and record why there is none."""
        if here.link.kind not in tunnels() or depth > 1:
            return
        replicated = [
            remote for index, remote in netlink.remotes(here.space.namespace.netlink) if index == here.index
        ]
        if (own := tunnel_of(here.link, replicated)) is None:
            return
        for remote in own.remotes:
            route, _ = here.space.route(remote)
            below = self.way(here.space, own.local or str(route.get("prefsrc") or ""), remote, depth + 1)
            way.problems += below.problems
            way.tunnel_places += below.places
            protocol = (
                {"dport": str(own.port), "protocol": "udp"}
                if own.port
                else {"protocol": here.link.kind or ""}
            )
            way.outer.append({"saddr": below.source, "daddr": remote, **protocol})
            way.hops += below.hops
            way.domains += below.domains
            way.routes += below.routes
            if not below.complete:
                continue
            there = below.arrivals[-1].space if below.arrivals else here.space
            ends = [
                (Place(there, link.index), tunnel_of(link, []))
                for link in there.links.values()
                if link.kind == here.link.kind
            ]
            fitting = [
                place for place, other in ends if other and (other.id, other.port) == (own.id, own.port)
            ]
            if not fitting:
                has = "; ".join(
                    f"{place.name} has id {other.id} and port {other.port}" for place, other in ends if other
                )
                way.problems.append(
                    Problem(
                        "tunnel ends differ",
                        f"{here.name} has the {here.link.kind} id {own.id} and port {own.port} to {remote},"
                        f" but {there.name} has {'no such tunnel' if not has else 'other ones: ' + has}",
                        str(here),
                    )
                )
            yield from fitting


def owns(place: Place, address: str) -> bool:
    """Return whether an interface answers for an address: it is no bridge's port, and its namespace has the address."""
    index = place.space.addresses.get(address)
    return index is not None and (place.link.master is None or index == place.index)


def _refused(at: Space, way: Way, arrived: Place | None, words: str) -> Problem:
    """Return why a namespace has no way for a packet, from the kernel's words (net/ipv4/route.c)."""
    to, where = way.destination, str(arrived or at.name)
    family = "ipv6" if ":" in to else "ipv4"
    if arrived and "cross-device" in words:
        return Problem(
            "reverse path filter",
            f"the reverse path filter (rp_filter) drops what arrives from {way.source} at {arrived.name}, because the"
            " route back is another interface",
            where,
            at.command(f"sysctl -w net.ipv4.conf.{arrived.name.replace('.', '/')}.rp_filter=2"),
        )
    if arrived and not forwards(at, arrived, family):
        switch = "net.ipv6.conf.all.forwarding" if family == "ipv6" else "net.ipv4.ip_forward"
        return Problem(
            "forwarding off",
            f"{at.name} does not forward packets to {to}: forwarding of {family} is off",
            where,
            at.command(f"sysctl -w {switch}=1"),
        )
    if arrived and "Invalid argument" in words:
        return Problem(
            "route refuses", f"the routes of {at.name} drop packets from {way.source} to {to}", where
        )
    kinds = {"Permission": "a route prohibits them", "Invalid": "a blackhole route drops them"}
    why = next((text for word, text in kinds.items() if word in words), f"no route ({words})")
    return Problem("missing route", f"{at.name} cannot send packets to {to}: {why}", where)


def forwards(at: Space, arrived: Place, family: str) -> bool:
    """Return whether a namespace forwards what arrives at an interface."""
    if family == "ipv6":
        return at.number("net/ipv6/conf/all/forwarding") != 0
    return at.number(f"net/ipv4/conf/{arrived.name}/forwarding", default=1) != 0


def _nobody(out: Place, next_hop: str, below: list[Place]) -> Problem:
    if below:
        return Problem(
            "macvlan and its lower device",
            f"{out.name} is a {out.link.kind} of {below[0].name}, whose own address is {next_hop}: the kernel passes"
            " nothing between the two",
            str(out),
            "make a macvlan for the host, and give it the address",
        )
    return Problem(
        "missing neighbour",
        f"nobody that {out.name} reaches on its link has the address {next_hop}",
        str(out),
    )
