"""Encode requests to the kernel (route netlink) with pyroute2."""

import functools
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_network
from types import MappingProxyType
from typing import Any

from labkit.system.netlink.rtnl import ifaddrmsg, ifinfmsg, ifinfveth, ndmsg, nla, rtmsg, tcmsg

# linux/rtnetlink.h, linux/netlink.h, linux/if.h
RTM_NEWLINK, RTM_DELLINK, RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWNEIGH, RTM_NEWQDISC = 16, 17, 20, 24, 28, 36
RTM_NEWTFILTER = 44
NLM_F_REQUEST, NLM_F_ACK, NLM_F_REPLACE, NLM_F_EXCL = 1, 4, 0x100, 0x200
NLM_F_CREATE, NLM_F_APPEND = 0x400, 0x800
CHANGE, CREATE = NLM_F_ACK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
Values = Mapping[str, Any] | None  # by the names of fields or attributes
IFF_UP, IFF_PROMISC = 1, 0x100
NUD_NOARP, NUD_PERMANENT, NTF_SELF = 0x40, 0x80, 2  # linux/neighbour.h
NO_MAC = "00:00:00:00:00:00"
RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RT_SCOPE_LINK, RTN_UNICAST = 254, 4, 0, 253, 1
RTNH_F_ONLINK, IP6_RT_PRIO_ADDRCONF = 4, 256

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


def encoded(
    form: Any,
    type_: int,
    flags: int,
    what: str,
    fields: Values = None,
    attributes: Values = None,
    kind: str | None = None,
) -> Message:
    """Return a request: a message of one of pyroute2's forms with these fields, and the attributes that are not
    None."""
    message = form()
    message["header"]["type"], message["header"]["flags"] = type_, NLM_F_REQUEST | flags
    for name, value in (fields or {}).items():
        message[name] = value
    message["attrs"] = nested(attributes or {})["attrs"]
    message.encode()
    return Message(what, bytes(message.data), kind)


def nested(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an attribute that consists of these attributes, without those that are None."""
    return {"attrs": [(name, value) for name, value in attributes.items() if value is not None]}


def _interface(index: int, up: bool) -> dict[str, int]:
    """Return the fields of a request about an interface. up: whether the request also takes it up."""
    return {"index": index, "flags": IFF_UP, "change": IFF_UP} if up else {"index": index}


def _family(version: int) -> int:
    return socket.AF_INET if version == 4 else socket.AF_INET6


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
    attributes = _link_attributes(name, mtu_bytes, netns, mac)
    inner = dict(data or {})
    if peer is not None:
        own = _link_attributes(peer["name"], mtu_bytes, peer.get("netns"), peer.get("mac"))
        inner[peer_attribute] = nested(own) | {"index": peer.get("index", 0)}
    info = {"IFLA_INFO_KIND": kind, "IFLA_INFO_DATA": nested(inner) if inner else None}
    attributes |= {"IFLA_LINK": link, "IFLA_MASTER": master, "IFLA_LINKINFO": nested(info)}
    return encoded(
        ifinfmsg, RTM_NEWLINK, CREATE, f"create {kind} {name}", _interface(index, up), attributes, kind
    )


def _link_attributes(name: str, mtu_bytes: int | None, netns: int | None, mac: str | None) -> dict[str, Any]:
    return {"IFLA_IFNAME": name, "IFLA_MTU": mtu_bytes, "IFLA_NET_NS_FD": netns, "IFLA_ADDRESS": mac}


@_remembered
def set_link(
    index: int,
    *,
    mtu_bytes: int | None = None,
    mac: str | None = None,
    hairpin: bool = False,
    alias: str | None = None,
) -> Message:
    """Return a request that sets an interface up and changes it.

    `hairpin`: a bridge port may send a frame out where it arrived (VEPA).
    """
    attributes: dict[str, Any] = {"IFLA_MTU": mtu_bytes, "IFLA_ADDRESS": mac, "IFLA_IFALIAS": alias}
    if hairpin:
        port = nested({"IFLA_BRPORT_MODE": 1})
        attributes["IFLA_LINKINFO"] = nested({"IFLA_INFO_SLAVE_KIND": "bridge", "IFLA_INFO_SLAVE_DATA": port})
    fields = _interface(index, up=True)
    return encoded(ifinfmsg, RTM_NEWLINK, CHANGE, f"change interface {index}", fields, attributes)


def shut_link(index: int) -> Message:
    """Return a request that takes an interface down.

    The peer of a veth loses its carrier. The kernel removes the routes over the interface (`static_routes` saves
    them).
    """
    fields = {"index": index, "change": IFF_UP}
    return encoded(ifinfmsg, RTM_NEWLINK, CHANGE, f"take interface {index} down", fields)


def not_promiscuous(index: int) -> Message:
    """Return a request that ends an interface's promiscuous mode that a program has set (its flag)."""
    what = f"end the promiscuous mode of interface {index}"
    fields = {"index": index, "change": IFF_PROMISC}
    return encoded(ifinfmsg, RTM_NEWLINK, CHANGE, what, fields)


def set_master(index: int, master: int) -> Message:
    """Return a request that makes an interface a port of a bridge."""
    what = f"make interface {index} a port of {master}"
    return encoded(ifinfmsg, RTM_NEWLINK, CHANGE, what, {"index": index}, {"IFLA_MASTER": master})


def move_link(index: int, netns: int, new_index: int = 0, name: str | None = None) -> Message:
    """Return a request that moves an interface into the namespace `netns` (a file descriptor), where it is down.

    It keeps its index if that is free; `new_index` requests another (since Linux 5.13; older kernels ignore it).
    `name`: its new name there.
    """
    attributes = {"IFLA_NET_NS_FD": netns, "IFLA_IFNAME": name, "IFLA_NEW_IFINDEX": new_index or None}
    return encoded(ifinfmsg, RTM_NEWLINK, CHANGE, f"move interface {index}", {"index": index}, attributes)


def delete_link(index: int) -> Message:
    return encoded(ifinfmsg, RTM_DELLINK, CHANGE, f"delete interface {index}", {"index": index})


@_remembered
def new_address(index: int, address: IPv4Interface | IPv6Interface) -> Message:
    """Return a request that adds an address without duplicate address detection, which would take 1 to 2 s."""
    fields = {"family": _family(address.version), "prefixlen": address.network.prefixlen, "index": index}
    own = str(address.ip)
    flags = 0x02 if address.version == 6 else None  # IFA_F_NODAD
    attributes = {"IFA_LOCAL": own, "IFA_ADDRESS": own, "IFA_FLAGS": flags}
    return encoded(ifaddrmsg, RTM_NEWADDR, CREATE, f"add address {address}", fields, attributes)


@_remembered
def new_neighbour(index: int, address: str, mac: str) -> Message:
    """Return a request that adds or replaces a permanent neighbour entry.

    All namespaces share one table of 1,024 learned neighbours (gc_thresh3), which four topologies of 128 pairs fill.
    Permanent entries do not count.
    """
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
    fields = {"family": _family(ip_address(address).version), "ifindex": index, "state": NUD_PERMANENT}
    attributes = {"NDA_DST": address, "NDA_LLADDR": mac}
    return encoded(ndmsg, RTM_NEWNEIGH, flags, f"add neighbour {address}", fields, attributes)


def new_route(
    to: str,
    hops: Sequence[tuple[int, str | None]],
    *,
    metric: int | None = None,
    limits: Mapping[str, int] = MappingProxyType({}),
    onlink: bool = False,
    family: int = 4,
    source: str | None = None,
    before_others: bool = False,
    replaces: bool = False,
) -> Message:
    """Return a request that adds a route to a prefix, or to `default` of this family.

    `hops` are (interface index, gateway or None); several hops have equal cost (ECMP). The kernel uses the route with
    the smallest `metric`. `limits`: by ip-route(8)'s names (mtu, advmss, window). `onlink`: the
    gateways are there, whatever the addresses say. `source`: the preferred address of packets. `before_others`: the
    kernel uses it before IPv4 routes of the same metric, which stay; `replaces`: in the place of one; else there may be
    none.
    """
    flags = RTNH_F_ONLINK if onlink else 0
    fields: dict[str, Any] = {
        "table": RT_TABLE_MAIN,
        "proto": RTPROT_STATIC,
        "type": RTN_UNICAST,
        "flags": flags,
    }
    attributes: dict[str, Any] = {}
    if to != "default":
        network = ip_network(to)
        family, fields["dst_len"] = network.version, network.prefixlen
        attributes["RTA_DST"] = str(network.network_address)
    behind = any(gateway for _, gateway in hops)
    fields["family"] = _family(family)
    fields["scope"] = RT_SCOPE_UNIVERSE if behind or family == 6 else RT_SCOPE_LINK
    metric = IP6_RT_PRIO_ADDRCONF if metric is None and replaces and family == 6 else metric
    attributes |= {"RTA_PRIORITY": metric, "RTA_PREFSRC": source}
    attributes["RTA_METRICS"] = (
        nested({f"RTAX_{name.upper()}": value for name, value in limits.items()}) if limits else None
    )
    if len(hops) == 1:
        [(index, gateway)] = hops
        attributes |= {"RTA_GATEWAY": gateway or None, "RTA_OIF": index}
    else:
        # struct rtnexthop counts a hop's weight from 0
        attributes["RTA_MULTIPATH"] = [
            {"oif": index, "hops": 0, "flags": flags} | nested({"RTA_GATEWAY": gateway or None})
            for index, gateway in hops
        ]
    by = ", ".join(gateway or f"interface {index}" for index, gateway in hops)
    how = NLM_F_ACK | NLM_F_CREATE if before_others or replaces else CREATE
    how |= NLM_F_REPLACE if replaces else 0
    return encoded(rtmsg, RTM_NEWROUTE, how, f"add route to {to} via {by}", fields, attributes)


def new_remote(index: int, remote: str) -> Message:
    """Return a request that adds a default remote to a VXLAN interface (head-end replication).

    It is a forwarding database entry of the all-zeros MAC address (drivers/net/vxlan).
    """
    fields = {
        "family": socket.AF_BRIDGE, "ifindex": index, "state": NUD_NOARP | NUD_PERMANENT, "flags": NTF_SELF,
    }  # fmt: skip
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_APPEND
    attributes = {"NDA_LLADDR": NO_MAC, "NDA_DST": remote}
    return encoded(ndmsg, RTM_NEWNEIGH, flags, f"add remote {remote}", fields, attributes)


def new_qdisc(index: int, kind: str, options: dict[str, Any] | None = None) -> Message:
    """Return a request that adds a root queueing discipline."""
    fields = {"index": index, "handle": 0x10000, "parent": 0xFFFFFFFF}
    attributes = {"TCA_KIND": kind, "TCA_OPTIONS": nested(options) if options else None}
    return encoded(tcmsg, RTM_NEWQDISC, CREATE, f"add qdisc {kind}", fields, attributes)


def new_ingress(index: int, kind: str) -> Message:
    """Return a request that adds `ingress` or `clsact`, which hold filters for arriving traffic.

    Their parent is TC_H_INGRESS (linux/pkt_sched.h).
    """
    fields = {"index": index, "handle": 0xFFFF0000, "parent": 0xFFFFFFF1}
    return encoded(tcmsg, RTM_NEWQDISC, CREATE, f"add qdisc {kind}", fields, {"TCA_KIND": kind})


def new_bpf_filter(index: int, name: str, program: int) -> Message:
    """Return a request that runs a BPF program (its file descriptor) on what arrives at an interface with `clsact`.

    The program's result decides (direct action). linux/pkt_cls.h, linux/pkt_sched.h (TC_H_MIN_INGRESS).
    """
    # info: preference 1, and ETH_P_ALL
    fields = {"index": index, "handle": 0, "parent": 0xFFFFFFF2, "info": 1 << 16 | socket.htons(3)}
    options = {"TCA_BPF_FD": program, "TCA_BPF_NAME": name, "TCA_BPF_FLAGS": 1}  # TCA_BPF_FLAG_ACT_DIRECT
    attributes = {"TCA_KIND": "bpf", "TCA_OPTIONS": nested(options)}
    return encoded(tcmsg, RTM_NEWTFILTER, CREATE, f"add filter bpf {name}", fields, attributes)


def define_kind(kind: str, attributes: Sequence[tuple[str, str]]) -> None:
    """Teach pyroute2 the attributes (IFLA_INFO_DATA) of a link kind: names and types, numbered from 0 as in the
    kernel's header. The type of a peer is `info_peer`."""
    own = {"nla_map": tuple(attributes), "info_peer": staticmethod(lambda *_, **__: ifinfveth)}
    ifinfmsg.ifinfo.data_map[kind] = type(kind, (nla,), own)
