"""The topologies of the Linux kernel: loopback, veth, bridge, routing, macvlan, ipvlan, tunnels and encryption.

Each function describes a network of parts, of all ends or of one side (`Spec.side`); `network.build` builds it.
"""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Interface, ip_address

from labkit.common.errors import BadInput, Unsupported
from labkit.measure.endpoints import Endpoint, Pair, namespaces
from labkit.measure.topologies.base import (
    BETWEEN,
    Spec,
    Topology,
    address,
    end_address,
    end_name,
    mac,
    nic_mac,
    numbers,
    subnet,
)
from labkit.measure.topologies.network import kinds
from labkit.measure.topologies.network.parts import (
    BpfHelper,
    BpfHook,
    Bridge,
    Cable,
    CableEnd,
    Esp,
    Neighbour,
    Network,
    Nic,
    Node,
    Part,
    Redirect,
    Route,
    Tunnel,
    UpperDevice,
)
from labkit.measure.topologies.network.validate import MAX_BYTES
from labkit.system import netlink

# `part` in the MAC addresses of ports between the ends, and of cables under tunnels
PORT_SIDE, UNDER_SIDE = 1, 2
PARENT_MAC = mac(0, 3)
VNI = 42
TTL = 64
# The tunnel devices of each arm, from the outermost to the innermost.
TUNNELS = {
    "vxlan": ("vxlan",), "geneve": ("geneve",), "gre": ("gre",), "gretap": ("gretap",), "ipip": ("ipip",),
    "vxlan_gre": ("gre", "vxlan"),
}  # fmt: skip
# What encrypts, alone and under VXLAN.
ENCRYPTED = {
    "wireguard": "wireguard",
    "esp_transport": kinds.TRANSPORT,
    "esp_tunnel": "xfrm",
    "macsec": "macsec",
}
TUNNELS |= {name: (kind,) for name, kind in ENCRYPTED.items()}
TUNNELS |= {f"vxlan_{name}": (kind, "vxlan") for name, kind in ENCRYPTED.items()}


@contextmanager
def loopback(name: str, spec: Spec) -> Iterator[Topology]:
    """Build both ends of each pair in one namespace, over lo: the upper limit of what the network stack can do."""
    # Single-address prefixes: in a shared subnet the second address is a secondary one, and UDP replies would not have
    # it as their source.
    alone = 32 if spec.family == 4 else 128
    with namespaces([f"both{number}" for number in range(spec.pairs)], family=spec.family) as made:
        pairs = []
        for number, space in enumerate(made):
            space.netlink.do(
                netlink.set_link(1, mtu_bytes=spec.mtu_bytes),
                *(netlink.new_address(1, address(spec.family, side, number, alone)) for side in (1, 2)),
            )
            client, server = (
                Endpoint(f"{role}{number}", space, "lo", 1, str(address(spec.family, side, number).ip))
                for side, role in ((1, "client"), (2, "server"))
            )
            pairs.append(Pair(client, server))
            space.wait_for_addresses(ip_address(end.address) for end in (client, server))
        yield Topology(name, spec, pairs, made)


def veth(name: str, spec: Spec) -> Network:
    """Describe one veth between the two ends of each pair (veth(4)).

    The receive path of the far end runs in the sender's softirq.
    """
    cables = [Cable(eth0(spec, number), eth0(spec, number + 1)) for number in numbers(spec)[::2]]
    return network(name, spec, [*ends_with_known_macs(spec), *cables])


def veth_bridge(name: str, spec: Spec) -> Network:
    """Describe a veth from every end to one Linux bridge, as Docker's default network.

    The bridge has no spanning tree and no VLAN filtering.
    """
    bridge: list[Part] = [Node(BETWEEN), Bridge(BETWEEN, "bridge")]
    cable = [Nic(BETWEEN, "nic", "bridge", moves=True)] if spec.side else []
    return network(name, spec, [*ends_with_known_macs(spec), *bridge, *ports(spec, "bridge"), *cable])


# The kind of cable and its mode of each arm whose ends are joined by a router.
ROUTED = {"veth_routed": ("veth", None), "netkit": ("netkit", "l2"), "netkit_l3": ("netkit", "l3")}


def routed(name: str, spec: Spec) -> Network:
    """Describe a cable from every end to a router, each with a subnet of two addresses.

    Calico does the same with veth, and adds policies. Of netkits the router has the primary ends, as with Cilium. Those
    in layer 3 mode have no MAC addresses.
    """
    kind, mode = ROUTED[name]

    def mac_of(number: int, part: int = 0) -> str | None:
        return None if mode == "l3" else mac(number, part, spec.ours)

    parts: list[Part] = []
    for number in numbers(spec):
        at = end_name(number)
        gateway, own = subnet(spec, 1 + number % 2, number // 2)
        port = CableEnd(BETWEEN, f"port{number}", str(gateway), mac=mac_of(number, PORT_SIDE))
        end = CableEnd(at, "eth0", str(own), mac=mac_of(number))
        parts += [Node(at, container=True), Cable(port, end, kind=kind, mode=mode)]
        if port.mac is not None and end.mac is not None:
            parts += [
                Neighbour(BETWEEN, port.name, str(own.ip), end.mac),
                Neighbour(at, "eth0", str(gateway.ip), port.mac),
            ]
        parts.append(Route(at, "default", via=str(gateway.ip)))
    return network(name, spec, [*parts, Node(BETWEEN, forwards=True)])


# What each arm whose ports are joined by BPF programs has below them (None: all ends in one subnet), the helper and the
# hook. In the routed ones, the router forwards nothing: bpf_redirect_neigh routes, and netkit in layer 3 mode needs no
# MAC addresses.
REDIRECTS: dict[str, tuple[str | None, BpfHelper, BpfHook]] = {
    "veth_redirect": (None, "bpf_redirect", "tc"),
    "veth_redirect_peer": (None, "bpf_redirect_peer", "tc"),
    "veth_redirect_neigh": ("veth_routed", "bpf_redirect_neigh", "tc"),
    "veth_xdp": (None, "bpf_redirect", "xdp"),
    "veth_xdp_generic": (None, "bpf_redirect", "xdp_generic"),
    "netkit_l2_redirect": ("netkit", "bpf_redirect_neigh", "netkit"),
    "netkit_redirect": ("netkit_l3", "bpf_redirect", "netkit"),
    "netkit_redirect_peer": ("netkit_l3", "bpf_redirect_peer", "tc"),
}


def redirected(name: str, spec: Spec) -> Network:
    """Describe a cable from every end, and programs that redirect what comes to a port to the partner's port.

    CNIs with eBPF host routing do the same, with a lookup of the target in place of a constant.
    """
    below, helper, hook = REDIRECTS[name]
    shared = [*ends_with_known_macs(spec), Node(BETWEEN), *ports(spec, None)]
    parts = shared if below is None else routed(below, spec).parts
    redirects = [
        Redirect(BETWEEN, f"port{number}", f"port{number ^ 1}", helper, hook) for number in numbers(spec)
    ]
    return network(name, spec, [*parts, *redirects])


def macvlan(name: str, spec: Spec) -> Network:
    """Describe macvlan in the mode that ends the name.

    The kernel refuses the second device in passthru mode, which raises Isolated.
    """
    # Random MAC addresses for each arm: arms on one NIC of the machine have the same IP addresses, and other machines
    # are on its wire. Two hosts agree on theirs.
    own = functools.partial(mac, ours=os.urandom(2) if spec.side is None else spec.ours)
    mode = name.removeprefix("macvlan_")
    return network(name, spec, [*ends(spec, own), *_shared("macvlan", mode, spec, own)])


def ipvlan(name: str, spec: Spec) -> Network:
    """Describe ipvlan in the mode that ends the name: the ends share the parent's MAC address and differ in IP
    address."""
    mode = name.removeprefix("ipvlan_")
    # The L3 modes resolve no addresses. The MAC address of a NIC is for ARP to find.
    is_known = mode == "l2" and spec.parent is None and spec.side is None
    parts = ends(spec, (lambda _number: PARENT_MAC) if is_known else None)
    routes = [] if spec.side is None or mode == "l2" else _routes_of_parent(name, spec)
    return network(name, spec, [*parts, *_shared("ipvlan", mode, spec), *routes])


def _routes_of_parent(name: str, spec: Spec) -> list[Part]:
    """Return routes from the parent to the ends on the other host, and their MAC address.

    In the L3 modes the parent's namespace routes what leaves (drivers/net/ipvlan/ipvlan_core.c,
    ipvlan_process_outbound), and the ends answer no ARP. Raises Unsupported for a NIC that labkit did not make, because
    its namespace is the machine's own.
    """
    if spec.side is None or spec.parent is not None:
        raise Unsupported(
            f"{name} needs routes in the namespace of its parent, and labkit changes none of the machine's: leave"
            " parent out, so that labkit makes the cable, or use ipvlan_l2"
        )
    far_mac = nic_mac(spec, 3 - spec.side)
    far = [str(end_address(spec, number ^ 1).ip) for number in numbers(spec)]
    return [
        part
        for ip in far
        for part in (Route(BETWEEN, ip, out="parent"), Neighbour(BETWEEN, "parent", ip, far_mac))
    ]


def _shared(kind: str, mode: str, spec: Spec, mac_of: Callable[[int], str] | None = None) -> list[Part]:
    """Return eth0 of every end as a device on the parent: a NIC, or one end of a veth, whose far end is up."""
    lower = (BETWEEN, "parent")
    devices = [
        UpperDevice(
            kind, end_name(number), "eth0", lower, mode, str(end_address(spec, number)),
            None if mac_of is None else mac_of(number),
        )
        for number in numbers(spec)
    ]  # fmt: skip
    if spec.parent is not None or spec.side is not None:
        return [Node(BETWEEN), Nic(*lower), *devices]
    # VEPA (802.1Qbg) leaves switching to the external switch: a bridge port in hairpin mode returns each frame to the
    # port it came from.
    reflects = mode == "vepa"
    far = CableEnd(BETWEEN, "far", master="bridge" if reflects else None, hairpin=reflects)
    bridge = [Bridge(BETWEEN, "bridge")] if reflects else []
    return [Node(BETWEEN), *bridge, Cable(CableEnd(*lower, mac=PARENT_MAC), far), *devices]


def tunnel(name: str, spec: Spec) -> Network:
    """Describe a point-to-point tunnel over a veth for each pair; IPv4 outside, IPv4 or IPv6 inside.

    The MTU of the veth is larger by the tunnel's headers, so all arms have the same inner MTU. gre, gretap and
    ipip set the DF bit outside (the kernel's default): packets that do not fit are refused, not fragmented. ESP copies
    the bit from the packet inside. vxlan, geneve and WireGuard do not set it.
    """
    outside_mtu = outside_bytes(name, spec.mtu_bytes, spec.family)
    esp = [
        Esp((end_name(number), "under"), (end_name(number + 1), "under"))
        for number in (numbers(spec)[::2] if TUNNELS[name][0] == kinds.TRANSPORT else ())
    ]
    *outer_kinds, inner = (kind for kind in TUNNELS[name] if kind != kinds.TRANSPORT)
    frames = kinds.KINDS[inner].carries_frames
    parts = ends(spec, mac if frames else None)
    for number in numbers(spec):
        at, side = end_name(number), number % 2
        own_mac = mac(number) if frames else None
        # gretap is the only one that the kernel gives a queue (net/ipv4/ip_gre.c: no IFF_NO_QUEUE).
        qdisc = "noqueue" if inner == "gretap" else None
        parts += [
            _end_of(inner, at, "eth0", len(outer_kinds), side, "outer" if outer_kinds else "under",
                    str(end_address(spec, number)), spec.mtu_bytes, own_mac, qdisc),
            *(
                _end_of(kind, at, "outer", 0, side, "under", str(outer(1, side)),
                        spec.mtu_bytes + kinds.length_bytes(kinds.headers(inner)))
                for kind in outer_kinds
            ),
            Neighbour(at, "under", str(outer(0, 1 - side).ip), mac(number ^ 1, UNDER_SIDE)),
        ]  # fmt: skip
    under = [
        CableEnd(end_name(number), "under", str(outer(0, number % 2)), mac=mac(number, UNDER_SIDE))
        for number in numbers(spec)
    ]
    cables = [Cable(*both, mtu_bytes=outside_mtu) for both in zip(under[::2], under[1::2], strict=True)]
    return network(name, spec, [*parts, *cables, *esp])  # eth0 comes first: it carries the load


def esp_transport(name: str, spec: Spec) -> Network:
    """Describe a veth between the two ends of each pair, with ESP in transport mode for all packets between them.

    ESP pads to 4 bytes, so up to 3 more bytes would fit into the path than `mtu_bytes`. TCP is told the exact size.
    """
    mss_bytes = spec.mtu_bytes - (40 if spec.family == 4 else 60)  # IP and TCP without options
    parts = ends_with_known_macs(spec)
    for number in numbers(spec):
        partner = f"{end_address(spec, number ^ 1).ip}/{32 if spec.family == 4 else 128}"
        parts.append(Route(end_name(number), partner, out="eth0", mss_bytes=mss_bytes))
    outside_mtu = outside_bytes(name, spec.mtu_bytes)
    for number in numbers(spec)[::2]:
        one, other = eth0(spec, number), eth0(spec, number + 1)
        parts += [Cable(one, other, outside_mtu), Esp((one.at, one.name), (other.at, other.name))]
    return network(name, spec, parts)


def _end_of(
    kind: str, at: str, name: str, depth: int, side: int, link: str, address: str, mtu_bytes: int,
    own_mac: str | None = None, qdisc: str | None = None,
) -> Tunnel:  # fmt: skip
    near, far = outer(depth, side), outer(depth, 1 - side)
    return Tunnel(
        kind, at, name, str(far.ip), local=str(near.ip), id=VNI if kinds.KINDS[kind].needs_id else None, link=link,
        learning=False, address=address, mtu_bytes=mtu_bytes, ttl=TTL, mac=own_mac, qdisc=qdisc,
    )  # fmt: skip


def outer(depth: int, side: int) -> IPv4Interface:
    """Return the outer address of the client (side 0) or server (side 1): of `under` (depth 0) or `outer` (depth 1).

    All pairs use the same addresses, each in its own namespaces. A /31 has two usable addresses (RFC 3021).
    """
    return IPv4Interface(f"192.168.{depth}.{side}/31")


def outside_bytes(name: str, mtu_bytes: int, family: int = 4) -> int:
    """Return the MTU in bytes of the veth under the tunnel `name`.

    Raises BadInput if it exceeds a veth's largest MTU, or if the tunnel does not carry this IP version.
    """
    if name == "ipip" and family == 6:
        raise BadInput("ipip carries IPv4 only (RFC 2003): use family=4, or gre, which carries both")
    own = kinds.headers(*TUNNELS[name])
    added_bytes = kinds.length_bytes(kinds.around(own, mtu_bytes))
    result = mtu_bytes + added_bytes
    if result > MAX_BYTES:
        fits = kinds.arithmetic(MAX_BYTES, "veth", kinds.within(own, MAX_BYTES))
        raise BadInput(
            f"mtu_bytes={mtu_bytes} does not fit into {name}: with its {added_bytes} bytes of headers it is"
            f" {result}, but the limit of a veth is {MAX_BYTES}: {fits}"
        )
    return result


def network(name: str, spec: Spec, parts: list[Part]) -> Network:
    """Return the network of a topology: its pairs are those of which both ends are here."""
    pairs = [(end_name(number), end_name(number + 1)) for number in numbers(spec)[::2]]
    return Network(name, tuple(parts), () if spec.side else tuple(pairs), spec.mtu_bytes)


def ends(spec: Spec, mac_of: Callable[[int], str] | None) -> list[Part]:
    """Return a node for each end, with its partner as a permanent neighbour at eth0.

    `mac_of` returns the MAC address of end `number`; with None the ends resolve it themselves (ARP, NDP).
    """
    result: list[Part] = [Node(end_name(number), container=True) for number in numbers(spec)]
    if mac_of is not None:
        result += [
            Neighbour(end_name(number), "eth0", str(end_address(spec, number ^ 1).ip), mac_of(number ^ 1))
            for number in numbers(spec)
        ]
    return result


def ends_with_known_macs(spec: Spec) -> list[Part]:
    """Return a node for each end; each knows the MAC address that `eth0` gives its partner."""
    return ends(spec, functools.partial(mac, ours=spec.ours))


def eth0(spec: Spec, number: int) -> CableEnd:
    """Return the end of a cable that is eth0 of end `number`, in a topology where all ends are in one subnet."""
    address = str(end_address(spec, number))
    return CableEnd(end_name(number), "eth0", address, mac=mac(number, 0, spec.ours))


def ports(spec: Spec, master: str | None) -> list[Part]:
    """Return a cable from each end to its port in the namespace between them, which joins the bridge `master`."""
    return [
        Cable(
            CableEnd(BETWEEN, f"port{number}", master=master, mac=mac(number, PORT_SIDE, spec.ours)),
            eth0(spec, number),
        )
        for number in numbers(spec)
    ]
