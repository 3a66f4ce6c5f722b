"""What of a Network cannot be, told in one sentence before anything is built."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from labkit.common.errors import BadInput
from labkit.measure.topologies.network import mtu, validate_addresses, validate_tunnels
from labkit.measure.topologies.network.model import Described, interfaces
from labkit.measure.topologies.network.mtu import Mtus
from labkit.measure.topologies.network.parts import Bridge, Cable, Network, Node, Route, Tunnel
from labkit.measure.topologies.network.validate_addresses import once

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"  # of an interface: IFNAMSIZ, without what iproute2 and paths read otherwise
# Of a network: printed as it is into drawings and to terminals.
NETWORK_NAME = r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,59}"
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
        validate_addresses.form(part)
    _masters(network)
    described = Described(network)
    for look in (_pairs, validate_tunnels.check, validate_addresses.check):
        look(described)
    mtus = Mtus(described)
    mtu.check(described, mtus)
    return described, mtus


def _typed(network: Network) -> Network:
    """The network, where every part is of the types that it says: lists may stand for tuples."""
    if not isinstance(network.name, str) or not re.fullmatch(NETWORK_NAME, network.name):
        words = "take at most 60 letters, digits, spaces, _ . -, of which the first is a letter or digit"
        raise BadInput(f"a network cannot be called {network.name!r:.80}: {words}")
    try:
        return msgspec.convert(msgspec.to_builtins(network), Network)
    except (msgspec.ValidationError, TypeError) as error:
        raise BadInput(f"the network {network.name} is none: {error}") from None


def _names(network: Network) -> None:
    """Names are safe, and each is there once."""
    nodes = [part.name for part in network.parts if isinstance(part, Node)]
    for name in nodes:
        if name in TAKEN_NODES:
            raise BadInput(f"a node cannot be called {name!r}: drawings call so what is not of the network")
        if not re.fullmatch(NAME, name):
            raise BadInput(f"a node cannot be called {name!r}: take at most 15 letters, digits, _ . -")
    once(nodes, lambda name: f"there are two nodes {name}: give one another name")
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
    once(places, lambda key: f"there are two interfaces {key[1]} in {key[0]}: give one another name")


def _own(part: Any) -> list[tuple[str, str]]:
    """The nodes and names of the interfaces that a part makes."""
    if isinstance(part, Cable):
        return [(part.one.at, part.one.name), (part.other.at, part.other.name)]
    return [(part.at, part.name)] if isinstance(part, Bridge | Tunnel) else []


def _pairs(described: Described) -> None:
    """Ends of pairs are two containers with an address; no pair is there twice."""
    network = described.network
    if not network.pairs:
        raise BadInput(
            f"the network {network.name} has no pair of containers: say which two talk to each other, as"
            " pairs: [[CLIENT, SERVER]]"
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
    for one, other in network.pairs:
        if one == other:
            raise BadInput(f"{one} is in a pair with itself: no packet would leave it, name two containers")
    once(network.pairs, lambda pair: f"the pair {pair[0]} and {pair[1]} is there twice: name it once")


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
