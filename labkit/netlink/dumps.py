"""What the kernel tells of a namespace: its links, addresses and routes, decoded by pyroute2."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.netlink.messages import IFF_UP, NLM_F_REQUEST, Message
from labkit.netlink.rtnl import ifaddrmsg, ifinfmsg, nsidmsg, rtmsg, tcmsg
from labkit.netlink.sockets import Netlink

# linux/rtnetlink.h, linux/netlink.h, linux/if_arp.h
RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE, RTM_GETQDISC, RTM_GETNSID = 18, 22, 26, 38, 90
NLM_F_DUMP = 0x300
RTEXT_FILTER_SKIP_STATS = 8
RT_TABLE_MAIN, RTM_F_CLONED = 254, 0x200
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
class Route:
    """A route of the main table: `to` a prefix or `default`, `via` a gateway, `source` the preferred address."""

    to: str
    via: str | None
    index: int | None
    source: str | None


def links(kernel: Netlink) -> list[Link]:
    """Every interface of the socket's namespace."""
    message = ifinfmsg()
    message["attrs"] = [("IFLA_EXT_MASK", RTEXT_FILTER_SKIP_STATS)]
    return [_link(one) for one in _dump(kernel, message, RTM_GETLINK, "list interfaces")]


def addresses(kernel: Netlink) -> list[tuple[int, str]]:
    """Every address of the socket's namespace, with its prefix length, after the index of its interface."""
    found = _dump(kernel, ifaddrmsg(), RTM_GETADDR, "list addresses")
    return [(one["index"], f"{_own_address(one)}/{one['prefixlen']}") for one in found]


def routes(kernel: Netlink) -> list[Route]:
    """Every route of the main table of the socket's namespace, IPv4 and IPv6."""
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        message = rtmsg()
        message["family"] = family
        found += [
            _route(one)
            for one in _dump(kernel, message, RTM_GETROUTE, "list routes")
            if one.get_attr("RTA_TABLE", one["table"]) == RT_TABLE_MAIN and not one["flags"] & RTM_F_CLONED
        ]
    return found


def qdiscs(kernel: Netlink) -> list[tuple[int, str, dict[str, int]]]:
    """Every queueing discipline of the socket's namespace that counts: the index of its interface, its kind and handle,
    and packets, bytes, drops, overlimits, qlen, backlog (struct tc_stats)."""
    found = []
    for one in _dump(kernel, tcmsg(), RTM_GETQDISC, "list queueing disciplines"):
        if (stats := one.get_attr("TCA_STATS")) is not None:
            name = f"{one.get_attr('TCA_KIND')} {one['handle'] >> 16:x}:"
            numbers = ("packets", "bytes", "drop", "overlimits", "qlen", "backlog")
            found.append((one["index"], name, {number: int(stats[number]) for number in numbers}))
    return found


def id_of(kernel: Netlink, netns: int) -> int | None:
    """The number by which the socket's namespace knows the namespace `netns` (a file descriptor); None: by none."""
    message = nsidmsg()
    message["attrs"] = [("NETNSA_FD", netns)]
    [answer] = kernel.ask(_request(message, RTM_GETNSID, 0, "tell a namespace's number"))
    found = int(_decoded(nsidmsg, answer).get_attr("NETNSA_NSID"))
    return (
        None if found >= 1 << 31 else found
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
    return Route(
        to=to or "default",
        via=message.get_attr("RTA_GATEWAY"),
        index=message.get_attr("RTA_OIF"),
        source=message.get_attr("RTA_PREFSRC"),
    )
