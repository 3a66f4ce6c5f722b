"""Check a Network's description before anything is built, and compute its MTUs.

What is checked: what labkit cannot express, what the kernel would build although no packet passes, and what it would
refuse with a misleading reason. All else is left to the kernel: `netlink.LinkError` says where, what and why.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface, ip_network
from itertools import combinations
from typing import Any

import msgspec

from labkit.common.errors import BadInput, choose
from labkit.common.extensions import on_call
from labkit.common.plain_types import wrong_type
from labkit.measure.topologies.network import kinds, parts
from labkit.measure.topologies.network.model import (
    Address,
    DescribedInterface,
    Key,
    NetworkIndex,
    Subnet,
    check_unique,
    interfaces,
    target,
)

# Of an interface: IFNAMSIZ; iproute2 and paths interpret no character.
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"
MAC = r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}"  # an even first byte: of one interface, not of a group
# A network's name is printed unchanged in drawings and on terminals.
NETWORK_NAME = r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,59}"
# Interfaces that the kernel creates in new namespaces, and names that drawings use for other things.
TAKEN = (
    "lo", "all", "default", "gre0", "gretap0", "erspan0", "tunl0", "sit0", "ip6tnl0", "ip6gre0", "ip_vti0", "ip6_vti0",
)  # fmt: skip
TAKEN_NODES = ("machine", "elsewhere")
HAS_ADDRESS = parts.CableEnd | parts.Bridge | parts.UpperDevice | parts.Tunnel
_check_settings = on_call("labkit.measure.topologies.network.settings:check")  # most networks have none


def check(network: parts.Network) -> tuple[NetworkIndex, Mtus]:
    """Return the indexed description and its MTUs. Raises BadInput for the first problem."""
    return _checked(_convert_parts(network))


@functools.lru_cache(maxsize=64)  # several parts of a run ask for the same network
def _checked(network: parts.Network) -> tuple[NetworkIndex, Mtus]:
    _names(network)
    for part in network.parts:
        _form(part)
    _masters(network)
    described = NetworkIndex(network)
    of_sense = () if network.as_is else (_addresses, _cables, _subnets)
    for look in (_pairs, _kinds, _redirects, _impairments, _esp, _tunnels, *of_sense, _routes):
        look(described)
    if described.has_settings:
        _check_settings(described)
    mtus = Mtus(described)
    _mtus(described, mtus)
    return described, mtus


def _convert_parts(network: parts.Network) -> parts.Network:
    """Return the network with every part converted to its types; lists may stand for tuples."""
    if not isinstance(network.name, str) or not re.fullmatch(NETWORK_NAME, network.name):
        text = "use at most 60 letters, digits, spaces, _ . -, starting with a letter or digit"
        raise BadInput(f"{network.name!r:.80} is not a valid network name: {text}")
    try:
        return msgspec.convert(msgspec.to_builtins(network), parts.Network)
    except (msgspec.ValidationError, TypeError) as error:
        raise BadInput(f"the network {network.name} is invalid: {wrong_type(error)}") from None


def _names(network: parts.Network) -> None:
    """Raise BadInput for an invalid or duplicate name."""
    nodes = [part.name for part in network.parts if isinstance(part, parts.Node)]
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
        if isinstance(part, parts.Route | parts.Neighbour) and part.at not in nodes:
            what = (
                f"a route to {part.to}" if isinstance(part, parts.Route) else f"the neighbour {part.address}"
            )
            raise BadInput(f"{what} is in {part.at}, which is not a node; there are {', '.join(nodes)}")
    check_unique(places, lambda key: f"two interfaces in {key[0]} are called {key[1]}: rename one")


def _own(part: Any) -> list[tuple[str, str]]:
    """Return (node, name) of the interfaces that a part creates."""
    if isinstance(part, parts.Cable):
        return [(part.one.at, part.one.name), (part.other.at, part.other.name)]
    return [(part.at, part.name)] if isinstance(part, parts.Bridge | parts.UpperDevice | parts.Tunnel) else []


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


def _masters(network: parts.Network) -> None:
    """Raise BadInput unless masters are bridges in the same node and their ports have no address."""
    bridges = {(part.at, part.name) for part in network.parts if isinstance(part, parts.Bridge)}
    for one in interfaces(network):
        if one.master is None:
            continue
        if (one.at, one.master) not in bridges:
            raise BadInput(f"{one} is a port of {one.master}, but {one.at} has no such bridge")
        if one.address is not None:
            raise BadInput(
                f"{one} is a port of {one.master}, so it cannot have an address: give the address to the bridge"
            )


def _form(part: Any) -> None:
    """Raise BadInput for a malformed address, prefix or number of a part."""
    for end in [part.one, part.other] if isinstance(part, parts.Cable) else [part]:
        if isinstance(end, parts.Neighbour):
            _readable(
                ip_address, end.address, f"the neighbour {end.address} of {end.at} is not a valid address"
            )
        elif not isinstance(end, HAS_ADDRESS):
            continue
        elif end.address is not None:
            _host(end.address, f"the address {end.address} of {end.name} ({end.at})")
        if end.mac is not None and not re.fullmatch(MAC, end.mac):
            raise BadInput(
                f"{end.mac!r:.40} is not a MAC address of one interface: write for example 02:00:00:00:00:01"
            )
    if isinstance(part, parts.Tunnel):
        for address in (*part.remotes, *([] if part.local is None else [part.local])):
            words = f"{address} of {part.name} ({part.at}) is not a valid address: write for example 10.0.0.1"
            _readable(ip_address, address, words)
    if isinstance(part, parts.Route):
        _route(part)
    if isinstance(part, parts.Nic):
        raise BadInput("a network of one's own has no NICs of the machine: leave them out")


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


def _route(route: parts.Route) -> None:
    subject = f"the route of {route.at} to {route.to}"
    if route.to != "default":
        text = f"{route.to} in a route of {route.at} is not a valid prefix: write for example 10.0.0.0/24"
        _readable(ip_network, route.to, text)
    for gateway in route.gateways:
        _readable(ip_address, gateway, f"the gateway {gateway} of {route.at} is not a valid address")
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
    """Raise BadInput for routes and neighbours with foreign gateways or interfaces."""
    neighbours = [one for one in described.network.parts if isinstance(one, parts.Neighbour)]
    for subject, at, out in (
        *((f"the route of {one.at} to {one.to}", one.at, one.out) for one in described.routes),
        *((f"the neighbour {one.address} of {one.at}", one.at, one.out) for one in neighbours),
    ):
        if out is not None and (at, out) not in described.interfaces:
            raise BadInput(f"{subject} uses the interface {out}, but {at} has only {described.names(at)}")
    for route in described.routes:
        subject = f"the route of {route.at} to {route.to}"
        if not route.gateways and route.out is None:
            raise BadInput(f"{subject} has no next hop: give it a gateway (via) or an interface (out)")
        own = [one.address.ip for one in described.interfaces_with_address(route.at) if one.address]
        if route.source not in (None, *(str(one) for one in own if one.version == target(route).version)):
            raise BadInput(
                f"{subject} has the source {route.source}, but {described.addresses_text(route.at)}"
            )
        for gateway in map(ip_address, route.gateways):
            _gateway(described, route, gateway, subject)


def _gateway(described: NetworkIndex, route: parts.Route, gateway: Address, subject: str) -> None:
    if gateway.version != target(route).version:
        raise BadInput(f"{subject} has the gateway {gateway} of another IP version")
    if route.out is None and described.connected(route.at, gateway) is None:
        raise BadInput(
            f"the gateway {gateway} of {subject} is in no connected subnet of {route.at}:"
            f" {described.addresses_text(route.at)}"
        )
    if gateway in described.owner and described.owner[gateway].at == route.at:
        raise BadInput(
            f"the gateway {gateway} of {subject} is the node's own address: use that of a neighbour"
        )


def _kinds(described: NetworkIndex) -> None:
    """Raise BadInput for a kind, a mode or a lower device that this part of a network cannot have."""
    for one in described.interfaces.values():
        for part, known in (
            (parts.Cable, kinds.cables()),
            (parts.UpperDevice, kinds.uppers()),
            (parts.Tunnel, kinds.tunnels()),
        ):
            if isinstance(one.part, part) and one.kind not in known:
                raise BadInput(f"{one} has the unknown kind {one.kind}: {choose(one.kind, known)}")
        mode = one.part.mode if isinstance(one.part, parts.Cable | parts.UpperDevice) else None
        if mode is not None and mode not in (modes := kinds.KINDS[one.kind].modes):
            raise BadInput(f"{one} has the mode {mode}: {one.kind} has {', '.join(modes) or 'none'}")
        if isinstance(one.part, parts.Cable) and mode == "l3":
            end = one.part.one if one.key == (one.part.one.at, one.part.one.name) else one.part.other
            if end.mac is not None or end.master is not None:
                raise BadInput(
                    f"{one} has the mode l3, without MAC addresses: leave out mac and master, or use mode l2"
                )
        if isinstance(one.part, parts.UpperDevice):
            lower = described.interfaces.get(one.part.lower)
            if lower is None or not isinstance(lower.part, parts.Cable) or lower.master is not None:
                raise BadInput(
                    f"{one} needs the end of a cable below it, which is no bridge port: name one as lower"
                )


def _tunnels(described: NetworkIndex) -> None:
    """Raise BadInput for a tunnel with numbers or ends that its kind does not support."""
    for one in described.tunnels:
        assert isinstance(one.part, parts.Tunnel)
        _number(one, one.part)
        settings = one.part.cipher, one.part.encrypts, one.part.replay_window
        if one.kind != "macsec" and settings != ("GCM-AES-128", True, None):
            raise BadInput(f"{one}: cipher, encrypts and replay_window are of macsec, not of {one.kind}")
        _ends(described, one, one.part)


def _number(one: DescribedInterface, tunnel: parts.Tunnel) -> None:
    """Raise BadInput for a missing, superfluous or out-of-range VNI, key or UDP port."""
    number, kind = tunnel.id, kinds.KINDS[one.kind]
    if number is None and kind.needs_id:
        raise BadInput(f"{one} has no id: give its {kind.id_name}, for example id: 42")
    if number is not None and not kind.id_bits:
        raise BadInput(f"{one} has the id {number}, but {one.kind} has no field for it")
    if number is not None and not int(kind.needs_id and kind.is_encrypted) <= number < 1 << kind.id_bits:
        raise BadInput(
            f"the {kind.id_name} {number} of {one} does not fit: it is outside 0 to 2^{kind.id_bits} - 1"
        )
    if tunnel.port is not None and (kind.port is None or not 1 <= tunnel.port <= 65535):
        able = [name for name in kinds.tunnels() if kinds.KINDS[name].port]
        raise BadInput(
            f"the port {tunnel.port} of {one} is invalid: only {', '.join(able)} have a port, from 1 to 65535"
        )


def _ends(described: NetworkIndex, one: DescribedInterface, tunnel: parts.Tunnel) -> None:
    """Raise BadInput for outer addresses that this kind does not support or that belong to another node."""
    far = [ip_address(remote) for remote in tunnel.remotes]
    local = None if tunnel.local is None else ip_address(tunnel.local)
    if not far or (len(far) > 1 and one.kind != "vxlan"):
        raise BadInput(f"{one} has {len(far)} remotes: it needs one (vxlan: one or more)")
    kind = kinds.KINDS[one.kind]
    if far[0].version == 6 and kind.outer == (4,):
        able = [name for name in kinds.tunnels() if 6 in kinds.KINDS[name].outer]
        raise BadInput(f"{one} has IPv6 outer addresses: only {', '.join(able)} support them")
    if any(address.is_multicast for address in far) and (
        one.kind != "vxlan" or len(far) > 1 or tunnel.link is None
    ):
        raise BadInput(
            f"{one} sends to a multicast group: only vxlan can, to one group, with the interface for it (link)"
        )
    for address in far:
        owner = described.owner.get(address)
        if not address.is_multicast and (owner is None or owner.at == one.at):
            raise BadInput(f"the remote {address} of {one} is not an address of another node of the network")
    lower = described.interfaces.get((one.at, tunnel.link or ""))
    if tunnel.link is not None and (lower is None or lower is one or not kind.has_path):
        free = ", ".join(name for name in kinds.tunnels() if not kinds.KINDS[name].has_path)
        raise BadInput(
            f"{one} cannot be bound to {tunnel.link}: {one.at} has {described.names(one.at)}; {free} cannot be bound"
        )
    if local is not None and not kind.has_path:
        raise BadInput(
            f"{one} cannot have the local address {local}: {one.kind} uses the address of its route"
        )
    own = described.owner.get(local) if local is not None else None
    if local is not None and (own is None or own.at != one.at):
        raise BadInput(
            f"the local address {local} of {one} is not an address of {one.at}: {described.addresses_text(one.at)}"
        )

    if kind.is_encrypted:
        _other_end(described, one, tunnel, lower)


def _other_end(
    described: NetworkIndex, one: DescribedInterface, tunnel: parts.Tunnel, lower: DescribedInterface | None
) -> None:
    """Raise BadInput unless an encrypted tunnel has another end, with which it shares its keys."""
    if one.kind == "xfrm" and tunnel.local is None:
        raise BadInput(f"{one} has no local address: ESP needs both outer addresses, give it as local")
    other = described.other_end(one)
    if other is None:
        raise BadInput(
            f"{one} has no other end: describe the {one.kind} of the node with {tunnel.remotes[0]}, whose remote is an"
            f" address of {one.at}, with the same port if there are several; both get their keys when they are built"
        )
    if one.kind == "macsec" and (lower is None or lower.far is None or lower.far[0] != other.at):
        raise BadInput(f"{one} needs the cable to {other.at} below it: name the end in {one.at} as link")
    assert isinstance(other.part, parts.Tunnel)
    if tunnel.cipher != other.part.cipher:
        raise BadInput(f"{one} and {other} have different ciphers: give both the same")
    near, far = (
        {ip_address(text) for text in (end.local, *end.remotes) if text} for end in (tunnel, other.part)
    )
    if one.kind == "xfrm" and near != far:
        raise BadInput(
            f"{one} and {other} have different outer addresses: the local address of each must be the other's remote"
        )


def _esp(described: NetworkIndex) -> None:
    """Raise BadInput unless both ends of ESP in transport mode are interfaces with addresses of one IP version."""
    for part in described.esp:
        ends = [described.interfaces.get(key) for key in (part.one, part.other)]
        versions = {one.address.version for one in ends if one is not None and one.address is not None}
        if None in ends or len(versions) != 1 or any(one and one.address is None for one in ends):
            places = " and ".join(f"{name} ({at})" for at, name in (part.one, part.other))
            raise BadInput(f"ESP between {places} needs two interfaces with addresses of one IP version")


def _redirects(described: NetworkIndex) -> None:
    """Raise BadInput unless both interfaces of a redirect are ends of cables in its node."""
    places = [(one.at, one.interface) for one in described.redirects]
    check_unique(places, lambda key: f"{key[1]} ({key[0]}) is redirected twice: write one redirect")
    for redirect in described.redirects:
        for name in (redirect.interface, redirect.to):
            one = described.interfaces.get((redirect.at, name))
            if one is None or not isinstance(one.part, parts.Cable):
                raise BadInput(
                    f"the redirect of {redirect.interface} ({redirect.at}) to {redirect.to} needs the end of a cable"
                    f" called {name}: {redirect.at} has {described.names(redirect.at)}"
                )
        here = described.interfaces[redirect.at, redirect.interface]
        if redirect.hook == "netkit" and (here.kind != "netkit" or redirect.helper == "bpf_redirect_peer"):
            raise BadInput(
                f"the redirect of {here} at the hook netkit needs a cable of kind netkit, and bpf_redirect or"
                " bpf_redirect_neigh, because bpf_redirect_peer takes only what has arrived: use the hook tc"
            )


def _impairments(described: NetworkIndex) -> None:
    """Raise BadInput unless an impairment does something to the end of a cable, which has no other."""
    places = [(one.at, one.interface) for one in described.impairments]
    check_unique(places, lambda key: f"{key[1]} ({key[0]}) is impaired twice: write one impairment")
    for one in described.impairments:
        where = described.interfaces.get((one.at, one.interface))
        if where is None or not isinstance(where.part, parts.Cable):
            raise BadInput(
                f"the impairment of {one.interface} ({one.at}) needs the end of a cable: {one.at} has"
                f" {described.names(one.at)}"
            )
        if any(
            (each.at, each.to) == (one.at, one.interface) and each.to in each.unseen
            for each in described.redirects
        ):
            raise BadInput(
                f"the impairment of {one.interface} ({one.at}) would not meet what is redirected there:"
                " bpf_redirect_peer and XDP pass queueing disciplines by: impair another end of a cable"
            )
        if (one.jitter_s or one.reorder) and not one.delay_s:
            raise BadInput(f"the impairment of {one.interface} ({one.at}): jitter_s and reorder need delay_s")
        bare = parts.Impairment(one.at, one.interface, queue_s=one.queue_s, burst_bytes=one.burst_bytes)
        if one == bare:
            raise BadInput(
                f"the impairment of {one.interface} ({one.at}) does nothing: give it rate_bps, delay_s, loss,"
                " duplicate or queue_packets"
            )
        if one.queue_packets is not None and one != msgspec.structs.replace(
            bare, queue_packets=one.queue_packets
        ):
            raise BadInput(
                f"the impairment of {one.interface} ({one.at}): queue_packets is of a queue without a rate, a delay or"
                " a loss: leave it out"
            )


MIN_BYTES = {4: 68, 6: 1280}  # RFC 791, RFC 8200
MAX_BYTES = 65535  # of a veth


@dataclass(frozen=True)
class DerivedMtu:
    """An MTU and where it comes from: the MTU of interface `at`, minus the headers added on the way there."""

    base_bytes: int
    at: DescribedInterface
    added: tuple[kinds.Header, ...] = ()

    @property
    def mtu_bytes(self) -> int:
        return self.base_bytes - kinds.length_bytes(self.added)

    def __str__(self) -> str:
        return kinds.arithmetic(self.base_bytes, self.at.name, self.added)


class Mtus:
    """The MTUs of a network's interfaces, each computed once.

    Raises BadInput for a tunnel whose remote is unreachable or reached through the tunnel itself.
    """

    def __init__(self, described: NetworkIndex) -> None:
        self._described = described
        self._derived: dict[Key, DerivedMtu] = {}
        self._in_progress: list[DescribedInterface] = []

    def of(self, one: DescribedInterface) -> int:
        """Return the MTU of an interface in bytes: the configured one, or the largest that fits."""
        return self.derived(one).mtu_bytes

    def derived(self, one: DescribedInterface) -> DerivedMtu:
        if one.key not in self._derived:
            if one in self._in_progress:
                raise BadInput(f"{one} carries its own outer packets: give its remote another route")
            self._in_progress.append(one)
            self._derived[one.key] = self._derive(one)
            self._in_progress.pop()
        return self._derived[one.key]

    def _derive(self, one: DescribedInterface) -> DerivedMtu:
        part = one.part
        if isinstance(part, parts.Bridge):
            ports = [
                port for port in self._described.interfaces.values() if (port.at, port.master) == one.key
            ]
            mtus = [self.derived(port) for port in ports]
            return min(mtus, key=lambda mtu: mtu.mtu_bytes, default=self._own(one, None))
        if isinstance(part, parts.Tunnel) and part.mtu_bytes is None:
            return self.largest(one, part)
        if isinstance(part, parts.UpperDevice):
            lower = self._described.interfaces[part.lower]
            return DerivedMtu(self.of(lower), lower)
        if isinstance(part, parts.Cable):
            return self._own(one, part.mtu_at(one.key))
        return self._own(one, part.mtu_bytes if isinstance(part, parts.Tunnel) else None)

    def _own(self, one: DescribedInterface, mtu_bytes: int | None) -> DerivedMtu:
        return DerivedMtu(self._described.network.mtu_bytes if mtu_bytes is None else mtu_bytes, one)

    def largest(self, one: DescribedInterface, tunnel: parts.Tunnel) -> DerivedMtu:
        """Return the largest MTU of a tunnel: the minimum over all paths to all remotes."""
        mtus = []
        for remote in map(ip_address, tunnel.remotes):
            outside = self._outside(one, tunnel, remote)
            added = kinds.headers(tunnel.kind, family=remote.version, key=tunnel.id is not None)
            added = kinds.within(added, outside.mtu_bytes)
            mtus.append(DerivedMtu(outside.base_bytes, outside.at, (*outside.added, *added)))
        return min(mtus, key=lambda mtu: mtu.mtu_bytes)

    def _outside(self, one: DescribedInterface, tunnel: parts.Tunnel, remote: Address) -> DerivedMtu:
        """Return the MTU for the tunnel's outer packets."""
        if remote.is_multicast or not kinds.KINDS[one.kind].outer:
            return self.derived(self._described.interfaces[one.at, tunnel.link or ""])
        result = self._on_paths(one.at, remote, tunnel.link)
        if result is None:
            raise BadInput(
                f"{one} cannot reach its remote {remote}: give {one.at} and the nodes between a route to it"
            )
        return self._in_esp(result) if self._described.is_in_esp(one.at, remote) else result

    def of_packets(self, one: DescribedInterface) -> int:
        """Return the length in bytes of the longest packet that a container sends at its interface."""
        is_end = any(one.key in (part.one, part.other) for part in self._described.esp)
        return (self._in_esp(self.derived(one)) if is_end else self.derived(one)).mtu_bytes

    def _in_esp(self, path: DerivedMtu) -> DerivedMtu:
        added = kinds.within(kinds.ESP, path.mtu_bytes)
        return DerivedMtu(path.base_bytes, path.at, (*path.added, *added))

    def _on_paths(self, at: str, to: Address, link: str | None) -> DerivedMtu | None:
        """Return the smallest MTU on any path from a node to an address; None if no path arrives.

        `link`: the interface by which the path must leave.
        """
        described, arrived = self._described, False
        mtus: list[DerivedMtu] = []
        waiting, seen = [(at, to)], {(at, to)}
        while waiting:
            here, target = waiting.pop()
            for hop in described.next_hops(here, target):
                if here == at and target == to and link not in (None, hop.out.name):
                    continue
                near = described.behind(hop, target)
                if near is None or near not in described.owner:
                    continue
                mtus.append(self.derived(hop.out))
                there = described.owner[near].at
                arrived |= there == described.owner[to].at if to in described.owner else False
                if there != here and there != self._node(target) and (there, target) not in seen:
                    seen.add((there, target))
                    waiting.append((there, target))
        return min(mtus, key=lambda mtu: mtu.mtu_bytes) if arrived else None

    def _node(self, address: Address) -> str | None:
        owner = self._described.owner.get(address)
        return None if owner is None else owner.at


def _mtus(described: NetworkIndex, mtus: Mtus) -> None:
    """Raise BadInput, with the arithmetic, for an MTU that does not fit."""
    of_sense = not described.network.as_is
    for one in described.interfaces.values():
        if of_sense and isinstance(one.part, parts.Tunnel) and one.part.mtu_bytes is not None:
            largest = mtus.largest(one, one.part)
            if one.part.mtu_bytes > largest.mtu_bytes:
                raise BadInput(f"the MTU {one.part.mtu_bytes} of {one} does not fit: {largest}")
    for one in described.interfaces.values():
        _check_size(described, mtus, one)
    narrowest: dict[Key, DescribedInterface] = {}
    for one in described.interfaces.values():
        key = described.link[one.key]
        if one.kind != "bridge":  # a bridge is as narrow as its narrowest port
            narrowest[key] = min(narrowest.get(key, one), one, key=mtus.of)
    for one in described.interfaces.values() if of_sense else ():
        least = narrowest.get(described.link[one.key], one)
        # The ends of a layer 3 tunnel may differ.
        if one.address is not None and one.carries_frames and mtus.of(one) > mtus.of(least):
            raise BadInput(
                f"the MTU {mtus.of(one)} of {one} does not fit through {least} on the same link: {mtus.derived(least)}"
            )


def _check_size(described: NetworkIndex, mtus: Mtus, one: DescribedInterface) -> None:
    """Raise BadInput for an MTU outside the range of its IP version or of a veth."""
    mtu = mtus.derived(one)
    versions = {one.address.version} if one.address is not None else {4}
    routed = [hop for route in described.routes if route.at == one.at for hop in described.hops(route)]
    if any(hop.via is not None and hop.via.version == 6 for hop in routed if hop.out is one):
        versions.add(6)
    least = max(MIN_BYTES[version] for version in versions)
    if mtu.mtu_bytes < least:
        why = "IPv6 needs 1280 (RFC 8200)" if least == MIN_BYTES[6] else "IPv4 needs 68 (RFC 791)"
        derivation = f": {mtu}" if mtu.added else ""
        raise BadInput(f"the MTU {mtu.mtu_bytes} of {one} is too small, {why}{derivation}")
    if mtu.mtu_bytes > MAX_BYTES:  # the kernel would not say what is invalid
        raise BadInput(f"the MTU {mtu.mtu_bytes} of {one} is too large: the limit of a veth is {MAX_BYTES}")
