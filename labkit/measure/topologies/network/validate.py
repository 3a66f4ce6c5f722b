"""Check a Network's description before anything is built; errors are one sentence."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from labkit.common.errors import BadInput
from labkit.common.plain_types import wrong_type
from labkit.measure.topologies.network import mtu, validate_addresses, validate_tunnels
from labkit.measure.topologies.network.model import NetworkIndex, interfaces
from labkit.measure.topologies.network.mtu import Mtus
from labkit.measure.topologies.network.parts import Bridge, Cable, Network, Node, Route, Tunnel
from labkit.measure.topologies.network.validate_addresses import check_unique

# Of an interface: IFNAMSIZ; iproute2 and paths interpret no character.
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"
# A network's name is printed unchanged in drawings and on terminals.
NETWORK_NAME = r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,59}"
# Interfaces that the kernel creates in new namespaces, and names that drawings use for other things.
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


def check(network: Network) -> tuple[NetworkIndex, Mtus]:
    """Return the indexed description and its MTUs. Raises BadInput for the first problem."""
    network = _convert_parts(network)
    _names(network)
    for part in network.parts:
        validate_addresses.check_form(part)
    _masters(network)
    described = NetworkIndex(network)
    for look in (_pairs, validate_tunnels.check, validate_addresses.check):
        look(described)
    mtus = Mtus(described)
    mtu.check(described, mtus)
    return described, mtus


def _convert_parts(network: Network) -> Network:
    """Return the network with every part converted to its types; lists may stand for tuples."""
    if not isinstance(network.name, str) or not re.fullmatch(NETWORK_NAME, network.name):
        text = "use at most 60 letters, digits, spaces, _ . -, starting with a letter or digit"
        raise BadInput(f"{network.name!r:.80} is not a valid network name: {text}")
    try:
        return msgspec.convert(msgspec.to_builtins(network), Network)
    except (msgspec.ValidationError, TypeError) as error:
        raise BadInput(f"the network {network.name} is invalid: {wrong_type(error)}") from None


def _names(network: Network) -> None:
    """Raise BadInput for an invalid or duplicate name."""
    nodes = [part.name for part in network.parts if isinstance(part, Node)]
    for name in nodes:
        if name in TAKEN_NODES:
            raise BadInput(
                f"{name!r} is not a valid node name: drawings use it for things outside the network"
            )
        if not re.fullmatch(NAME, name):
            raise BadInput(f"{name!r} is not a valid node name: use at most 15 letters, digits, _ . -")
    check_unique(nodes, lambda name: f"two nodes are called {name}: rename one")
    places = []
    for part in network.parts:
        for at, name in _own(part):
            if at not in nodes:
                raise BadInput(f"{name} is in {at}, which is not a node; there are {', '.join(nodes)}")
            if not re.fullmatch(NAME, name) or name in TAKEN:
                raise BadInput(
                    f"{name!r} ({at}) is not a valid interface name: use at most 15 letters, digits, _ . -,"
                    f" but not {', '.join(TAKEN)}"
                )
            places.append((at, name))
        if isinstance(part, Route) and part.at not in nodes:
            raise BadInput(
                f"a route to {part.to} is in {part.at}, which is not a node; there are {', '.join(nodes)}"
            )
    check_unique(places, lambda key: f"two interfaces in {key[0]} are called {key[1]}: rename one")


def _own(part: Any) -> list[tuple[str, str]]:
    """Return (node, name) of the interfaces that a part creates."""
    if isinstance(part, Cable):
        return [(part.one.at, part.one.name), (part.other.at, part.other.name)]
    return [(part.at, part.name)] if isinstance(part, Bridge | Tunnel) else []


def _pairs(described: NetworkIndex) -> None:
    """Raise BadInput unless each pair consists of two different containers with addresses, named once."""
    network = described.network
    if not network.pairs:
        raise BadInput(
            f"the network {network.name} has no pair of containers: name two that talk to each other, as"
            " pairs: [[CLIENT, SERVER]]"
        )
    for name in (name for pair in network.pairs for name in pair):
        if name not in described.nodes:
            raise BadInput(f"a pair has {name}, which is not a node; there are {', '.join(described.nodes)}")
        if not described.nodes[name].container or not described.interfaces_with_address(name):
            raise BadInput(
                f"a pair has {name}, which is not a container with an address: pairs need such containers"
            )
    for one, other in network.pairs:
        if one == other:
            raise BadInput(f"{one} is in a pair with itself: name two different containers")
    check_unique(network.pairs, lambda pair: f"the pair {pair[0]} and {pair[1]} is named twice: name it once")


def _masters(network: Network) -> None:
    """Raise BadInput unless masters are bridges in the same node and their ports have no address."""
    bridges = {(part.at, part.name) for part in network.parts if isinstance(part, Bridge)}
    for one in interfaces(network):
        if one.master is None:
            continue
        if (one.at, one.master) not in bridges:
            raise BadInput(f"{one} is a port of {one.master}, but {one.at} has no such bridge")
        if one.address is not None:
            raise BadInput(
                f"{one} is a port of {one.master}, so it cannot have an address: give the address to the bridge"
            )
