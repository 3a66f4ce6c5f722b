"""A Network's description, indexed: interfaces by node and name, links, and routing tables. The kernel is not read."""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkit.common.errors import BadInput
from labkit.measure.topologies.network import parts
from labkit.measure.topologies.network.kinds import KINDS

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network
Key = tuple[str, str]  # (node, interface)
LONGEST_NAME = 15  # IFNAMSIZ


@dataclass(frozen=True)
class DescribedInterface:
    """An interface of the description. `far`: the other end of a cable."""

    at: str
    name: str
    kind: str
    part: parts.Bridge | parts.Cable | parts.UpperDevice | parts.Tunnel | parts.Nic
    address: ipaddress.IPv4Interface | ipaddress.IPv6Interface | None = None
    master: str | None = None
    far: Key | None = None

    @property
    def key(self) -> Key:
        """(node, name)."""
        return self.at, self.name

    @property
    def carries_frames(self) -> bool:
        """Whether frames leave it, not packets alone."""
        return self.kind not in KINDS or KINDS[self.kind].carries_frames

    def __str__(self) -> str:
        return f"{self.name} ({self.at})"


@dataclass(frozen=True)
class RouteChoice:
    """One hop of a route: out of an interface, to a gateway or directly to the target (None)."""

    out: DescribedInterface
    via: Address | None


@dataclass(frozen=True)
class RouteEntry:
    """An entry of a node's routing table."""

    to: Subnet
    metric: int
    hops: tuple[RouteChoice, ...]


def interfaces(network: parts.Network) -> Iterator[DescribedInterface]:
    """Yield every interface of the parts, in order. Raises ValueError for an invalid address."""
    for part in network.parts:
        if isinstance(part, parts.Bridge):
            yield DescribedInterface(part.at, part.name, "bridge", part, _address(part.address))
        elif isinstance(part, parts.Cable):
            for own, other in ((part.one, part.other), (part.other, part.one)):
                far = (other.at, other.name)
                yield DescribedInterface(
                    own.at, own.name, part.kind, part, _address(own.address), own.master, far
                )
        elif isinstance(part, parts.Tunnel):
            yield DescribedInterface(part.at, part.name, part.kind, part, _address(part.address), part.master)
        elif isinstance(part, parts.UpperDevice):
            yield DescribedInterface(part.at, part.name, part.kind, part, _address(part.address))
        elif isinstance(part, parts.Nic):
            yield DescribedInterface(part.at, part.name, "nic", part, master=part.master)


def _address(text: str | None) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface | None:
    return None if text is None else ipaddress.ip_interface(text)


def target(route: parts.Route) -> Subnet:
    """Return the prefix of a route; `default` has the IP version of its gateway."""
    if route.to != "default":
        return ipaddress.ip_network(route.to)
    six = any(ipaddress.ip_address(via).version == 6 for via in route.gateways)
    return ipaddress.ip_network("::/0" if six else "0.0.0.0/0")


class NetworkIndex:
    """The indexed parts of a Network with well-formed names and addresses (`validate.check` ensures that)."""

    def __init__(self, network: parts.Network) -> None:
        self.network = network
        self.nodes = {part.name: part for part in network.parts if isinstance(part, parts.Node)}
        self.interfaces = {one.key: one for one in interfaces(network)}
        self.of_node: dict[str, list[DescribedInterface]] = {name: [] for name in self.nodes}
        for one in self.interfaces.values():
            self.of_node.setdefault(one.at, []).append(one)
        self.routes = [part for part in network.parts if isinstance(part, parts.Route)]
        self.redirects = [part for part in network.parts if isinstance(part, parts.Redirect)]
        self.impairments = [part for part in network.parts if isinstance(part, parts.Impairment)]
        self.offloads = [part for part in network.parts if isinstance(part, parts.Offloads)]
        self.ports = [part for part in network.parts if isinstance(part, parts.BridgePort)]
        self.sysctls = [part for part in network.parts if isinstance(part, parts.Sysctl)]
        self.rules = [part for part in network.parts if isinstance(part, parts.Rules)]
        self.has_settings = bool(self.offloads or self.ports or self.sysctls or self.rules)
        self.esp = [part for part in network.parts if isinstance(part, parts.Esp)]
        self.tunnels = [one for one in self.interfaces.values() if isinstance(one.part, parts.Tunnel)]
        # the interface that has an address; addresses are unique
        self.owner = {one.address.ip: one for one in self.interfaces.values() if one.address is not None}

    @cached_property
    def is_encrypted(self) -> bool:
        """Whether packets are encrypted anywhere in it."""
        return bool(self.esp) or any(KINDS[one.kind].is_encrypted for one in self.tunnels)

    @cached_property
    def link(self) -> dict[Key, Key]:
        """Each interface with a representative of its link, across cables, bridges and tunnels."""
        stands = {key: key for key in self.interfaces}

        def top(key: Key) -> Key:
            while stands[key] != key:
                key = stands[key]
            return key

        for one, other in self._joined():
            stands[top(one)] = top(other)
        return {key: top(key) for key in stands}

    def _joined(self) -> Iterator[tuple[Key, Key]]:
        for redirect in self.redirects:
            if redirect.helper != "bpf_redirect_neigh":  # it routes between two subnets
                yield (redirect.at, redirect.interface), (redirect.at, redirect.to)
        for one in self.interfaces.values():
            if one.far is not None:
                yield one.key, one.far
            if one.master is not None:
                yield one.key, (one.at, one.master)
            if isinstance(one.part, parts.UpperDevice):
                yield one.key, one.part.lower
            if isinstance(one.part, parts.Tunnel):
                for other in self.tunnels:
                    if self._same_tunnel(one.part, other.part):
                        yield one.key, other.key

    def _same_tunnel(self, one: parts.Tunnel, other: object) -> bool:
        """Return whether one tunnel sends to the other, or both to the same group."""
        if not isinstance(other, parts.Tunnel) or not are_compatible(one, other):
            return False
        for to in map(ipaddress.ip_address, one.remotes):
            if to in self.owner and self.owner[to].at == other.at:
                return True
            if to.is_multicast and to in map(ipaddress.ip_address, other.remotes):
                return True
        return False

    def other_end(self, one: DescribedInterface) -> DescribedInterface | None:
        """Return the tunnel that an encrypted one shares its keys with: of the same kind, at its remote, and back.

        Where it is bound to a cable, that is looked at first: unconnected parts may have equal outer addresses.
        """
        assert isinstance(one.part, parts.Tunnel)
        cable = self.interfaces.get((one.at, one.part.link or ""))
        owner = self.owner.get(ipaddress.ip_address(one.part.remotes[0]))
        own = {str(each.address.ip) for each in self.interfaces_with_address(one.at) if each.address}
        others: dict[bool, list[DescribedInterface]] = {True: [], False: []}
        for at in (cable.far[0] if cable and cable.far else "", owner.at if owner else ""):
            for other in self.of_node.get(at, ()) if at != one.at else ():
                part = other.part
                if not isinstance(part, parts.Tunnel) or own.isdisjoint(part.remotes):
                    continue
                if not KINDS[part.kind].outer and cable and cable.far not in (None, (at, part.link)):
                    continue  # it has no outer IP header, so it is between the ends of one cable
                if are_compatible(one.part, part):
                    others[part.udp_port == one.part.udp_port].append(other)
        # Equal ports tell several tunnels between two nodes apart.
        found = others[True] or others[False]
        return found[0] if others[True] or len(found) == 1 else None

    def is_in_esp(self, at: str, to: Address) -> bool:
        """Return whether packets of a node to this address are in ESP in transport mode."""
        for part in self.esp:
            for own, other in ((part.one, part.other), (part.other, part.one)):
                address = self.interfaces[other].address
                if own[0] == at and address is not None and address.ip == to:
                    return True
        return False

    def interfaces_with_address(self, at: str) -> list[DescribedInterface]:
        return [one for one in self.of_node.get(at, ()) if one.address is not None]

    def names(self, at: str) -> str:
        """Return the names of a node's interfaces, for messages."""
        return ", ".join(one.name for one in self.of_node.get(at, ())) or "none"

    def addresses_text(self, at: str) -> str:
        """Return the addresses of a node, for messages."""
        return f"it has {', '.join(str(one.address) for one in self.interfaces_with_address(at)) or 'none'}"

    def connected(self, at: str, to: Address) -> DescribedInterface | None:
        """Return the node's interface whose subnet contains an address, with the longest prefix; None if there is
        none."""
        result = [
            one
            for one in self.interfaces_with_address(at)
            if one.address is not None and to in one.address.network
        ]
        return max(result, key=lambda one: one.address.network.prefixlen if one.address else 0, default=None)

    @cached_property
    def routing_tables(self) -> dict[str, list[RouteEntry]]:
        """Each node with its connected and static routes in lookup order: longest prefix, then metric."""
        result: dict[str, list[RouteEntry]] = {name: [] for name in self.nodes}
        for one in self.interfaces.values():
            if one.address is not None:
                result[one.at].append(RouteEntry(one.address.network, 0, (RouteChoice(one, None),)))
        for route in self.routes:
            result[route.at].append(RouteEntry(target(route), route.metric or 0, tuple(self.hops(route))))
        for table in result.values():
            table.sort(key=lambda entry: (-entry.to.prefixlen, entry.metric))
        return result

    def next_hops(self, at: str, to: Address) -> list[RouteChoice]:
        """Return all hops of a node to an address: those of the longest prefix, with any metric."""
        entries = [entry for entry in self.routing_tables[at] if to in entry.to]
        return [hop for entry in entries if entry.to == entries[0].to for hop in entry.hops]

    def source(self, out: DescribedInterface, version: int) -> str:
        """Return the source address of a node's own packets on one of its interfaces.

        It is the interface's address, else the node's first; "" if the node has none of this IP version
        (inet_select_addr, net/ipv4/devinet.c).
        """
        for one in (out, *self.interfaces_with_address(out.at)):
            if one.address is not None and one.address.version == version:
                return str(one.address.ip)
        return ""

    def hops(self, route: parts.Route) -> list[RouteChoice]:
        """Return the hops of a route, without gateways that are in no subnet of the node."""
        if not route.gateways:
            return [RouteChoice(self.interfaces[route.at, route.out or ""], None)]
        result = []
        for gateway in map(ipaddress.ip_address, route.gateways):
            out = self.interfaces[route.at, route.out] if route.out else self.connected(route.at, gateway)
            result += [RouteChoice(out, gateway)] if out is not None else []
        return result

    def behind(self, hop: RouteChoice, to: Address) -> Address | None:
        """Return the address of the next node on the way to an address; None if no node there has it.

        It is the gateway, the remote of a layer 3 tunnel, or the target itself.
        """
        if isinstance(hop.out.part, parts.Tunnel) and not hop.out.carries_frames:
            return ipaddress.ip_address(hop.out.part.remotes[0])
        near = hop.via or to
        owner = self.owner.get(near)
        return near if owner is not None and self.link[owner.key] == self.link[hop.out.key] else None


class ShortNames:
    """Names of nodes, or of the interfaces of one, each of which is given once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._numbers: Counter[str] = Counter()  # the last one by the beginning of a name

    def new(self, text: str) -> str:
        """Return a text as a name that is not yet taken: at most 15 letters, digits, _ . -"""
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.") or "x"
        name, beginning = plain[:LONGEST_NAME].rstrip("-_."), plain[: LONGEST_NAME // 2]
        while name in self._taken:
            self._numbers[beginning] += 1
            number = f"-{self._numbers[beginning]}"
            name = plain[: LONGEST_NAME - len(number)] + number
        self._taken.add(name)
        return name


def check_unique(result: Iterable[Any], words: Callable[[Any], str]) -> None:
    """Raise BadInput with these words for the first that is there twice."""
    seen = set()
    for one in result:
        if one in seen:
            raise BadInput(words(one))
        seen.add(one)


def are_compatible(one: parts.Tunnel, other: parts.Tunnel) -> bool:
    """Return whether two tunnels understand each other's packets: same kind, identifier and port.

    The ends of an encrypted tunnel may have different ports, because each knows that of the other.
    """
    may_differ = KINDS[one.kind].is_encrypted
    return (one.kind, one.id) == (other.kind, other.id) and (may_differ or one.udp_port == other.udp_port)


def address_of(network: parts.Network, node: str) -> str:
    """Return the first address of a node. Raises BadInput if it has none."""
    for one in interfaces(network):
        if one.at == node and one.address is not None:
            return str(one.address.ip)
    raise BadInput(f"{node} has no address in the network {network.name}, so nothing can be sent to it")
