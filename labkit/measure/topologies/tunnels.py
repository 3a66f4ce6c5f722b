"""Tunnels as topologies. Each pair has a point-to-point tunnel over a veth; IPv4 outside, IPv4 or IPv6 inside.

The MTU of the veth is larger by the tunnel's headers, so all arms have the same inner MTU. All tunnels but vxlan and
geneve set the DF bit outside (the kernel's default): packets that do not fit are refused, not fragmented.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Interface
from typing import Any

from labkit.common.errors import BadInput
from labkit.measure.endpoints import Namespace, namespaces
from labkit.measure.topologies.base import EDGE, Spec, Topology, give_addresses, mac, names, pairs_of
from labkit.measure.topologies.network.encapsulation import LAYER_2, PORTS, arithmetic, headers, length_bytes
from labkit.system import netlink

UNDER_SIDE = 2  # `part` in the MAC addresses of `under`
# Interface indices of `under`, the veth, and `outer`, the outer one of two tunnels.
UNDER, OUTER = EDGE + 1, EDGE + 2
LARGEST = 65535  # the largest MTU of a veth, bytes (net/ethernet/eth.c, ETH_MAX_MTU)
ID = 42  # the network identifier (VNI) of vxlan and geneve
TTL = 64
# The tunnel devices of each arm, from the outermost to the innermost.
ARMS = {
    "vxlan": ("vxlan",), "geneve": ("geneve",), "gre": ("gre",), "gretap": ("gretap",), "ipip": ("ipip",),
    "vxlan_gre": ("gre", "vxlan"),
}  # fmt: skip


def outside_bytes(name: str, mtu_bytes: int, family: int = 4) -> int:
    """Return the MTU in bytes of the veth under the arm `name`.

    Raises BadInput if it exceeds a veth's largest MTU, or if the tunnel does not carry this IP version.
    """
    if name == "ipip" and family == 6:
        raise BadInput("ipip carries IPv4 only (RFC 2003): use family=4, or gre, which carries both")
    added = headers(name)
    result = mtu_bytes + length_bytes(added)
    if result > LARGEST:
        raise BadInput(
            f"mtu_bytes={mtu_bytes} does not fit into {name}: with its {length_bytes(added)} bytes of headers it is"
            f" {result}, but the limit of a veth is {LARGEST}: {arithmetic(LARGEST, 'veth', added)}"
        )
    return result


@contextmanager
def tunnel(name: str, spec: Spec) -> Iterator[Topology]:
    """Build the tunnel `name` between the two ends of each pair."""
    outside = outside_bytes(name, spec.mtu_bytes, spec.family)
    with namespaces(names(spec), family=spec.family) as made:
        for number in range(0, len(made), 2):
            _pair(name, spec.mtu_bytes, outside, (made[number], made[number + 1]), number)
        give_addresses(spec, made, mac if ARMS[name][-1] in LAYER_2 else None)
        yield Topology(name, spec, pairs_of(spec, made), made)


def _pair(name: str, mtu_bytes: int, outside: int, both: tuple[Namespace, Namespace], number: int) -> None:
    """Build the veth between two ends and the tunnel devices at each end."""
    under_mac = (mac(number, UNDER_SIDE), mac(number + 1, UNDER_SIDE))
    peer = {"name": "under", "index": UNDER, "netns": both[1].fd, "mac": under_mac[1]}
    both[0].netlink.do(
        netlink.new_link("veth", "under", index=UNDER, mtu_bytes=outside, mac=under_mac[0], peer=peer)
    )
    for side, space in enumerate(both):
        near, far = outer(0, side), outer(0, 1 - side)
        messages = [
            netlink.set_link(1),
            netlink.set_link(UNDER),
            netlink.new_address(UNDER, near),
            netlink.new_neighbour(UNDER, str(far.ip), under_mac[1 - side]),
        ]
        *outer_kinds, inner = ARMS[name]
        for kind in outer_kinds:
            outer_bytes = mtu_bytes + length_bytes(headers(inner))
            data = _data(kind, near, far, UNDER)
            messages.append(netlink.new_link(kind, "outer", index=OUTER, mtu_bytes=outer_bytes, data=data))
            near, far = outer(1, side), outer(1, 1 - side)
            messages.append(netlink.new_address(OUTER, near))
        own_mac = mac(number + side) if inner in LAYER_2 else None
        data = _data(inner, near, far, OUTER if outer_kinds else UNDER)
        messages.append(
            netlink.new_link(inner, "eth0", index=EDGE, mtu_bytes=mtu_bytes, mac=own_mac, data=data)
        )
        if (
            inner == "gretap"
        ):  # the only one that the kernel gives a queue (net/ipv4/ip_gre.c: no IFF_NO_QUEUE)
            messages.append(netlink.new_qdisc(EDGE, "noqueue"))
        space.netlink.do(*messages)


def _data(kind: str, near: IPv4Interface, far: IPv4Interface, link: int) -> dict[str, Any]:
    number, port = (ID, PORTS[kind]) if kind in PORTS else (None, None)
    return netlink.tunnel_data(
        kind, local=str(near.ip), remote=str(far.ip), number=number, port=port, link=link, learning=False, ttl=TTL
    )  # fmt: skip


def outer(depth: int, side: int) -> IPv4Interface:
    """Return the outer address of the client (side 0) or server (side 1): of `under` (depth 0) or `outer` (depth 1).

    All pairs use the same addresses, each in its own namespaces. A /31 has two usable addresses (RFC 3021).
    """
    return IPv4Interface(f"192.168.{depth}.{side}/31")
