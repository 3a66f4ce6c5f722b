"""Encode requests to the kernel (route netlink) with pyroute2."""

import functools
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_network
from typing import Any

from labkit.system.netlink.rtnl import ifaddrmsg, ifinfmsg, ifinfveth, ndmsg, nla, rtmsg, tcmsg

# linux/rtnetlink.h, linux/netlink.h, linux/if.h
RTM_NEWLINK, RTM_DELLINK, RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWNEIGH, RTM_NEWQDISC = 16, 17, 20, 24, 28, 36
RTM_NEWTFILTER = 44
NLM_F_REQUEST, NLM_F_ACK, NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE, NLM_F_APPEND = (
    1,
    4,
    0x100,
    0x200,
    0x400,
    0x800,
)
IFF_UP, IFF_PROMISC = 1, 0x100
NUD_NOARP, NUD_PERMANENT, NTF_SELF = 0x40, 0x80, 2  # linux/neighbour.h
NO_MAC = "00:00:00:00:00:00"
RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RT_SCOPE_LINK, RTN_UNICAST = 254, 4, 0, 253, 1

# labkit's indexes start high, because tunnel modules add fall-back devices (tunl0, sit0) at 2, 3 … in every namespace.
FIRST_INDEX = 100


# Each round of an experiment sends the same requests again, and encoding one takes 5 ms on an emulated CPU.
_remembered = functools.lru_cache(maxsize=4096)


@dataclass(frozen=True)
class Message:
    """An encoded request; `what` describes it for error messages, `kind` is the link kind that it creates, if any."""

    what: str
    body: bytes = field(repr=False)
    kind: str | None = None


def _encode(message: Any, type_: int, flags: int, what: str, kind: str | None = None) -> Message:
    message["header"]["type"] = type_
    message["header"]["flags"] = NLM_F_REQUEST | NLM_F_ACK | flags
    message.encode()
    return Message(what, bytes(message.data), kind)


def new_link(
    kind: str,
    name: str,
    *,
    index: int = 0,
    netns: int | None = None,
    link: int | None = None,
    master: int | None = None,
    mtu_bytes: int | None = None,
    mac: str | None = None,
    up: bool = True,
    data: dict[str, Any] | None = None,
    peer: dict[str, Any] | None = None,
    peer_attribute: str = "VETH_INFO_PEER",
) -> Message:
    """Return a request that creates an interface, up unless `up` is False.

    `index`: chosen by the caller, so that it need not be looked up. `netns`: file descriptor of the namespace of the
    new interface. `link`: index of its lower device in the socket's namespace. `data`: attributes of the kind
    (IFLA_INFO_DATA) with the kernel's names. `peer`: name, index and netns of the other end, under the kind's
    `peer_attribute`; it stays down, because veth_open fails before both ends exist.
    """
    message = ifinfmsg()
    message["index"] = index
    if up:
        message["flags"] = message["change"] = IFF_UP
    attributes = _link_attributes(name, netns, mtu_bytes, mac)
    if link is not None:
        attributes.append(("IFLA_LINK", link))
    if master is not None:
        attributes.append(("IFLA_MASTER", master))
    info: list[tuple[str, Any]] = [("IFLA_INFO_KIND", kind)]
    inner = list((data or {}).items())
    if peer is not None:
        far = {
            "attrs": _link_attributes(peer["name"], peer.get("netns"), mtu_bytes, peer.get("mac")),
            "index": peer.get("index", 0),
        }
        inner.append((peer_attribute, far))
    if inner:
        info.append(("IFLA_INFO_DATA", {"attrs": inner}))
    attributes.append(("IFLA_LINKINFO", {"attrs": info}))
    message["attrs"] = attributes
    return _encode(message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, f"create {kind} {name}", kind)


def _link_attributes(
    name: str, netns: int | None, mtu_bytes: int | None, mac: str | None
) -> list[tuple[str, Any]]:
    attributes: list[tuple[str, Any]] = [("IFLA_IFNAME", name)]
    if mtu_bytes is not None:
        attributes.append(("IFLA_MTU", mtu_bytes))
    if netns is not None:
        attributes.append(("IFLA_NET_NS_FD", netns))
    if mac is not None:
        attributes.append(("IFLA_ADDRESS", mac))
    return attributes


@_remembered
def set_link(
    index: int,
    *,
    up: bool = True,
    mtu_bytes: int | None = None,
    mac: str | None = None,
    master: int | None = None,
    hairpin: bool | None = None,
    alias: str | None = None,
) -> Message:
    """Return a request that changes an interface.

    `master`: index of the bridge whose port it becomes. `hairpin`: a bridge port may send a frame out where it arrived
    (VEPA).
    """
    message = ifinfmsg()
    message["index"] = index
    if up:
        message["flags"] = message["change"] = IFF_UP
    attributes: list[tuple[str, Any]] = []
    if mtu_bytes is not None:
        attributes.append(("IFLA_MTU", mtu_bytes))
    if mac is not None:
        attributes.append(("IFLA_ADDRESS", mac))
    if master is not None:
        attributes.append(("IFLA_MASTER", master))
    if alias is not None:
        attributes.append(("IFLA_IFALIAS", alias))
    if hairpin is not None:
        port = {"attrs": [("IFLA_BRPORT_MODE", int(hairpin))]}
        attributes.append(
            ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", port)]})
        )
    message["attrs"] = attributes
    return _encode(message, RTM_NEWLINK, 0, f"change interface {index}")


def shut_link(index: int) -> Message:
    """Return a request that takes an interface down.

    The peer of a veth loses its carrier. The kernel removes the routes over the interface (`static_routes` saves
    them).
    """
    message = ifinfmsg()
    message["index"], message["change"] = index, IFF_UP
    return _encode(message, RTM_NEWLINK, 0, f"take interface {index} down")


def not_promiscuous(index: int) -> Message:
    """Return a request that ends an interface's promiscuous mode that a program has set (its flag)."""
    message = ifinfmsg()
    message["index"], message["change"] = index, IFF_PROMISC
    return _encode(message, RTM_NEWLINK, 0, f"end the promiscuous mode of interface {index}")


def set_master(index: int, master: int) -> Message:
    """Return a request that makes an interface a port of a bridge."""
    message = ifinfmsg()
    message["index"] = index
    message["attrs"] = [("IFLA_MASTER", master)]
    return _encode(message, RTM_NEWLINK, 0, f"make interface {index} a port of {master}")


def move_link(index: int, netns: int, new_index: int = 0, name: str | None = None) -> Message:
    """Return a request that moves an interface into the namespace `netns` (a file descriptor), where it is down.

    It keeps its index if that is free; `new_index` requests another (since Linux 5.13; older kernels ignore it).
    `name`: its new name there.
    """
    message = ifinfmsg()
    message["index"] = index
    message["attrs"] = [("IFLA_NET_NS_FD", netns)]
    if name is not None:
        message["attrs"].append(("IFLA_IFNAME", name))
    if new_index:
        message["attrs"].append(("IFLA_NEW_IFINDEX", new_index))
    return _encode(message, RTM_NEWLINK, 0, f"move interface {index}")


def delete_link(index: int) -> Message:
    """Return a request that deletes an interface."""
    message = ifinfmsg()
    message["index"] = index
    return _encode(message, RTM_DELLINK, 0, f"delete interface {index}")


@_remembered
def new_address(index: int, address: IPv4Interface | IPv6Interface) -> Message:
    """Return a request that adds an address without duplicate address detection, which would take 1 to 2 s."""
    message = ifaddrmsg()
    message["family"] = socket.AF_INET if address.version == 4 else socket.AF_INET6
    message["prefixlen"] = address.network.prefixlen
    message["index"] = index
    message["attrs"] = [("IFA_LOCAL", str(address.ip)), ("IFA_ADDRESS", str(address.ip))]
    if address.version == 6:
        message["attrs"].append(("IFA_FLAGS", 0x02))  # IFA_F_NODAD
    return _encode(message, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, f"add address {address}")


@_remembered
def new_neighbour(index: int, address: str, mac: str) -> Message:
    """Return a request that adds or replaces a permanent neighbour entry.

    All namespaces share one table of 1,024 learned neighbours (gc_thresh3), which four topologies of 128 pairs fill.
    Permanent entries do not count.
    """
    message = ndmsg()
    message["family"] = socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6
    message["ifindex"], message["state"] = index, NUD_PERMANENT
    message["attrs"] = [("NDA_DST", address), ("NDA_LLADDR", mac)]
    return _encode(message, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, f"add neighbour {address}")


def new_route(
    to: str,
    hops: Sequence[tuple[int, str | None]],
    *,
    metric: int | None = None,
    mss_bytes: int | None = None,
    family: int = 4,
) -> Message:
    """Return a request that adds a route to a prefix, or to `default` of this family.

    `hops` are (interface index, gateway or None); several hops have equal cost (ECMP). The kernel uses the route with
    the smallest `metric`. `mss_bytes`: the TCP segment size that is announced on it.
    """
    message = rtmsg()
    if to != "default":
        network = ip_network(to)
        family, message["dst_len"] = network.version, network.prefixlen
        message["attrs"] = [("RTA_DST", str(network.network_address))]
    message["family"] = socket.AF_INET if family == 4 else socket.AF_INET6
    behind = any(gateway for _, gateway in hops)
    message["table"], message["proto"], message["type"] = RT_TABLE_MAIN, RTPROT_STATIC, RTN_UNICAST
    message["scope"] = RT_SCOPE_UNIVERSE if behind or family == 6 else RT_SCOPE_LINK
    if metric is not None:
        message["attrs"].append(("RTA_PRIORITY", metric))
    if mss_bytes is not None:
        message["attrs"].append(("RTA_METRICS", {"attrs": [("RTAX_ADVMSS", mss_bytes)]}))
    nexthops = [(index, [("RTA_GATEWAY", gateway)] if gateway else []) for index, gateway in hops]
    if len(nexthops) == 1:
        [(index, gateway)] = nexthops
        message["attrs"] += [*gateway, ("RTA_OIF", index)]
    else:
        # struct rtnexthop counts a hop's weight from 0
        several = [{"oif": index, "hops": 0, "flags": 0, "attrs": gateway} for index, gateway in nexthops]
        message["attrs"].append(("RTA_MULTIPATH", several))
    by = ", ".join(gateway or f"interface {index}" for index, gateway in hops)
    return _encode(message, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, f"add route to {to} via {by}")


def new_remote(index: int, remote: str) -> Message:
    """Return a request that adds a default remote to a VXLAN interface (head-end replication).

    It is a forwarding database entry of the all-zeros MAC address (drivers/net/vxlan).
    """
    message = ndmsg()
    message["family"], message["ifindex"] = socket.AF_BRIDGE, index
    message["state"], message["flags"] = NUD_NOARP | NUD_PERMANENT, NTF_SELF
    message["attrs"] = [("NDA_LLADDR", NO_MAC), ("NDA_DST", remote)]
    return _encode(message, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_APPEND, f"add remote {remote}")


def new_qdisc(index: int, kind: str, options: dict[str, Any] | None = None) -> Message:
    """Return a request that adds a root queueing discipline."""
    message = tcmsg()
    message["family"], message["index"], message["handle"], message["parent"] = 0, index, 0x10000, 0xFFFFFFFF
    message["attrs"] = [("TCA_KIND", kind)]
    if options:
        message["attrs"].append(("TCA_OPTIONS", {"attrs": list(options.items())}))
    return _encode(message, RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, f"add qdisc {kind}")


def new_ingress(index: int, kind: str) -> Message:
    """Return a request that adds `ingress` or `clsact`, which hold filters for arriving traffic.

    Their parent is TC_H_INGRESS (linux/pkt_sched.h).
    """
    message = tcmsg()
    message["family"], message["index"], message["handle"], message["parent"] = (
        0,
        index,
        0xFFFF0000,
        0xFFFFFFF1,
    )
    message["attrs"] = [("TCA_KIND", kind)]
    return _encode(message, RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, f"add qdisc {kind}")


def new_bpf_filter(index: int, name: str, program: int) -> Message:
    """Return a request that runs a BPF program (its file descriptor) on what arrives at an interface with `clsact`.

    The program's result decides (direct action). linux/pkt_cls.h, linux/pkt_sched.h (TC_H_MIN_INGRESS).
    """
    message = tcmsg()
    message["family"], message["index"], message["handle"], message["parent"] = 0, index, 0, 0xFFFFFFF2
    message["info"] = 1 << 16 | socket.htons(3)  # preference 1, ETH_P_ALL
    options = [
        ("TCA_BPF_FD", program),
        ("TCA_BPF_NAME", name),
        ("TCA_BPF_FLAGS", 1),
    ]  # TCA_BPF_FLAG_ACT_DIRECT
    message["attrs"] = [("TCA_KIND", "bpf"), ("TCA_OPTIONS", {"attrs": options})]
    return _encode(message, RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, f"add filter bpf {name}")


def define_kind(kind: str, attributes: Sequence[tuple[str, str]]) -> None:
    """Teach pyroute2 the attributes (IFLA_INFO_DATA) of a link kind: names and types, numbered from 0 as in the
    kernel's header. The type of a peer is `info_peer`."""
    own = {"nla_map": tuple(attributes), "info_peer": staticmethod(lambda *_, **__: ifinfveth)}
    ifinfmsg.ifinfo.data_map[kind] = type(kind, (nla,), own)
