"""List links, addresses, routes and queueing disciplines of a network namespace, decoded by pyroute2."""

import errno
import ipaddress
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.system.netlink.messages import (
    IFF_PROMISC,
    IFF_UP,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_REPLACE,
    NLM_F_REQUEST,
    NO_MAC,
    NTF_SELF,
    RT_TABLE_MAIN,
    RTM_NEWROUTE,
    RTNH_F_ONLINK,
    Message,
    Values,
    encoded,
)
from labkit.system.netlink.rtnl import ifaddrmsg, ifinfmsg, ndmsg, nsidmsg, rtmsg, tcmsg
from labkit.system.netlink.sockets import LinkError, Netlink

# linux/rtnetlink.h, linux/netlink.h, linux/if_arp.h
RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE, RTM_GETNEIGH, RTM_GETQDISC, RTM_GETNSID = 18, 22, 26, 30, 38, 90
NLM_F_DUMP = 0x300
WITHOUT_STATS = {"IFLA_EXT_MASK": 8}  # RTEXT_FILTER_SKIP_STATS
RTM_F_CLONED, RTM_F_FIB_MATCH = 0x200, 0x2000
RTPROT_KERNEL, RTNH_F_DEAD, RTNH_F_LINKDOWN = 2, 1, 16
RTA_MULTIPATH = 9
# RTN_BLACKHOLE, RTN_UNREACHABLE, RTN_PROHIBIT
REFUSING = {6: errno.EINVAL, 7: errno.EHOSTUNREACH, 8: errno.EACCES}
ARPHRD_ETHER = 1
RTN_LOCAL = 2


@dataclass(frozen=True)
class Link:
    """An interface of a network namespace.

    `master` and `link` are interface indexes. `link` is the peer of a cable, or the lower device of other kinds; it is
    in the namespace `link_netnsid`, or in the same namespace if that is None. `data` is IFLA_INFO_DATA with the
    kernel's names.
    """

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
    promiscuous: bool = False  # set by a program, which a bridge's port is not
    alias: str | None = None


@dataclass(frozen=True)
class DumpedNextHop:
    """A next hop of a route: a gateway (None if directly connected) and the index of an interface.

    `state` is `dead` if the kernel does not use the hop, `linkdown` if its interface has no carrier, else None.
    """

    via: str | None
    index: int | None
    state: str | None


@dataclass(frozen=True)
class Route:
    """A route of the main table.

    `to` is a prefix or `default`, `source` the preferred source address. Several `hops` have equal cost. `connected`:
    the kernel added the route for an address. `metrics`: what it limits, by ip-route(8)'s names (mtu, advmss, window),
    without an MTU that an ICMP error told.
    """

    to: str
    hops: tuple[DumpedNextHop, ...]
    source: str | None
    metric: int | None
    connected: bool
    metrics: dict[str, int]


def links(kernel: Netlink) -> list[Link]:
    """Return every interface of the socket's namespace."""
    result = _dump(kernel, ifinfmsg, RTM_GETLINK, "list interfaces", attributes=WITHOUT_STATS)
    return [_link(one) for one in result]


def addresses(kernel: Netlink) -> list[tuple[int, str]]:
    """Return (interface index, address with prefix length) for every address of the socket's namespace."""
    # On a point-to-point interface IFA_ADDRESS is the far end, and IPv6 has IFA_LOCAL only there (rtnetlink(7)).
    return [
        (one["index"], f"{one.get_attr('IFA_LOCAL') or one.get_attr('IFA_ADDRESS')}/{one['prefixlen']}")
        for one in _dump(kernel, ifaddrmsg, RTM_GETADDR, "list addresses")
    ]


def routes(kernel: Netlink) -> list[Route]:
    """Return every route of the main table of the socket's namespace, IPv4 and IPv6."""
    return [
        _route(one)
        for family in (socket.AF_INET, socket.AF_INET6)
        for one in _dump(kernel, rtmsg, RTM_GETROUTE, "list routes", {"family": family})
        if one.get_attr("RTA_TABLE", one["table"]) == RT_TABLE_MAIN and not one["flags"] & RTM_F_CLONED
    ]


def route_to(
    kernel: Netlink, address: str, source: str | None = None, arrives_at: int = 0, mark: int = 0, all_hops: bool = False
) -> Route:  # fmt: skip
    """Return the route that the kernel chooses for packets to an address, with one hop and its own source address.

    With `source` and `arrives_at` (the index of an interface), it forwards packets that arrive there. mark: of the
    packets. all_hops: with all hops of which it chooses. Raises LinkError without a route, or if it does not forward.
    """
    whole, family = (32, socket.AF_INET) if ":" not in address else (128, socket.AF_INET6)
    fields = {"family": family, "dst_len": whole, "src_len": 0 if source is None else whole}
    fields["flags"] = RTM_F_FIB_MATCH if all_hops else 0
    attributes = {"RTA_DST": address, "RTA_SRC": source, "RTA_IIF": arrives_at or None}
    attributes["RTA_MARK"] = mark or None
    what = f"find the route to {address}"
    found = _one(kernel, rtmsg, RTM_GETROUTE, what, fields, attributes)
    if (number := REFUSING.get(found["type"])) is not None:  # of IPv6, which answers with the route
        raise LinkError(what, number, "")
    return _route(found)


def is_local(kernel: Netlink, address: str) -> bool:
    """Return whether the socket's namespace takes packets to this IPv6 address for itself."""
    fields, what = {"family": socket.AF_INET6, "dst_len": 128}, f"find the route to {address}"
    try:
        return bool(
            _one(kernel, rtmsg, RTM_GETROUTE, what, fields, {"RTA_DST": address})["type"] == RTN_LOCAL
        )
    except LinkError:  # no route
        return False


def static_routes(kernel: Netlink) -> list[Message]:
    """Return requests that add the static IPv4 routes of the main table again, like `ip route save`.

    They keep gateways and metrics. Routes that the kernel adds when an interface comes up are left out.
    """
    result = []
    request = encoded(rtmsg, RTM_GETROUTE, NLM_F_DUMP, "list routes", {"family": socket.AF_INET})
    for body in kernel.ask(request):
        route = _decode(rtmsg, body)
        if route.get_attr("RTA_TABLE", route["table"]) == RT_TABLE_MAIN and route["proto"] != RTPROT_KERNEL:
            result.append(Message(f"add route to {_route(route).to} again", _as_request(body)))
    return result


def _as_request(body: bytes) -> bytes:
    """Turn a dumped route into a request that adds it.

    The state flags of the route and its hops (RTNH_F_DEAD, RTNH_F_LINKDOWN …) are cleared, because the kernel rejects
    requests with them (fib_get_nhs).
    """
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
    """Yield start, end and type of each attribute (struct rtattr) or hop (struct rtnexthop); they are aligned to 4
    bytes."""
    while at + 4 <= end:
        length, kind = struct.unpack_from("=HH", body, at)
        yield at, at + length, kind
        at += max(length + 3 & ~3, 4)


def remotes(kernel: Netlink) -> list[tuple[int, str]]:
    """Return (interface index, remote) for the remotes of every VXLAN interface.

    They are those of its entries of the all-zeros MAC address, or without any (as flannel's) of all entries.
    """
    found = [
        (one["ifindex"], str(one.get_attr("NDA_DST")), one.get_attr("NDA_LLADDR") == NO_MAC)
        for one in _dump(kernel, ndmsg, RTM_GETNEIGH, "list remotes", {"family": socket.AF_BRIDGE})
        if one["flags"] & NTF_SELF and one.get_attr("NDA_DST")
    ]
    have_default = {index for index, _to, is_default in found if is_default}
    every = ((index, to) for index, to, is_default in found if is_default or index not in have_default)
    return list(dict.fromkeys(every))


def operstate(kernel: Netlink, index: int) -> str:
    """Return the operational state of an interface as RFC 2863 names it: "up", "down", "lowerlayerdown", "unknown" …

    Since Linux 6.8 this request first carries out what the kernel has put off (linkwatch_sync_dev in rtnl_getlink);
    before, and in a list of all interfaces, the state may be a second old.
    """
    what = f"read the state of interface {index}"
    found = _one(kernel, ifinfmsg, RTM_GETLINK, what, {"index": index}, WITHOUT_STATS)
    return str(found.get_attr("IFLA_OPERSTATE")).lower()


def qdisc(kernel: Netlink, index: int) -> str:
    """Return the root queueing discipline of an interface as ip(8) prints it: "noqueue", "fq_codel", "mq" …

    It is "noop" while the interface is down. Raises LinkError if there is no such interface.
    """
    what = f"read the qdisc of interface {index}"
    found = _one(kernel, ifinfmsg, RTM_GETLINK, what, {"index": index}, WITHOUT_STATS)
    return str(found.get_attr("IFLA_QDISC") or "unknown")


def qdiscs(kernel: Netlink) -> list[tuple[int, str, dict[str, int]]]:
    """Return (interface index, kind and handle, counters) for every queueing discipline that has counters.

    The counters are packets, bytes, drops, overlimits, qlen and backlog (struct tc_stats).
    """
    result = []
    for one in _dump(kernel, tcmsg, RTM_GETQDISC, "list queueing disciplines"):
        if (stats := one.get_attr("TCA_STATS")) is not None:
            name = f"{one.get_attr('TCA_KIND')} {one['handle'] >> 16:x}:"
            numbers = ("packets", "bytes", "drop", "overlimits", "qlen", "backlog")
            result.append((one["index"], name, {number: int(stats[number]) for number in numbers}))
    return result


def id_of(kernel: Netlink, netns: int) -> int | None:
    """Return the socket's namespace's number for the namespace `netns` (a file descriptor), None if it has none."""
    what = "read the number of a namespace"
    found = _one(kernel, nsidmsg, RTM_GETNSID, what, attributes={"NETNSA_FD": netns})
    result = int(found.get_attr("NETNSA_NSID"))
    # -1 (NETNSA_NSID_NOT_ASSIGNED), of which pyroute2 makes a positive one
    return None if result >= 1 << 31 else result


def _dump(
    kernel: Netlink, form: Any, kind: int, what: str, fields: Values = None, attributes: Values = None
) -> Iterator[Any]:
    for body in kernel.ask(encoded(form, kind, NLM_F_DUMP, what, fields, attributes)):
        yield _decode(form, body)


def _one(
    kernel: Netlink, form: Any, kind: int, what: str, fields: Values = None, attributes: Values = None
) -> Any:
    [answer] = kernel.ask(encoded(form, kind, 0, what, fields, attributes))
    return _decode(form, answer)


def _decode(form: Any, body: bytes) -> Any:
    message = form(body)
    message.decode()
    return message


def _link(message: Any) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    data = info.get_attr("IFLA_INFO_DATA") if info is not None else None
    name = message.get_attr("IFLA_IFNAME")  # bytes if it is no UTF-8
    return Link(
        index=message["index"],
        name=name if isinstance(name, str) else name.decode(errors="backslashreplace"),
        kind=info.get_attr("IFLA_INFO_KIND") if info is not None else None,
        up=bool(message["flags"] & IFF_UP),
        carrier=bool(message.get_attr("IFLA_CARRIER")),
        mtu_bytes=message.get_attr("IFLA_MTU"),
        mac=message.get_attr("IFLA_ADDRESS") if message["ifi_type"] == ARPHRD_ETHER else None,
        master=message.get_attr("IFLA_MASTER"),
        link=message.get_attr("IFLA_LINK"),
        link_netnsid=message.get_attr("IFLA_LINK_NETNSID"),
        data=dict(data["attrs"]) if data is not None and hasattr(data, "get_attr") else {},
        promiscuous=bool(message["flags"] & IFF_PROMISC),
        alias=message.get_attr("IFLA_IFALIAS"),
    )


def _route(message: Any) -> Route:
    to, length = message.get_attr("RTA_DST"), message["dst_len"]
    limits = message.get_attr("RTA_METRICS") or {"attrs": ()}
    whole = 32 if message["family"] == socket.AF_INET else 128
    if to is not None:
        to = to if length == whole else str(ipaddress.ip_network(f"{to}/{length}", strict=False))
    several = message.get_attr("RTA_MULTIPATH") or ()
    hops = [DumpedNextHop(_via(one), one["oif"], _hop_state(one["flags"])) for one in several]
    alone = DumpedNextHop(_via(message), message.get_attr("RTA_OIF"), _hop_state(message["flags"]))
    cached = message["flags"] & RTM_F_CLONED and message.get_attr("RTA_CACHEINFO")
    learned = "RTAX_MTU" if cached and cached["rta_expires"] else ""
    metrics = {name.removeprefix("RTAX_").lower(): one for name, one in limits["attrs"] if name != learned}
    return Route(
        to=to or "default",
        hops=tuple(hops) or (alone,),
        source=message.get_attr("RTA_PREFSRC"),
        metric=message.get_attr("RTA_PRIORITY"),
        connected=message["proto"] == RTPROT_KERNEL,
        metrics=metrics,
    )


def _via(hop: Any) -> str | None:
    """Return the gateway of a hop, which for IPv4 may have an address of IPv6 (RFC 5549)."""
    return hop.get_attr("RTA_GATEWAY") or (hop.get_attr("RTA_VIA") or {}).get("addr")


def _hop_state(flags: int) -> str | None:
    names = {RTNH_F_DEAD: "dead", RTNH_F_LINKDOWN: "linkdown"}
    return " ".join(name for flag, name in names.items() if flags & flag) or None
