"""Lookup of a Network's parts, and routing by its description.

It applies the kernel's rules: longest prefix, metric, several gateways, links without carrier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from typing import NamedTuple

from labkit.common.errors import BadInput
from labkit.measure.topologies.network.model import Address, Subnet, gateways, remotes, target
from labkit.measure.topologies.network.parts import Bridge, Cable, CableEnd, Network, Node, Route, Tunnel


class RouteHop(NamedTuple):
    """A next hop: the interface, the gateway (None if connected), and the source address of the node's own packets."""

    out: str
    via: str | None
    source: str


class Entry(NamedTuple):
    """An entry of a node's routing table."""

    to: Subnet
    metric: int
    hops: tuple[RouteHop, ...]


class Lookup:
    """The parts of a network by node and name.

    `without`: nodes, or cables by one of their interfaces (`lc1:lc1_sc2`), that are down. `noticed`: whether routes
    over them are skipped; None: as each node is configured (`ignores_linkdown`).
    """

    def __init__(self, network: Network, without: Collection[str] = (), noticed: bool | None = None) -> None:
        parts = network.parts
        self.network, self._noticed = network, noticed
        self.nodes = {part.name: part for part in parts if isinstance(part, Node)}
        self.tunnels = {(part.at, part.name): part for part in parts if isinstance(part, Tunnel)}
        self.bridges = {(part.at, part.name) for part in parts if isinstance(part, Bridge)}
        self.cables: dict[tuple[str, str], tuple[CableEnd, CableEnd]] = {}
        self.down: set[tuple[str, str]] = set()
        for cable in (part for part in parts if isinstance(part, Cable)):
            for own, far in ((cable.one, cable.other), (cable.other, cable.one)):
                self.cables[own.at, own.name] = (own, far)
                if own.at in without or f"{own.at}:{own.name}" in without:
                    self.down |= {(own.at, own.name), (far.at, far.name)}
        self._addresses = {name: list(addresses(network, name)) for name in self.nodes}
        self._tables = {name: self._table(name) for name in self.nodes}

    def owns(self, node: str, address: str) -> bool:
        """Return whether a node accepts packets to an address.

        It may have the address on any interface (weak host model, arp_ignore 0), or a VXLAN that joined the group.
        """
        if ip_address(address).is_multicast:
            return any(address in remotes(tunnel) for (at, _), tunnel in self.tunnels.items() if at == node)
        return any(str(own.ip) == address for _, own in self._addresses[node])

    def ports(self, node: str, bridge: str) -> Iterator[CableEnd | Tunnel]:
        """Yield the ports of a bridge."""
        for part in [own for own, _ in self.cables.values()] + list(self.tunnels.values()):
            if part.at == node and part.master == bridge:
                yield part

    def hops(self, node: str, target: str, out: str | None = None) -> list[RouteHop]:
        """Return the next hops of a node to a target, all of equal cost.

        `out`: only over this interface; without a route the target is assumed to be on that link, as the kernel does.
        """
        to = ip_address(target)
        for entry in self._tables[node]:
            if to in entry.to and (result := [hop for hop in entry.hops if self._usable(node, hop, out)]):
                return result
        return [RouteHop(out, None, self._source(node, out, to))] if out is not None else []

    def _usable(self, node: str, hop: RouteHop, out: str | None) -> bool:
        noticed = self.nodes[node].ignores_linkdown if self._noticed is None else self._noticed
        return out in (None, hop.out) and not (noticed and (node, hop.out) in self.down)

    def _table(self, node: str) -> list[Entry]:
        """Return the routes of a node in lookup order."""
        result = [
            Entry(at.network, 0, (RouteHop(out, None, str(at.ip)),)) for out, at in self._addresses[node]
        ]
        for part in self.network.parts:
            if isinstance(part, Route) and part.at == node:
                result.append(Entry(target(part), part.metric or 0, tuple(self._gateways(part))))
        return sorted(result, key=lambda entry: (-entry.to.prefixlen, entry.metric))

    def _gateways(self, route: Route) -> Iterator[RouteHop]:
        if not route.via and route.out is not None:
            yield RouteHop(route.out, None, self._source(route.at, route.out, target(route).network_address))
        for gateway in gateways(route):
            at = ip_address(gateway)
            links = [
                (own.network.prefixlen, out) for out, own in self._addresses[route.at] if at in own.network
            ]
            if out := route.out or max(links, default=(0, None))[1]:
                yield RouteHop(out, gateway, self._source(route.at, out, at))

    def _source(self, node: str, out: str, to: Address) -> str:
        """Return the source address for an interface: the one in the target's subnet, else its first, else the node's
        first.

        "" if the node has none (inet_select_addr, net/ipv4/devinet.c).
        """
        result = [(name, own) for name, own in self._addresses[node] if own.version == to.version]
        best = min(
            result, default=None, key=lambda one: (one[0] != out, one[0] == out and to not in one[1].network)
        )
        return "" if best is None else str(best[1].ip)


def addresses(network: Network, node: str) -> Iterator[tuple[str, IPv4Interface | IPv6Interface]]:
    """Yield (interface name, address) for the addresses of a node."""
    for part in network.parts:
        for own in (part.one, part.other) if isinstance(part, Cable) else (part,):
            if isinstance(own, CableEnd | Bridge | Tunnel) and own.at == node and own.address is not None:
                yield own.name, ip_interface(own.address)


def address_of(network: Network, node: str) -> str:
    """Return the first address of a node. Raises BadInput if it has none."""
    for _, own in addresses(network, node):
        return str(own.ip)
    raise BadInput(f"{node} has no address in the network {network.name}, so nothing can be sent to it")
