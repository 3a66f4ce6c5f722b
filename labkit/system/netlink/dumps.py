"""What the kernel tells of a namespace: its links, addresses and routes, decoded by pyroute2."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.system.netlink.messages import (
    IFF_UP,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_REPLACE,
    NLM_F_REQUEST,
    NO_MAC,
    NTF_SELF,
    RT_TABLE_MAIN,
    RTM_NEWROUTE,
    Message,
)
from labkit.system.netlink.rtnl import ifaddrmsg, ifinfmsg, ndmsg, nsidmsg, rtmsg, tcmsg
from labkit.system.netlink.sockets import Netlink

# linux/rtnetlink.h, linux/netlink.h, linux/if_arp.h
RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE, RTM_GETNEIGH, RTM_GETQDISC, RTM_GETNSID = 18, 22, 26, 30, 38, 90
NLM_F_DUMP = 0x300
RTEXT_FILTER_SKIP_STATS = 8
RTM_F_CLONED = 0x200
RTPROT_KERNEL, RTNH_F_DEAD, RTNH_F_LINKDOWN, RTNH_F_ONLINK = 2, 1, 16, 4
RTA_MULTIPATH = 9
ARPHRD_ETHER = 1


@dataclass(frozen=True)
class Link:
    """An interface. `master`, `link` are indexes; `link` (the far end of a veth, the lower device of others) is one in
    the namespace `link_netnsid`, or in the same where that is None. `data`: IFLA_INFO_DATA by the kernel's names."""

    index: int
    name: str
    kind: str | None  # None: loopback, or a NIC
    up: bool
    carrier: bool  # operstate says the same, but up to a second later (net/core/link_watch.c)
    mtu_bytes: int
    mac: str | None
    master: int | None
    link: int | None
    link_netnsid: int | None
    data: dict[str, Any]


@dataclass(frozen=True)
class DumpedNextHop:
    """Where a route leads: a gateway, or None, by an interface. `state`: `dead` where it is not taken, `linkdown`
    where its interface has no carrier."""

    via: str | None
    index: int | None
    state: str | None


@dataclass(frozen=True)
class Route:
    """A route of the main table: `to` a prefix or `default`, `source` the preferred address; several `hops` are of
    equal cost. `connected`: the kernel made it, of an address."""

    to: str
    hops: tuple[DumpedNextHop, ...]
    source: str | None
    metric: int | None
    connected: bool


def links(kernel: Netlink) -> list[Link]:
    """Every interface of the socket's namespace."""
    message = ifinfmsg()
    message["attrs"] = [("IFLA_EXT_MASK", RTEXT_FILTER_SKIP_STATS)]
    return [_link(one) for one in _dump(kernel, message, RTM_GETLINK, "list interfaces")]


def addresses(kernel: Netlink) -> list[tuple[int, str]]:
    """Every address of the socket's namespace, with its prefix length, after the index of its interface."""
    result = _dump(kernel, ifaddrmsg(), RTM_GETADDR, "list addresses")
    return [(one["index"], f"{_own_address(one)}/{one['prefixlen']}") for one in result]


def routes(kernel: Netlink) -> list[Route]:
    """Every route of the main table of the socket's namespace, IPv4 and IPv6."""
    result = []
    for family in (socket.AF_INET, socket.AF_INET6):
        message = rtmsg()
        message["family"] = family
        result += [
            _route(one)
            for one in _dump(kernel, message, RTM_GETROUTE, "list routes")
            if one.get_attr("RTA_TABLE", one["table"]) == RT_TABLE_MAIN and not one["flags"] & RTM_F_CLONED
        ]
    return result


def static_routes(kernel: Netlink) -> list[Message]:
    """Requests that make the IPv4 routes anew that somebody has given to the main table of the socket's namespace, with
    gateways and metrics as they were: what `ip route save` keeps. The kernel makes its own when an interface comes
    up."""
    message = rtmsg()
    message["family"] = socket.AF_INET
    result = []
    for body in kernel.ask(_request(message, RTM_GETROUTE, NLM_F_DUMP, "list routes")):
        report = _decoded(rtmsg, body)
        if (
            report.get_attr("RTA_TABLE", report["table"]) == RT_TABLE_MAIN
            and report["proto"] != RTPROT_KERNEL
        ):
            result.append(Message(f"add route to {_route(report).to} again", _as_request(body)))
    return result


def _as_request(body: bytes) -> bytes:
    """What the kernel told of a route, as a request. Flags of the route and of each of several hops (RTNH_F_DEAD,
    RTNH_F_LINKDOWN …) tell how it stands, and the kernel takes none that has them (fib_get_nhs)."""
    flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
    # struct nlmsghdr; struct rtmsg, at its end the flags; struct rtattr
    made = bytearray(
        struct.pack("=IHHII", len(body), RTM_NEWROUTE, flags, 0, 0) + body[16:24] + bytes(4) + body[28:]
    )
    for start, end, kind in _chunks(made, 28, len(made)):
        for hop, _, _ in _chunks(made, start + 4, end) if kind == RTA_MULTIPATH else ():
            made[hop + 2] &= RTNH_F_ONLINK  # struct rtnexthop: length, flags
    return bytes(made)


def _chunks(body: bytearray, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Where attributes (struct rtattr) or hops (struct rtnexthop) begin and end, and their type; aligned to 4 bytes."""
    while at + 4 <= end:
        length, kind = struct.unpack_from("=HH", body, at)
        yield at, at + length, kind
        at += max(length + 3 & ~3, 4)


def remotes(kernel: Netlink) -> list[tuple[int, str]]:
    """The remotes of every VXLAN interface to which goes what has no other (the entries of its forwarding database for
    the MAC address of zeros), after the index of the interface."""
    message = ndmsg()
    message["family"] = socket.AF_BRIDGE
    result = _dump(kernel, message, RTM_GETNEIGH, "list forwarding databases")
    return [
        (one["ifindex"], str(one.get_attr("NDA_DST")))
        for one in result
        if one["flags"] & NTF_SELF and one.get_attr("NDA_LLADDR") == NO_MAC and one.get_attr("NDA_DST")
    ]


def qdisc(kernel: Netlink, index: int) -> str:
    """The root queueing discipline of one interface, as ip(8) prints it: "noqueue", "fq_codel", "mq" …, "noop" while it
    is down. Raises LinkError when there is no such interface."""
    message = ifinfmsg()
    message["index"] = index
    message["attrs"] = [("IFLA_EXT_MASK", RTEXT_FILTER_SKIP_STATS)]
    [answer] = kernel.ask(_request(message, RTM_GETLINK, 0, f"read the qdisc of interface {index}"))
    return str(_decoded(ifinfmsg, answer).get_attr("IFLA_QDISC") or "unknown")


def qdiscs(kernel: Netlink) -> list[tuple[int, str, dict[str, int]]]:
    """Every queueing discipline of the socket's namespace that counts: the index of its interface, its kind and handle,
    and packets, bytes, drops, overlimits, qlen, backlog (struct tc_stats)."""
    result = []
    for one in _dump(kernel, tcmsg(), RTM_GETQDISC, "list queueing disciplines"):
        if (stats := one.get_attr("TCA_STATS")) is not None:
            name = f"{one.get_attr('TCA_KIND')} {one['handle'] >> 16:x}:"
            numbers = ("packets", "bytes", "drop", "overlimits", "qlen", "backlog")
            result.append((one["index"], name, {number: int(stats[number]) for number in numbers}))
    return result


def id_of(kernel: Netlink, netns: int) -> int | None:
    """The number by which the socket's namespace knows the namespace `netns` (a file descriptor); None: by none."""
    message = nsidmsg()
    message["attrs"] = [("NETNSA_FD", netns)]
    [answer] = kernel.ask(_request(message, RTM_GETNSID, 0, "tell a namespace's number"))
    result = int(_decoded(nsidmsg, answer).get_attr("NETNSA_NSID"))
    return (
        None if result >= 1 << 31 else result
    )  # -1 (NETNSA_NSID_NOT_ASSIGNED), of which pyroute2 makes a positive one


def _dump(kernel: Netlink, message: Any, kind: int, what: str) -> Iterator[Any]:
    for body in kernel.ask(_request(message, kind, NLM_F_DUMP, what)):
        yield _decoded(type(message), body)


def _request(message: Any, kind: int, flags: int, what: str) -> Message:
    message["header"]["type"], message["header"]["flags"] = kind, NLM_F_REQUEST | flags
    message.encode()
    return Message(what, bytes(message.data))


def _decoded(form: Any, body: bytes) -> Any:
    message = form(body)
    message.decode()
    return message


def _link(message: Any) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    data = info.get_attr("IFLA_INFO_DATA") if info is not None else None
    return Link(
        index=message["index"],
        name=message.get_attr("IFLA_IFNAME"),
        kind=info.get_attr("IFLA_INFO_KIND") if info is not None else None,
        up=bool(message["flags"] & IFF_UP),
        carrier=bool(message.get_attr("IFLA_CARRIER")),
        mtu_bytes=message.get_attr("IFLA_MTU"),
        mac=message.get_attr("IFLA_ADDRESS") if message["ifi_type"] == ARPHRD_ETHER else None,
        master=message.get_attr("IFLA_MASTER"),
        link=message.get_attr("IFLA_LINK"),
        link_netnsid=message.get_attr("IFLA_LINK_NETNSID"),
        data=dict(data["attrs"]) if data is not None and hasattr(data, "get_attr") else {},
    )


def _own_address(message: Any) -> str:
    """IFA_ADDRESS is the far end's on a point-to-point interface; IPv6 has IFA_LOCAL there alone (rtnetlink(7))."""
    return str(message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS"))


def _route(message: Any) -> Route:
    to, length = message.get_attr("RTA_DST"), message["dst_len"]
    whole = 32 if message["family"] == socket.AF_INET else 128
    if to is not None:
        to = to if length == whole else str(ipaddress.ip_network(f"{to}/{length}", strict=False))
    several = message.get_attr("RTA_MULTIPATH") or ()
    hops = [
        DumpedNextHop(one.get_attr("RTA_GATEWAY"), one["oif"], _hop_state(one["flags"])) for one in several
    ]
    alone = DumpedNextHop(
        message.get_attr("RTA_GATEWAY"), message.get_attr("RTA_OIF"), _hop_state(message["flags"])
    )
    return Route(
        to=to or "default",
        hops=tuple(hops) or (alone,),
        source=message.get_attr("RTA_PREFSRC"),
        metric=message.get_attr("RTA_PRIORITY"),
        connected=message["proto"] == RTPROT_KERNEL,
    )


def _hop_state(flags: int) -> str | None:
    names = {RTNH_F_DEAD: "dead", RTNH_F_LINKDOWN: "linkdown"}
    return " ".join(name for flag, name in names.items() if flags & flag) or None
