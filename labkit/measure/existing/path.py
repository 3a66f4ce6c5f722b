"""The path between two ends of an existing network, interface by interface, as the kernels report it.

A packet is followed as the kernels would forward it. Each namespace is asked for its route to the other end's address.
From the interface of that route, frames are followed through cables, bridges and devices on a lower device, to the
interface with the next hop's address. A tunnel's frames are followed in the same way between its outer addresses.
Nothing is sent, and nothing changed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Any

import msgspec

from labkit.common import existing_names
from labkit.common.errors import BadInput, Unsupported
from labkit.common.topology_state import InterfaceState, State, Step
from labkit.measure.endpoints import Endpoint, Namespace, Pair
from labkit.measure.existing import published
from labkit.measure.existing.endpoints import ExistingEndpoint
from labkit.measure.existing.spaces import LO, Node, Spaces
from labkit.measure.topologies.base import Spec, Topology
from labkit.measure.topologies.state import read
from labkit.measure.topologies.state.packet_path import IN, OUT
from labkit.system import netlink

LONGEST = 64  # namespaces that a packet may pass, as its time to live
DEEPEST = 4  # tunnels within tunnels


Way = list[tuple[Node, str]]  # interfaces, each with how it was reached


@dataclass(frozen=True)
class Path:
    """The path between two ends; close it after use.

    `topology`: its ends as a pair, and the namespaces on the path, which stay open. `state`: what the kernels report of
    it, with the steps from client to server (`forward`) and back (`back`). `gap`: a sentence about where the path
    leaves what is visible on this machine, or ends; None: both directions are complete. `processes`: a process of each
    end that has one.
    """

    topology: Topology
    state: State
    gap: str | None
    processes: dict[str, int]

    @property
    def pair(self) -> Pair:
        """Both ends, with the interfaces and addresses between which packets travel."""
        return self.topology.pairs[0]

    def interface(self, step: Step) -> InterfaceState:
        """Return the state of the interface of a step."""
        [space] = (one for one in self.state.namespaces if one.name == step.namespace)
        return next(one for one in space.interfaces if one.name == step.interface)

    def close(self) -> None:
        """Close the namespaces."""
        for space in self.topology.namespaces:
            space.close()


def path_between(client: ExistingEndpoint, server: ExistingEndpoint, family: int | None = None) -> Path:
    """Follow packets from client to server and back, with addresses of this version of IP (None: any, IPv4 first).

    Raises BadInput for two ends in one namespace, and Unsupported for an end without such an address.
    """
    name = existing_names.network(client.name, server.name)
    if os.fstat(client.namespace).st_ino == os.fstat(server.namespace).st_ino:
        raise BadInput(
            f"{client.name} and {server.name} share one network namespace, so their traffic never leaves it: name two"
            " ends with a network between them"
        )
    spaces = Spaces([(client.name, client.namespace), (server.name, server.namespace)])
    processes = {end.name: end.pid for end in (client, server) if end.pid is not None}
    near, far = (os.fstat(end.namespace).st_ino for end in (client, server))
    try:
        return _found(name, spaces, near, far, family, processes)
    finally:
        spaces.close()


def _found(
    name: str, spaces: Spaces, client: int, server: int, family: int | None, processes: dict[str, int]
) -> Path:
    found: list[tuple[_Walk, _Walk]] = []
    for target in _targets(spaces, client, server, family):
        there = _Walk(spaces, client, target, server)
        found.append((there, _Walk(spaces, server, there.source, client)))
        if found[-1][0].gap is None and found[-1][1].gap is None:
            break
    there, back = max(found, key=lambda both: (both[0].gap is None, both[1].gap is None, len(both[0].steps)))
    first = there.nodes[0] if there.nodes else spaces.holder(client, there.source)
    last = next((node for node in reversed(there.nodes) if node.space == server), None)
    last = last or spaces.holder(server, there.target)
    nodes = list(dict.fromkeys([first, *there.nodes, *reversed(back.nodes), last]))
    shown: dict[str, set[str]] = {}
    for node in nodes:
        shown.setdefault(spaces.read(node.space).name, set()).add(spaces.link(node).name)
    opened = {space: spaces.opened(space) for space in dict.fromkeys(node.space for node in nodes)}
    ends = (
        Endpoint(opened[node.space].name, opened[node.space], spaces.link(node).name, node.index, own)
        for node, own in ((first, there.source), (last, there.target))
    )
    steps = there.steps, back.steps
    topology = Topology(name, Spec(), [Pair(*ends)], list(opened.values()), shown=shown, steps=steps)
    try:
        state = _with_published(read.state(topology), list(opened.values()))
    except BaseException:
        for each in opened.values():
            each.close()
        raise
    return Path(topology, state, there.gap or back.gap, processes)


def _with_published(state: State, spaces: Sequence[Namespace]) -> State:
    """Add what publishes ports of the ends, or replaces their addresses."""
    addresses = {end.address for pair in state.pairs for end in pair}
    namespaces = []
    for space, one in zip(spaces, state.namespaces, strict=True):
        lines = published.by_rules(space, one.rules, addresses)
        if space.name == existing_names.HOST:
            lines += published.by_programs(addresses)
        namespaces.append(msgspec.structs.replace(one, published=lines))
    return msgspec.structs.replace(state, namespaces=namespaces)


def _targets(spaces: Spaces, client: int, server: int, family: int | None) -> list[str]:
    """Return the server's addresses, those in a subnet of the client first. Raises Unsupported if an end has none."""
    own: dict[int, list[Any]] = {}
    for space in (client, server):
        every = [ip_interface(each) for addresses in spaces.addresses(space).values() for each in addresses]
        usable = [one for one in every if not one.is_loopback and not one.is_link_local]
        own[space] = [one for one in usable if family in (None, one.version)]
        if not own[space]:
            one = spaces.read(space)
            others = [link.name for link in one.links.values() if link.index != LO and link.up]
            if not others:
                raise Unsupported(f"{one.name} has no network: it has no interface but lo that is up")
            version = "" if family is None else f"v{family}"
            more = (
                f": use family={10 - (family or 4)}"
                if usable
                else f"; its interfaces are {', '.join(others)}"
            )
            raise Unsupported(f"{one.name} has no address of IP{version}{more}")
    common = {one.version for one in own[client]} & {one.version for one in own[server]}
    if not common:
        raise Unsupported(
            f"{spaces.read(client).name} and {spaces.read(server).name} have no version of IP in common"
        )

    def order(one: Any) -> tuple[bool, int]:
        return not any(
            one.ip in other.network for other in own[client] if other.version == one.version
        ), one.version

    return [str(one.ip) for one in sorted(own[server], key=order) if one.version in common]


class _Walk:
    """A packet's way from a namespace to an address.

    `source`: the address that it is sent from. `steps`: the interfaces that count it. `nodes`: these, and the bridges
    and lower devices between them. `gap`: why the way ends before `goal`, the namespace that should receive it; or
    None.
    """

    def __init__(self, spaces: Spaces, start: int, target: str, goal: int, depth: int = 0) -> None:
        self._spaces, self.target, self._depth = spaces, target, depth
        self.steps: list[Step] = []
        self.nodes: list[Node] = []
        self.gap: str | None = None
        self.source = self._own_address(start)
        try:
            self._go(start, goal)
        except _Gap as gap:
            self.gap = str(gap)

    def _go(self, start: int, goal: int) -> None:
        at, arrived = start, 0
        for _ in range(LONGEST):
            if self._spaces.owns(at, self.target):
                if at != goal:
                    name = self._spaces.read(at).name
                    raise _Gap(f"{name} has the address {self.target} itself, so packets to it end there")
                return
            route = self._route(at, arrived)
            [hop] = route.hops
            self.source = route.source if route.source and not arrived else self.source
            if hop.index is None or hop.index not in self._spaces.read(at).links:
                raise _Gap(f"the route from {self._spaces.read(at).name} to {self.target} has no interface")
            last = self._cross(Node(at, hop.index), hop.via or self.target)
            at, arrived = last.space, last.index
        raise _Gap(f"packets to {self.target} go round in circles: the routes lead back")

    def _route(self, at: int, arrived: int) -> netlink.Route:
        one = self._spaces.read(at)
        try:
            if arrived:
                return netlink.route_to(one.kernel, self.target, self.source, arrived)
            return netlink.route_to(one.kernel, self.target)
        except netlink.LinkError as error:
            does = "does not forward packets" if arrived else "has no route"
            raise _Gap(f"{one.name} {does} to {self.target} ({os.strerror(error.errno)})") from None

    def _own_address(self, start: int) -> str:
        """Return an address of the sender of the target's version of IP, until a route names one; "" without."""
        of_all = (ip_interface(each) for every in self._spaces.addresses(start).values() for each in every)
        alike = (one for one in of_all if (one.version == 6) == (":" in self.target) and not one.is_loopback)
        return next((str(one.ip) for one in alike if not one.is_link_local), "")

    def _cross(self, first: Node, next_hop: str) -> Node:
        """Follow frames from an interface to the one with the next hop's address; add the steps, and return it."""
        way = self._way(first, next_hop)
        for number, (node, came) in enumerate(way):
            goes = way[number + 1][1] if number + 1 < len(way) else ""
            if came == "tunnel":
                self._outer(way[number - 1][0], node)
            self.nodes.append(node)
            # A bridge, or the device below two others, passes frames on without counting them.
            if {came, goes} != {"up", "down"}:
                self._step(node, OUT if goes in ("cable", "down", "tunnel") or not came else IN)
        return way[-1][0]

    def _step(self, node: Node, direction: str) -> None:
        self.steps.append(Step(self._spaces.read(node.space).name, self._spaces.link(node).name, direction))

    def _way(self, first: Node, next_hop: str) -> Way:
        """Return the shortest way of frames. Raises _Gap if no visible interface has the next hop's address."""
        came: dict[Node, tuple[Node, str] | None] = {first: None}
        waiting = [first]
        for node in waiting:  # the list grows during the loop
            if node != first and self._spaces.has(node, next_hop):
                return self._back(came, node)
            reached = list(self._spaces.beside(node))
            reached += [(far, "tunnel") for far, _at, _remote in self._spaces.tunnels_to(node)]
            for other, by in reached:
                # What a namespace itself sends by a port or a lower device goes to neither bridge nor upper device.
                if other not in came and not (node == first and by == "up"):
                    came[other] = node, by
                    waiting.append(other)
        # The address may be at another interface of a namespace, which answers for all of its addresses.
        for node in came:
            if node.space != first.space and self._spaces.owns(node.space, next_hop):
                return self._back(came, node)
        self._step(first, OUT)
        self.nodes.append(first)
        where = self._spaces.name(first)
        raise _Gap(f"behind {where} nothing that is visible here has the address {next_hop}")

    def _back(self, came: dict[Node, tuple[Node, str] | None], node: Node) -> Way:
        way: Way = []
        while (before := came[node]) is not None:
            way.append((node, before[1]))
            node = before[0]
        return [(node, ""), *reversed(way)]

    def _outer(self, near: Node, far: Node) -> None:
        """Add the steps of a tunnel's outer packets."""
        at, remote = next((at, remote) for other, at, remote in self._spaces.tunnels_to(near) if other == far)
        goal = self._spaces.numbered(far.space, self._spaces.link(far).link_netnsid) or far.space
        if self._depth == DEEPEST:
            raise _Gap(f"{self._spaces.name(near)} is a tunnel within more than {DEEPEST} others")
        outer = _Walk(self._spaces, at, remote, goal, self._depth + 1)
        self.steps += outer.steps
        self.nodes += outer.nodes
        if outer.gap is not None:
            raise _Gap(outer.gap)


class _Gap(Exception):
    """Why a way ends, in one sentence."""
