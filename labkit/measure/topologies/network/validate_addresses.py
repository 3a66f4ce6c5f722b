"""Check a Network's addresses and routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_interface, ip_network
from itertools import combinations
from typing import Any

from labkit.common.errors import BadInput
from labkit.measure.topologies.network.model import (
    Address,
    DescribedInterface,
    NetworkIndex,
    Subnet,
    gateways,
    remotes,
    target,
)
from labkit.measure.topologies.network.parts import Bridge, Cable, CableEnd, Route, Tunnel

# The metric of a route without one, and of the kernel's routes to connected prefixes (linux/ipv6_route.h).
METRIC, CONNECTED_METRIC = {4: 0, 6: 1024}, {4: 0, 6: 256}


def check_unique(result: Iterable[Any], words: Callable[[Any], str]) -> None:
    """Raise BadInput with these words for the first that is there twice."""
    seen = set()
    for one in result:
        if one in seen:
            raise BadInput(words(one))
        seen.add(one)


def check_form(part: Any) -> None:
    """Raise BadInput for a malformed address, prefix or number of a part."""
    ends = [part.one, part.other] if isinstance(part, Cable) else [part]
    for end in ends:
        if isinstance(end, CableEnd | Bridge | Tunnel) and end.address is not None:
            _host(end.address, f"the address {end.address} of {end.name} ({end.at})")
    if isinstance(part, Tunnel):
        subject = f"{part.name} ({part.at})"
        for address in (*remotes(part), *([] if part.local is None else [part.local])):
            _readable(
                ip_address,
                address,
                f"{address} of {subject} is not a valid address: write for example 10.0.0.1",
            )
        check_unique(
            map(ip_address, remotes(part)), lambda to: f"{subject} has the remote {to} twice: name each once"
        )
    if isinstance(part, Route):
        _route(part)


def _host(text: str, subject: str) -> None:
    """Raise BadInput unless `text` is an address with prefix length that a host can have; messages name `subject`."""
    address = _readable(
        ip_interface, text, f"{subject} is not a valid address: write for example 10.0.0.1/24"
    )
    if "/" not in text:
        raise BadInput(f"{subject} has no prefix length: write for example {text}/24")
    for kind in ("unspecified", "loopback", "multicast"):
        if getattr(address.ip, f"is_{kind}"):
            raise BadInput(f"{subject} is a{'n' * (kind[0] == 'u')} {kind} address: choose another")
    if end := _address_kind(address.ip, address.network):
        raise BadInput(
            f"{subject} is the {end} address of its subnet: choose one between the first and the last"
        )


def _address_kind(address: Address, subnet: Subnet) -> str | None:
    """Return "network" or "broadcast" if no host can have the address, else None.

    Subnets of one or two addresses have neither (RFC 3021, RFC 6164), and IPv6 has no broadcast.
    """
    if subnet.num_addresses > 2 and address == subnet.network_address:
        return "network"
    broadcast = subnet.num_addresses > 2 and address.version == 4 and address == subnet.broadcast_address
    return "broadcast" if broadcast or str(address) == "255.255.255.255" else None


def _route(route: Route) -> None:
    subject = f"the route of {route.at} to {route.to}"
    if route.to != "default":
        text = f"{route.to} in a route of {route.at} is not a valid prefix: write for example 10.0.0.0/24"
        _readable(ip_network, route.to, text)
    for gateway in gateways(route):
        _readable(ip_address, gateway, f"the gateway {gateway} of {route.at} is not a valid address")
    check_unique(
        map(ip_address, gateways(route)), lambda via: f"{subject} has the gateway {via} twice: name each once"
    )
    if route.metric is not None and not 0 <= route.metric < 1 << 32:
        raise BadInput(f"the metric {route.metric} of {subject} is outside 0 to 2^32 - 1")


def _readable(read: Callable[[str], Any], text: str, words: str) -> Any:
    """Parse a text with `read`; scopes (`fe80::1%eth0`, RFC 4007) are rejected, because they name an interface."""
    if "%" in text:
        raise BadInput(f"{text} has a scope (%), which descriptions do not support: remove it")
    try:
        return read(text)
    except ValueError:
        raise BadInput(words) from None


def check(described: NetworkIndex) -> None:
    """Raise BadInput for the first address or route that cannot be beside the others."""
    for look in (_addresses, _cables, _subnets, _routes):
        look(described)


def _addresses(described: NetworkIndex) -> None:
    """Raise BadInput for a duplicate address."""
    seen: dict[Any, DescribedInterface] = {}
    for one in described.interfaces.values():
        if one.address is None:
            continue
        twin = seen.setdefault(one.address.ip, one)
        if twin is not one:
            raise BadInput(f"{one.address.ip} is the address of {twin} and of {one}: change one of them")


def _cables(described: NetworkIndex) -> None:
    """Raise BadInput unless both ends of a cable are in one subnet."""
    for one in described.interfaces.values():
        other = described.interfaces.get(one.far) if one.far is not None else None
        if one.address is None or other is None or other.address is None:
            continue
        if other.address.ip not in one.address.network:
            raise BadInput(
                f"{one.address} of {one} and {other.address} of {other} are in different subnets on one cable:"
                " use addresses of one subnet"
            )


def _subnets(described: NetworkIndex) -> None:
    """Raise BadInput if the subnets of two links overlap."""
    result = [one for one in described.interfaces.values() if one.address is not None]
    for one, other in combinations(result, 2):
        assert one.address is not None
        assert other.address is not None
        if described.link[one.key] != described.link[other.key] and one.address.network.overlaps(
            other.address.network
        ):
            raise BadInput(
                f"the subnets {one.address.network} of {one} and {other.address.network} of {other} overlap,"
                " but they are different links: change one subnet"
            )


def _routes(described: NetworkIndex) -> None:
    """Raise BadInput for routes with foreign gateways or interfaces, duplicate routes, and routes that the kernel
    adds."""
    check_unique(
        [(route.at, target(route), _metric(route)) for route in described.routes],
        lambda key: (
            f"{key[0]} has two routes to {key[1]} with one metric: change one, or give both gateways to one route"
        ),
    )
    for route in described.routes:
        subject = f"the route of {route.at} to {route.to}"
        if route.out is not None and (route.at, route.out) not in described.interfaces:
            raise BadInput(
                f"{subject} uses the interface {route.out}, but {route.at} has only "
                f"{described.names(route.at)}"
            )
        if not gateways(route) and route.out is None:
            raise BadInput(f"{subject} has no next hop: give it a gateway (via) or an interface (out)")
        for gateway in map(ip_address, gateways(route)):
            _gateway(described, route, gateway, subject)
        _kernels_own(described, route, subject)


def _metric(route: Route) -> int:
    """Return the kernel's metric of a route: for IPv6, 0 means none."""
    return route.metric or METRIC[target(route).version]


def _gateway(described: NetworkIndex, route: Route, gateway: Address, subject: str) -> None:
    if gateway.version != target(route).version:
        raise BadInput(f"{subject} has the gateway {gateway} of another IP version")
    near = described.connected(route.at, gateway)
    if near is None or near.address is None or route.out not in (None, near.name):
        where = (
            f"not the subnet of {route.out}"
            if route.out is not None
            else f"no connected subnet of {route.at}"
        )
        raise BadInput(
            f"the gateway {gateway} of {subject} is in {where}: {described.addresses_text(route.at)}"
        )
    end = _address_kind(gateway, near.address.network)
    if end is not None and gateway.version == 4:
        raise BadInput(f"the gateway {gateway} of {subject} is the {end} address of its subnet, not a host")
    if gateway in described.owner and described.owner[gateway].at == route.at:
        raise BadInput(
            f"the gateway {gateway} of {subject} is the node's own address: use that of a neighbour"
        )


def _kernels_own(described: NetworkIndex, route: Route, subject: str) -> None:
    """Raise BadInput if the node lacks the route's IP version, or the kernel adds the route itself (fib_add_ifaddr,
    addrconf.c)."""
    to, own = (
        target(route),
        [one for one in described.interfaces_with_address(route.at) if one.address is not None],
    )
    if to.version == 6 and not any(one.address.version == 6 for one in own if one.address):
        raise BadInput(
            f"{subject} is an IPv6 route, but {route.at} has no IPv6 address: give it one, or use IPv4"
        )
    for one in own:
        alone = one.address is not None and one.address.version == 4 and one.address.network.prefixlen == 32
        same = one.address is not None and one.address.network == to and not alone
        if same and _metric(route) == CONNECTED_METRIC[to.version]:
            raise BadInput(
                f"the kernel adds {subject} itself, for the address of {one}: remove it, or give it another metric"
            )
