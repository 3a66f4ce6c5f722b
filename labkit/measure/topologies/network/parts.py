"""The small parts that networks are put together of: nodes, bridges, cables, tunnels, routes. They are data: written in
a notebook, sent as JSON, checked before anything is built.

    Network("two_leaves", [Node("lc1", forwards=True), Node("lc2", forwards=True),
        Cable(End("lc1", "lc1_lc2", "25.0.0.1/24"), End("lc2", "lc2_lc1", "25.0.0.2/24")),
        Tunnel("gre", "lc1", "gretun", local="25.0.0.1", remote="25.0.0.2"), …], pairs=[("lc1", "lc2")])
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec


class CableEnd(NamedTuple):
    """One end of a cable: the node it is in, the interface's name, its address with prefix length, the bridge in that
    node of which it is a port."""

    at: str
    name: str
    address: str | None = None
    master: str | None = None


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="node"):
    """A network namespace. A container is where traffic begins and ends; `forwards` makes it a router;
    `ignores_linkdown`: a route over a link without carrier is not taken (the sysctl ignore_routes_with_linkdown)."""

    name: str
    container: bool = False
    forwards: bool = False
    ignores_linkdown: bool = False


class Bridge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="bridge"):
    """A Linux bridge in the node `at`, without spanning tree."""

    at: str
    name: str
    address: str | None = None


class Cable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="cable"):
    """A veth between two ends. With addresses it is a routed link, with a master at an end a port of a bridge.
    `mtu_bytes` none: the network's."""

    one: CableEnd
    other: CableEnd
    mtu_bytes: int | None = None


class Tunnel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tunnel"):
    """A device that encapsulates. `kind`: vxlan (RFC 7348), geneve (RFC 8926), gre (RFC 2784; key RFC 2890), gretap
    (Ethernet in GRE), ipip (RFC 2003).

    `remote`: the outer address of the other end; for vxlan also a multicast group (`link` then names the interface
    that it is reached by), or several remotes: head-end replication, by entries of the forwarding database. `id`: VNI
    or key. `port`: UDP port of vxlan and geneve; none: 4789 (IANA) and 6081. `learning`: of MAC addresses from what
    arrives (vxlan). `mtu_bytes` none: worked out.
    """

    kind: str
    at: str
    name: str
    remote: str | tuple[str, ...]
    local: str | None = None
    id: int | None = None
    port: int | None = None
    link: str | None = None
    learning: bool = True
    address: str | None = None
    master: str | None = None
    mtu_bytes: int | None = None


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="route"):
    """A static route in the node `at` to a prefix (or `default`): through a gateway (several: equal-cost multipath), or
    straight out of an interface."""

    at: str
    to: str
    via: str | tuple[str, ...] = ()
    out: str | None = None
    metric: int | None = None


Part = Node | Bridge | Cable | Tunnel | Route


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network as parts. `pairs`: which containers are client and server of each other. `mtu_bytes`: of every cable
    that says nothing else. As text it is its name, like any other topology."""

    name: str
    parts: tuple[Part, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    mtu_bytes: int = 1500

    def __str__(self) -> str:
        return self.name

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change with anything in the description."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]
