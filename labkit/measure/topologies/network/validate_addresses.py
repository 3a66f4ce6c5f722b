"""What of a Network's addresses and routes cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_interface, ip_network
from itertools import combinations
from typing import Any

from labkit.common.errors import BadInput
from labkit.measure.topologies.network.model import (
    Address,
    Described,
    DescribedInterface,
    Subnet,
    gateways,
    remotes,
    target,
)
from labkit.measure.topologies.network.parts import Bridge, Cable, CableEnd, Route, Tunnel

# What a route gets that says nothing, and what the kernel's own have, of connected prefixes (linux/ipv6_route.h).
METRIC, CONNECTED_METRIC = {4: 0, 6: 1024}, {4: 0, 6: 256}


def once(result: Iterable[Any], words: Callable[[Any], str]) -> None:
    """Raise BadInput with these words for the first that is there twice."""
    seen = set()
    for one in result:
        if one in seen:
            raise BadInput(words(one))
        seen.add(one)


def form(part: Any) -> None:
    """Raise BadInput where an address, prefix or number of a part is not what such things can be."""
    ends = [part.one, part.other] if isinstance(part, Cable) else [part]
    for end in ends:
        if isinstance(end, CableEnd | Bridge | Tunnel) and end.address is not None:
            _host(end.address, f"the address {end.address} of {end.name} ({end.at})")
    if isinstance(part, Tunnel):
        subject = f"{part.name} ({part.at})"
        for address in (*remotes(part), *([] if part.local is None else [part.local])):
            _readable(ip_address, address, f"{address} is no address that {subject} could have at an end")
        once(
            map(ip_address, remotes(part)), lambda to: f"{subject} has the remote {to} twice: name each once"
        )
    if isinstance(part, Route):
        _route(part)


def _host(text: str, subject: str) -> None:
    """Raise BadInput unless `text` is an address with prefix length that a host can have; messages name `subject`."""
    address = _readable(ip_interface, text, f"{subject} is none: write one like 10.0.0.1/24")
    if "/" not in text:
        raise BadInput(f"{subject} has no prefix length: write {text}/24, or what the subnet is")
    for kind in ("unspecified", "loopback", "multicast"):
        if getattr(address.ip, f"is_{kind}"):
            raise BadInput(f"{subject} is {kind}, which no host has here: take another")
    if end := _end_of(address.ip, address.network):
        raise BadInput(
            f"{subject} is the {end} address of its subnet: take one between the first and the last"
        )


def _end_of(address: Address, subnet: Subnet) -> str | None:
    """Which end of its subnet an address is, where no host has those: not of two addresses or one (RFC 3021, RFC 6164),
    and of IPv6 there is no broadcast."""
    if subnet.num_addresses > 2 and address == subnet.network_address:
        return "network"
    broadcast = subnet.num_addresses > 2 and address.version == 4 and address == subnet.broadcast_address
    return "broadcast" if broadcast or str(address) == "255.255.255.255" else None


def _route(route: Route) -> None:
    subject = f"the route of {route.at} to {route.to}"
    if route.to != "default":
        words = f"{route.to} is no prefix that {route.at} could have a route to: write 10.0.0.0/24"
        _readable(ip_network, route.to, words)
    for gateway in gateways(route):
        _readable(ip_address, gateway, f"the gateway {gateway} of {route.at} is no address")
    once(
        map(ip_address, gateways(route)), lambda via: f"{subject} has the gateway {via} twice: name each once"
    )
    if route.metric is not None and not 0 <= route.metric < 1 << 32:
        raise BadInput(f"the metric {route.metric} of {subject} is outside 0 to 2^32 - 1")


def _readable(read: Callable[[str], Any], text: str, words: str) -> Any:
    """What is read of a text, without a scope (`fe80::1%eth0`, RFC 4007): that is the name of an interface."""
    if "%" in text:
        raise BadInput(f"{text} has a scope (%), which no address can have in a description: leave that out")
    try:
        return read(text)
    except ValueError:
        raise BadInput(words) from None


def check(described: Described) -> None:
    """Raise BadInput for the first address or route that cannot be beside the others."""
    for look in (_addresses, _cables, _subnets, _routes):
        look(described)


def _addresses(described: Described) -> None:
    """Every address is there once."""
    seen: dict[Any, DescribedInterface] = {}
    for one in described.interfaces.values():
        if one.address is None:
            continue
        twin = seen.setdefault(one.address.ip, one)
        if twin is not one:
            raise BadInput(
                f"{one.address.ip} is the address of {twin} and of {one}: give one another address"
            )


def _cables(described: Described) -> None:
    """The two ends of a cable are of one subnet."""
    for one in described.interfaces.values():
        other = described.interfaces.get(one.far) if one.far is not None else None
        if one.address is None or other is None or other.address is None:
            continue
        if other.address.ip not in one.address.network:
            raise BadInput(
                f"{one.address} of {one} and {other.address} of {other} are the ends of one cable:"
                " give them addresses of one subnet"
            )


def _subnets(described: Described) -> None:
    """No two links have the same addresses behind them."""
    result = [one for one in described.interfaces.values() if one.address is not None]
    for one, other in combinations(result, 2):
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
    """Gateways and interfaces are the node's; no route is there twice, nor one that the kernel makes itself."""
    once(
        [(route.at, target(route), _metric(route)) for route in described.routes],
        lambda key: (
            f"{key[0]} has two routes to {key[1]} with the same metric: give one another, or both gateways to one"
        ),
    )
    for route in described.routes:
        subject = f"the route of {route.at} to {route.to}"
        if route.out is not None and (route.at, route.out) not in described.interfaces:
            raise BadInput(f"{subject} goes out of {route.out}: {route.at} has {described.names(route.at)}")
        if not gateways(route) and route.out is None:
            raise BadInput(f"{subject} leads nowhere: give it a gateway (via) or an interface (out)")
        for gateway in map(ip_address, gateways(route)):
            _gateway(described, route, gateway, subject)
        _kernels_own(described, route, subject)


def _metric(route: Route) -> int:
    """As the kernel counts it: of IPv6, 0 is no metric."""
    return route.metric or METRIC[target(route).version]


def _gateway(described: Described, route: Route, gateway: Address, subject: str) -> None:
    if gateway.version != target(route).version:
        raise BadInput(f"{subject} has the gateway {gateway} of another version of IP")
    near = described.connected(route.at, gateway)
    if near is None or near.address is None or route.out not in (None, near.name):
        where = (
            f"not the subnet of {route.out}"
            if route.out is not None
            else f"no connected subnet of {route.at}"
        )
        raise BadInput(f"the gateway {gateway} of {subject} is in {where}: {described.report(route.at)}")
    end = _end_of(gateway, near.address.network)
    if end is not None and gateway.version == 4:
        raise BadInput(f"the gateway {gateway} of {subject} is the {end} address of its subnet, and no host")
    if gateway in described.owner and described.owner[gateway].at == route.at:
        raise BadInput(f"the gateway {gateway} of {subject} is its own address: take that of a neighbour")


def _kernels_own(described: Described, route: Route, subject: str) -> None:
    """The node has that version of IP, and no such route by an address of its own (fib_add_ifaddr, addrconf.c)."""
    to, own = target(route), [one for one in described.addressed(route.at) if one.address is not None]
    if to.version == 6 and not any(one.address.version == 6 for one in own if one.address):
        raise BadInput(f"{subject} is of IPv6, and {route.at} has no such address: give it one, or take IPv4")
    for one in own:
        alone = one.address is not None and one.address.version == 4 and one.address.network.prefixlen == 32
        same = one.address is not None and one.address.network == to and not alone
        if same and _metric(route) == CONNECTED_METRIC[to.version]:
            raise BadInput(
                f"{subject} is there already, by the address of {one}: leave it out, or say another metric"
            )
