"""What of a Network cannot be, told in one sentence before anything is built."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_interface, ip_network
from itertools import combinations
from typing import Any

import msgspec

from labkit.errors import BadInput
from labkit.topologies import mtu, tunnel_faults
from labkit.topologies.described import Described, Interface, gateways, interfaces, remotes, target
from labkit.topologies.mtu import Mtus
from labkit.topologies.parts import Bridge, Cable, Network, Node, Route, Tunnel

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"  # of an interface: IFNAMSIZ, without what iproute2 and paths read otherwise
# What the kernel puts into new namespaces by itself, and what drawings call what is not the network's.
TAKEN = (
    "lo",
    "all",
    "default",
    "gre0",
    "gretap0",
    "erspan0",
    "tunl0",
    "sit0",
    "ip6tnl0",
    "ip6gre0",
    "ip_vti0",
    "ip6_vti0",
)
TAKEN_NODES = ("machine", "elsewhere")


def check(network: Network) -> tuple[Described, Mtus]:
    """The description, and every MTU of it. Raises BadInput for the first thing that cannot be."""
    network = _typed(network)
    _names(network)
    for part in network.parts:
        _form(part)
    _masters(network)
    described = Described(network)
    for look in (_pairs, tunnel_faults.check, _addresses, _subnets, _routes):
        look(described)
    mtus = Mtus(described)
    mtu.check(described, mtus)
    return described, mtus


def _typed(network: Network) -> Network:
    """The network, where every part is of the types that it says: lists may stand for tuples."""
    try:
        return msgspec.convert(msgspec.to_builtins(network), Network)
    except (msgspec.ValidationError, TypeError) as error:
        raise BadInput(f"the network {network.name} is none: {error}") from None


def _names(network: Network) -> None:
    """Names are safe, and each is there once."""
    nodes = [part.name for part in network.parts if isinstance(part, Node)]
    for name in nodes:
        if not re.fullmatch(NAME, name) or name in TAKEN_NODES:
            raise BadInput(f"a node cannot be called {name!r}: take at most 15 letters, digits, _ . -")
    _once(nodes, lambda name: f"there are two nodes {name}: give one another name")
    places = []
    for part in network.parts:
        for at, name in _own(part):
            if at not in nodes:
                raise BadInput(f"{name} is in {at}, and there is no such node; there are {', '.join(nodes)}")
            if not re.fullmatch(NAME, name) or name in TAKEN:
                raise BadInput(
                    f"an interface cannot be called {name!r} ({at}): take at most 15 letters, digits, _ . -,"
                    f" and none of {', '.join(TAKEN)}"
                )
            places.append((at, name))
        if isinstance(part, Route) and part.at not in nodes:
            raise BadInput(
                f"a route to {part.to} is in {part.at}, and there is no such node; there are {', '.join(nodes)}"
            )
    _once(places, lambda key: f"there are two interfaces {key[1]} in {key[0]}: give one another name")


def _own(part: Any) -> list[tuple[str, str]]:
    """The nodes and names of the interfaces that a part makes."""
    if isinstance(part, Cable):
        return [(part.one.at, part.one.name), (part.other.at, part.other.name)]
    return [(part.at, part.name)] if isinstance(part, Bridge | Tunnel) else []


def _once(found: Iterable[Any], words: Callable[[Any], str]) -> None:
    """Raises BadInput with these words for the first that is there twice."""
    seen = set()
    for one in found:
        if one in seen:
            raise BadInput(words(one))
        seen.add(one)


def _form(part: Any) -> None:
    """Addresses, prefixes and numbers are what such things can be."""
    ends = (
        (part.one, part.other)
        if isinstance(part, Cable)
        else (part,)
        if isinstance(part, Bridge | Tunnel)
        else ()
    )
    for end in ends:
        if end.address is not None:
            text = f"the address {end.address} of {end.name} ({end.at})"
            _readable(ip_interface, end.address, f"{text} is none: write one like 10.0.0.1/24")
            if "/" not in end.address:
                raise BadInput(f"{text} has no prefix length: write {end.address}/24, or what the subnet is")
    if isinstance(part, Tunnel):
        for address in (*remotes(part), *([] if part.local is None else [part.local])):
            _readable(
                ip_address,
                address,
                f"{address} is no address that {part.name} ({part.at}) could have at an end",
            )
    if isinstance(part, Route):
        if part.to != "default":
            _readable(
                ip_network,
                part.to,
                f"{part.to} is no prefix that {part.at} could have a route to: write 10.0.0.0/24",
            )
        for gateway in gateways(part):
            _readable(ip_address, gateway, f"the gateway {gateway} of {part.at} is no address")
        if part.metric is not None and not 0 <= part.metric < 1 << 32:
            raise BadInput(
                f"the metric {part.metric} of the route of {part.at} to {part.to} is outside 0 to 2^32 - 1"
            )


def _readable(read: Callable[[str], Any], text: str, words: str) -> None:
    try:
        read(text)
    except ValueError:
        raise BadInput(words) from None


def _pairs(described: Described) -> None:
    """Ends of pairs are containers with an address."""
    network = described.network
    if not network.pairs:
        raise BadInput(
            f"the network {network.name} has no pair of containers: say which two talk to each other"
        )
    for name in (name for pair in network.pairs for name in pair):
        if name not in described.nodes:
            raise BadInput(
                f"a pair has {name}, and there is no such node; there are {', '.join(described.nodes)}"
            )
        if not described.nodes[name].container or not described.addressed(name):
            raise BadInput(
                f"a pair has {name}, which is no container with an address: traffic begins and ends in those"
            )


def _masters(network: Network) -> None:
    """Masters are bridges beside their ports, and have the addresses."""
    bridges = {(part.at, part.name) for part in network.parts if isinstance(part, Bridge)}
    for one in interfaces(network):
        if one.master is None:
            continue
        if (one.at, one.master) not in bridges:
            raise BadInput(f"{one} is a port of {one.master}, and there is no such bridge in {one.at}")
        if one.address is not None:
            raise BadInput(
                f"{one} is a port of {one.master}, so its address belongs to that: give it to the bridge"
            )


def _addresses(described: Described) -> None:
    """Every address is there once."""
    seen: dict[Any, Interface] = {}
    for one in described.interfaces.values():
        if one.address is None:
            continue
        twin = seen.setdefault(one.address.ip, one)
        if twin is not one:
            raise BadInput(
                f"{one.address.ip} is the address of {twin} and of {one}: give one another address"
            )


def _subnets(described: Described) -> None:
    """No two links have the same addresses behind them."""
    found = [one for one in described.interfaces.values() if one.address is not None]
    for one, other in combinations(found, 2):
        assert one.address is not None
        assert other.address is not None
        if described.link[one.key] != described.link[other.key] and one.address.network.overlaps(
            other.address.network
        ):
            raise BadInput(
                f"the subnets {one.address.network} of {one} and {other.address.network} of {other} overlap,"
                " and they are different links: take another subnet for one"
            )


def _routes(described: Described) -> None:
    """Gateways and interfaces are the node's; no route is there twice."""
    _once(
        [(route.at, target(route), route.metric or 0) for route in described.routes],
        lambda key: (
            f"{key[0]} has two routes to {key[1]} with the same metric: give one another, or both gateways to one"
        ),
    )
    for route in described.routes:
        told = f"the route of {route.at} to {route.to}"
        if route.out is not None and (route.at, route.out) not in described.interfaces:
            raise BadInput(f"{told} goes out of {route.out}: {route.at} has {described.names(route.at)}")
        if not gateways(route) and route.out is None:
            raise BadInput(f"{told} leads nowhere: give it a gateway (via) or an interface (out)")
        for gateway in map(ip_address, gateways(route)):
            if gateway.version != target(route).version:
                raise BadInput(f"{told} has the gateway {gateway} of another version of IP")
            near = described.connected(route.at, gateway)
            if near is None or route.out not in (None, near.name):
                where = (
                    f"not the subnet of {route.out}"
                    if route.out is not None
                    else f"no connected subnet of {route.at}"
                )
                raise BadInput(f"the gateway {gateway} of {told} is in {where}: {described.told(route.at)}")
