"""The parts of networks: nodes, bridges, cables, tunnels, routes.

They are data: written in a notebook, sent as JSON, and checked before anything is built.

  Network("two_leaves", [Node("lc1", forwards=True), Node("lc2", forwards=True),
          Cable(End("lc1", "lc1_lc2", "25.0.0.1/24"), End("lc2", "lc2_lc1", "25.0.0.2/24")),
          Tunnel("gre", "lc1", "gretun", local="25.0.0.1", remote="25.0.0.2"), …], pairs=[("lc1", "lc2")])
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec


class CableEnd(NamedTuple):
    """One end of a cable: its node, the interface's name, its address with prefix length, and its bridge
    (`master`)."""

    at: str
    name: str
    address: str | None = None
    master: str | None = None


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="node"):
    """A network namespace.

    `container`: traffic starts and ends here. `forwards`: it is a router. `ignores_linkdown`: it does not use routes
    over links without carrier (sysctl ignore_routes_with_linkdown).
    """

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
    """A veth between two ends: a routed link with addresses, or a bridge port with a master.

    `mtu_bytes` None: the network's.
    """

    one: CableEnd
    other: CableEnd
    mtu_bytes: int | None = None


class Tunnel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tunnel"):
    """An encapsulating device.

    `kind`: vxlan (RFC 7348), geneve (RFC 8926), gre (RFC 2784; key RFC 2890), gretap (Ethernet in GRE), ipip (RFC
    2003). `remote`: the outer address of the other end. For vxlan it may be a multicast group (`link` names the
    interface towards it), or several remotes (head-end replication by forwarding database entries). `id`: VNI or key.
    `port`: UDP port of vxlan and geneve; None: 4789 (IANA) and 6081. `learning`: of MAC addresses from received frames
    (vxlan). `mtu_bytes` None: computed.
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
    """A static route in the node `at` to a prefix or `default`: through gateways (several: equal-cost multipath) or
    an interface."""

    at: str
    to: str
    via: str | tuple[str, ...] = ()
    out: str | None = None
    metric: int | None = None


Part = Node | Bridge | Cable | Tunnel | Route


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network made of parts.

    `pairs`: (client, server) containers. `mtu_bytes`: of every cable without its own. Its text form is its name, like
    that of any other topology.
    """

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
