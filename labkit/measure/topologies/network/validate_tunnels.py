"""Check a Network's tunnels."""

from __future__ import annotations

from ipaddress import ip_address
from itertools import combinations
from typing import Any

from labkit.common.errors import BadInput
from labkit.measure.topologies.network.encapsulation import LAYER_2, PORTS
from labkit.measure.topologies.network.model import DescribedInterface, NetworkIndex, port, remotes
from labkit.measure.topologies.network.parts import Tunnel

KINDS = ("vxlan", "geneve", "gre", "gretap", "ipip")
# The first invalid identifier and the name of its field (RFC 7348, RFC 8926, RFC 2890).
TOO_LARGE = {
    "vxlan": (1 << 24, "VNI"),
    "geneve": (1 << 24, "VNI"),
    "gre": (1 << 32, "key"),
    "gretap": (1 << 32, "key"),
}


def check(described: NetworkIndex) -> None:
    """Raise BadInput for the first invalid tunnel, or one that would receive another's packets."""
    for one in described.tunnels:
        assert isinstance(one.part, Tunnel)
        if one.kind not in KINDS:
            raise BadInput(f"{one} has the unknown kind {one.kind}: choose {', '.join(KINDS)}")
        _number(one, one.part)
        _ends(described, one, one.part)
        if one.kind not in LAYER_2 and one.master is not None:
            raise BadInput(
                f"{one} cannot be a port of {one.master}: {one.kind} is a layer 3 tunnel without frames"
            )
    _twins(described)


def _number(one: DescribedInterface, tunnel: Tunnel) -> None:
    """Raise BadInput for a missing, superfluous or out-of-range VNI, key or UDP port."""
    number = tunnel.id
    if number is None and one.kind in PORTS:
        raise BadInput(f"{one} has no id: give its VNI, for example id: 42")
    if number is not None and one.kind not in TOO_LARGE:
        raise BadInput(f"{one} has the id {number}, but {one.kind} has no field for it")
    if number is not None and not 0 <= number < TOO_LARGE[one.kind][0]:
        most, field = TOO_LARGE[one.kind]
        raise BadInput(
            f"the {field} {number} of {one} does not fit: it is outside 0 to 2^{most.bit_length() - 1} - 1"
        )
    if tunnel.port is not None and (one.kind not in PORTS or not 1 <= tunnel.port <= 65535):
        raise BadInput(
            f"the port {tunnel.port} of {one} is invalid: only vxlan and geneve have a port, from 1 to 65535"
        )


def _ends(described: NetworkIndex, one: DescribedInterface, tunnel: Tunnel) -> None:
    """Raise BadInput for outer addresses that this kind does not support or that belong to another node."""
    far = [ip_address(remote) for remote in remotes(tunnel)]
    local = None if tunnel.local is None else ip_address(tunnel.local)
    if not far or (len(far) > 1 and one.kind != "vxlan"):
        raise BadInput(f"{one} has {len(far)} remotes: it needs one (vxlan: one or more)")
    if len({address.version for address in (*far, *([] if local is None else [local]))}) > 1:
        raise BadInput(f"the outer addresses of {one} mix IPv4 and IPv6: use one version")
    if far[0].version == 6 and one.kind not in PORTS:
        raise BadInput(f"{one} has IPv6 outer addresses: only {' and '.join(PORTS)} support them")
    if any(address.is_multicast for address in far):
        if one.kind != "vxlan" or len(far) > 1:
            raise BadInput(
                f"the remote {far[0]} of {one} is a multicast group: only vxlan supports one, alone"
            )
        if tunnel.link is None:
            raise BadInput(f"{one} sends to the multicast group {far[0]}: name the interface for it (link)")
    for address in far:
        if not address.is_multicast and (
            address not in described.owner or described.owner[address].at == one.at
        ):
            raise BadInput(f"the remote {address} of {one} is not an address of another node of the network")
    lower = described.interfaces.get((one.at, tunnel.link or ""))
    if tunnel.link is not None and (lower is None or lower is one or one.kind == "geneve"):
        raise BadInput(
            f"{one} cannot be bound to {tunnel.link}: {one.at} has {described.names(one.at)}; geneve cannot be bound"
        )
    if lower is not None and far[0].is_multicast and far[0].version not in _versions(described, lower):
        raise BadInput(
            f"the group {far[0]} of {one} is of IPv{far[0].version}, but {lower} has no such address: give it one"
        )
    if local is not None and one.kind == "geneve":
        raise BadInput(f"{one} cannot have the local address {local}: geneve uses the address of its route")
    own = described.owner.get(local) if local is not None else None
    if local is not None and (own is None or own.at != one.at):
        raise BadInput(
            f"the local address {local} of {one} is not an address of {one.at}: {described.addresses_text(one.at)}"
        )


def _versions(described: NetworkIndex, lower: DescribedInterface) -> set[int]:
    """Return the IP versions that an interface can send: its own, or its node's if it has no address."""
    own = [lower] if lower.address is not None else described.interfaces_with_address(lower.at)
    return {one.address.version for one in own if one.address is not None}


def _twins(described: NetworkIndex) -> None:
    """Raise BadInput if two tunnels of a node would receive each other's packets."""
    for one, other in combinations(described.tunnels, 2):
        assert isinstance(one.part, Tunnel)
        assert isinstance(other.part, Tunnel)
        if one.at != other.at:
            continue
        if (
            one.kind in PORTS
            and other.kind in PORTS
            and one.kind != other.kind
            and port(one.part) == port(other.part)
        ):
            raise BadInput(f"{one} and {other} use the same UDP port {port(one.part)}: change one port")
        if _arriving(one.part) == _arriving(other.part):
            raise BadInput(
                f"{one} and {other} are both {one.kind} with the same {_field(one.part)}:"
                " received packets would be ambiguous; change one id"
            )


def _arriving(tunnel: Tunnel) -> tuple[Any, ...]:
    """Return what the kernel selects a received packet's tunnel by (drivers/net/vxlan, geneve.c, ip_tunnel.c)."""
    if tunnel.kind == "vxlan":
        return tunnel.kind, tunnel.id, port(tunnel)
    return tunnel.kind, tunnel.id, port(tunnel), remotes(tunnel), tunnel.local


def _field(tunnel: Tunnel) -> str:
    if tunnel.kind == "vxlan":
        return f"VNI {tunnel.id} and port {port(tunnel)}"
    return f"ends and {'id ' + str(tunnel.id) if tunnel.id is not None else 'no id'}"
