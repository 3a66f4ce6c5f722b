"""The parts of networks: nodes, bridges, cables, devices on others, tunnels, routes.

They are data: written in a notebook or a file, or made by a topology, sent as JSON, and checked before they are built.

  Network("two_leaves", [Node("lc1", forwards=True), Node("lc2", forwards=True),
          Cable(End("lc1", "lc1_lc2", "25.0.0.1/24"), End("lc2", "lc2_lc1", "25.0.0.2/24")),
          Tunnel("gre", "lc1", "gretun", local="25.0.0.1", remote="25.0.0.2"), …], pairs=[("lc1", "lc2")])
"""

import hashlib
from typing import Annotated, Literal, NamedTuple

import msgspec

from labkit.common import packets

BpfHelper = Literal["bpf_redirect", "bpf_redirect_peer", "bpf_redirect_neigh"]
BpfHook = Literal["tc", "xdp", "xdp_generic", "netkit"]
MacsecCipher = Literal["GCM-AES-128", "GCM-AES-256"]
# Of the kinds of tunnels that are in UDP; that of WireGuard is the usual one (wg(8)).
UDP_PORTS = {kind: port for port, kind in packets.PORTS.items()} | {"wireguard": 51820}


class CableEnd(NamedTuple):
    """One end of a cable: its node, the interface's name, its address with prefix length, its bridge (`master`), and
    its MAC address (None: random)."""

    at: str
    name: str
    address: str | None = None
    master: str | None = None
    mac: str | None = None
    hairpin: bool = False


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
    """A Linux bridge in the node `at`, without spanning tree. `mac` None: that of a port."""

    at: str
    name: str
    address: str | None = None
    mac: str | None = None


class Cable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="cable"):
    """Two interfaces that are each other's peer: a routed link with addresses, or a bridge port with a master.

    `kind`: veth, netkit (Linux 6.7; `one` is its primary end), or another kind with peers. `mode`: of netkit, l2 or l3
    (without MAC addresses); None: the kind's first. `mtu_bytes`: of both ends, or of `one` and of `other`; None: the
    network's.
    """

    one: CableEnd
    other: CableEnd
    mtu_bytes: int | tuple[int, int] | None = None
    kind: str = "veth"
    mode: str | None = None

    def mtu_at(self, end: tuple[str, str]) -> int | None:
        """Return the MTU of an end (node, interface); None: the network's."""
        if isinstance(self.mtu_bytes, tuple):
            return self.mtu_bytes[end == (self.other.at, self.other.name)]
        return self.mtu_bytes


class UpperDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="upper"):
    """A macvlan or ipvlan device on a lower device, which may be in another node: `lower` is (node, interface).

    Devices on one lower device reach each other, as far as `mode` lets them. The MTU is the lower device's.
    """

    kind: str
    at: str
    name: str
    lower: tuple[str, str]
    mode: str
    address: str | None = None
    mac: str | None = None


class Tunnel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tunnel"):
    """An encapsulating device.

    `kind`: vxlan (RFC 7348), geneve (RFC 8926), gre (RFC 2784; key RFC 2890), gretap (Ethernet in GRE), ipip (RFC
    2003), wireguard, xfrm (ESP in tunnel mode, RFC 4303), macsec (IEEE 802.1AE, between the ends of the cable `link`).
    The last three get new keys each time; xfrm and macsec use AES-GCM. `remote`: the outer address of the other end.
    For vxlan it may be a multicast group (`link` names the interface towards it), or several remotes (head-end
    replication by forwarding database entries). `id`: VNI, key, or interface ID (xfrm). `port`: UDP port of vxlan,
    geneve and wireguard; None: 4789, 6081 (IANA) and 51820. `learning`: of MAC addresses from received frames (vxlan).
    `ttl` None: the namespace's default for vxlan and geneve, the inner packet's for gre, gretap and ipip; wireguard and
    xfrm always have the namespace's default. `mac` None: random, or that of the cable (macsec). `qdisc`: the root
    queueing discipline; None: the kernel's choice. `mtu_bytes` None: computed.

    Of macsec: `cipher`; `encrypts`: it does not only authenticate; `replay_window`: how many frames behind the newest
    one it accepts (None: it accepts all).
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
    ttl: int | None = None
    mac: str | None = None
    qdisc: str | None = None
    cipher: MacsecCipher = "GCM-AES-128"
    encrypts: bool = True
    replay_window: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] | None = None

    @property
    def remotes(self) -> tuple[str, ...]:
        """The outer addresses that it sends to."""
        return (self.remote,) if isinstance(self.remote, str) else self.remote

    @property
    def udp_port(self) -> int | None:
        """Its UDP port; None for a tunnel that is not in UDP."""
        return self.port if self.port is not None else UDP_PORTS.get(self.kind)


class Neighbour(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="neighbour"):
    """A permanent neighbour entry of an interface: neither ARP nor NDP resolves the address."""

    at: str
    out: str
    address: str
    mac: str


class Nic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="nic"):
    """A NIC of the machine, as part of a topology of labkit; a network of one's own cannot have one.

    `at`, `name`: where and by which name the other parts find it. `moves`: into the node while the network exists, as
    a port must; else it stays where it is, unless it is a lab VM's own.
    """

    at: str
    name: str
    master: str | None = None
    moves: bool = False


class Redirect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="redirect"):
    """A BPF program that sends what arrives at an interface of a cable to another interface `to` of the node.

    `helper` (bpf-helpers(7)): bpf_redirect transmits at `to`. bpf_redirect_peer gives it to the other end of `to`'s
    cable, past the queue of the CPU (Linux 5.10). bpf_redirect_neigh transmits at `to` as the node's routing table and
    neighbours say, without its forwarding code (Linux 5.10). `hook`: tc (clsact, direct action), xdp (in the driver,
    before there is an skb), xdp_generic, or netkit: at the other end's transmission, before the packet arrives at
    `interface`, where the kernel then drops whatever no program decides about (its policy is blackhole).
    """

    at: str
    interface: str
    to: str
    helper: BpfHelper = "bpf_redirect"
    hook: BpfHook = "tc"

    @property
    def unseen(self) -> tuple[str, ...]:
        """The interfaces of the node at which neither a capture nor a queue nor a rule sees what is redirected.

        bpf_redirect_peer lets it arrive at the other end of `to`'s cable (skb_do_redirect, net/core/filter.c), so `to`
        does not transmit it. A program of netkit runs before it arrives at `interface` (netkit_xmit). XDP runs before
        captures there (veth_xdp_rcv_skb, and do_xdp_generic in __netif_receive_skb_core), and transmits at `to` without
        dev_queue_xmit (veth_xdp_xmit, generic_xdp_tx).
        """
        if self.hook == "netkit":
            return (self.interface,)
        if self.hook.startswith("xdp"):
            return (self.interface, self.to)
        return (self.to,) if self.helper == "bpf_redirect_peer" else ()


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=10)]


class Impairment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="impairment"):
    """What happens to packets on the way out of an interface of a cable (tc-netem(8), tc-tbf(8)).

    `rate_bps`: with a queue of `queue_s`, and bursts of `burst_bytes` (None: two packets, or 1 ms). `delay_s`, with a
    deviation of up to `jitter_s`. `loss`, `duplicate`: shares of the packets. `reorder`: the share that is sent at once
    while the others wait. `queue_packets`: the room of a plain queue (pfifo), without any of these. The kernel segments
    large TCP packets for a rate; loss and duplicates are of packets as the kernel holds them, which may be many
    segments.
    """

    at: str
    interface: str
    rate_bps: Annotated[float, msgspec.Meta(ge=1e3, le=1e12)] | None = None
    delay_s: Seconds = 0.0
    jitter_s: Seconds = 0.0
    loss: Share = 0.0
    duplicate: Share = 0.0
    reorder: Share = 0.0
    queue_s: Annotated[float, msgspec.Meta(gt=0, le=10)] = 0.05
    burst_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] | None = None
    queue_packets: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None


OffloadName = Literal["rx", "tx", "sg", "tso", "gso", "gro"]
# Of what the kernel segments (GSO) and merges (GRO), with ip-link(8)'s names
LINK_LIMITS = ("gso_max_size", "gso_max_segs", "gro_max_size")
LinkLimit = Annotated[int, msgspec.Meta(ge=0, le=8 * 65535)] | None


class Offloads(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="offloads"):
    """Offloads of an interface that are switched on or off, by their short names (ethtool(8)), and limits of what it
    segments and merges, in bytes and segments (LINK_LIMITS)."""

    at: str
    interface: str
    disable: tuple[OffloadName, ...] = ()
    enable: tuple[OffloadName, ...] = ()
    gso_max_size: LinkLimit = None
    gso_max_segs: LinkLimit = None
    gro_max_size: LinkLimit = None


PortOption = Literal[
    "isolated", "learning", "flood", "mcast_flood", "bcast_flood", "neigh_suppress", "guard", "root_block"
]  # fmt: skip


class Vlan(NamedTuple):
    """A VLAN of a bridge's port (bridge(8))."""

    id: Annotated[int, msgspec.Meta(ge=1, le=4094)]
    pvid: bool = False
    untagged: bool = False


class BridgePort(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="bridge_port"):
    """Settings of a bridge's port (bridge(8)): options that are switched on or off, and all its VLANs (None: the usual
    one). `filters_vlans`: it is a bridge itself, which filters them."""

    at: str
    interface: str
    disable: tuple[PortOption, ...] = ()
    enable: tuple[PortOption, ...] = ()
    vlans: tuple[Vlan, ...] | None = None
    filters_vlans: bool = False


class Sysctl(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sysctl"):
    """A sysctl of the node's network namespace, one of `settings.SYSCTLS`: numbers, or a name."""

    at: str
    name: str
    value: int | str


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="rules"):
    """Rules of nftables in the node, as nft(8) reads them. They include no other file."""

    at: str
    text: Annotated[str, msgspec.Meta(max_length=1 << 20)]


class Esp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="esp"):
    """ESP in transport mode (RFC 4303, AES-GCM) for all packets between the addresses of two interfaces.

    Each is (node, interface). The interfaces keep their MTU, and the longest packet between them is shorter.
    """

    one: tuple[str, str]
    other: tuple[str, str]


RouteLimit = Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)]
# Those of routes, with ip-route(8)'s names.
ROUTE_LIMITS = {
    "mtu_bytes": "mtu", "mss_bytes": "advmss", "window_bytes": "window", "first_window": "initcwnd",
    "first_offered_window": "initrwnd", "quick_acks": "quickack",
}  # fmt: skip


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="route"):
    """A static route in the node `at` to a prefix or `default`: through gateways (several: equal-cost multipath) or
    an interface, or through both if no subnet of the node has the gateway.

    It can limit packets to `mtu_bytes`, and of TCP the segments (`mss_bytes`) and the window that the node offers, and
    set its first window and the one that it first offers, in segments (ROUTE_LIMITS; ip-route(8)). source: the address
    of the node that its packets have. A route to a subnet of its interface takes the place of the kernel's own one.
    """

    at: str
    to: str
    via: str | tuple[str, ...] = ()
    out: str | None = None
    metric: int | None = None
    mss_bytes: RouteLimit | None = None
    mtu_bytes: RouteLimit | None = None
    window_bytes: RouteLimit | None = None
    first_window: RouteLimit | None = None
    first_offered_window: RouteLimit | None = None
    quick_acks: RouteLimit | None = None
    source: str | None = None

    @property
    def limits(self) -> dict[str, int]:
        """Its limits, by ip-route(8)'s names."""
        every = ((name, getattr(self, field)) for field, name in ROUTE_LIMITS.items())
        return {name: value for name, value in every if value is not None}

    @property
    def gateways(self) -> tuple[str, ...]:
        """Its gateways: none, one, or several."""
        return (self.via,) if isinstance(self.via, str) else self.via


Part = (
    Node | Bridge | Cable | UpperDevice | Tunnel | Redirect | Impairment | Offloads | BridgePort | Sysctl | Rules
    | Esp | Route | Neighbour | Nic
)  # fmt: skip


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network made of parts.

    `pairs`: (client, server) containers. `mtu_bytes`: of every cable without its own. `as_is`: it is built although
    packets may not pass, as the copy of a broken network: MTUs that do not fit, addresses twice, subnets that overlap.
    Its text form is its name, like that of any other topology.
    """

    name: str
    parts: tuple[Part, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    mtu_bytes: int = 1500
    as_is: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change with anything in the description."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]
