"""Route netlink and network namespaces: the only user of pyroute2.

pyroute2 encodes the messages; they travel over one plain socket per namespace, many to a system call.
pyroute2's own `IPRoute` object costs several milliseconds per namespace, which is most of what building 256
of them takes.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_address
from typing import Any

from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from labkit.errors import Failed

# linux/rtnetlink.h, linux/netlink.h, linux/if.h, linux/if_link.h
RTM_NEWLINK, RTM_DELLINK, RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWQDISC, RTM_GETSTATS = 16, 17, 20, 24, 36, 94
NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE = 1, 4, 0x200, 0x400
IFF_UP = 1
IFLA_STATS_LINK_64 = 1
CLONE_NEWNET = 0x40000000
SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 270, 10, 11
BATCH = 64  # acknowledgements of a batch must fit into the socket's receive buffer

# Ours start high: tunnel modules put fall-back devices (tunl0, sit0) at 2, 3 … of every new namespace.
FIRST_INDEX = 100

_libc = ctypes.CDLL(None, use_errno=True)
_header = struct.Struct("IHHII")


class LinkError(Failed):
    """The kernel refused a netlink request; `errno` is its number, the text its own words where it gave
    any."""

    def __init__(self, what: str, errno: int, words: str) -> None:
        super().__init__(f"{what}: {os.strerror(errno)}" + (f" ({words})" if words else ""))
        self.errno = errno


@dataclass(frozen=True)
class Message:
    """One encoded request and what it asks for, in words, for the error."""

    what: str
    body: bytes = field(repr=False)


def _encode(message: Any, kind: int, flags: int, what: str) -> Message:
    message["header"]["type"] = kind
    message["header"]["flags"] = NLM_F_REQUEST | NLM_F_ACK | flags
    message.encode()
    return Message(what, bytes(message.data))


def new_link(
    kind: str,
    name: str,
    *,
    index: int = 0,
    netns: int | None = None,
    link: int | None = None,
    master: int | None = None,
    mtu_bytes: int | None = None,
    up: bool = True,
    data: dict[str, Any] | None = None,
    peer: dict[str, Any] | None = None,
) -> Message:
    """A request for a new interface, up from the start; `index` chosen by the caller saves asking for it
    afterwards.

    `netns` is the file descriptor of the namespace that it is made in, `link` the index of its lower device
    in the namespace of the socket. `data` are the attributes of the kind (IFLA_INFO_DATA) by their kernel
    names; `peer` the far end of a veth: name, index, netns; it is left down (veth_open refuses before its two
    ends know each other).
    """
    message = ifinfmsg()
    message["index"] = index
    if up:
        message["flags"] = message["change"] = IFF_UP
    attributes = _link_attributes(name, netns, mtu_bytes)
    if link is not None:
        attributes.append(("IFLA_LINK", link))
    if master is not None:
        attributes.append(("IFLA_MASTER", master))
    info: list[tuple[str, Any]] = [("IFLA_INFO_KIND", kind)]
    inner = list((data or {}).items())
    if peer is not None:
        far = {"attrs": _link_attributes(peer["name"], peer.get("netns"), mtu_bytes), "index": peer["index"]}
        inner.append(("VETH_INFO_PEER", far))
    if inner:
        info.append(("IFLA_INFO_DATA", {"attrs": inner}))
    attributes.append(("IFLA_LINKINFO", {"attrs": info}))
    message["attrs"] = attributes
    return _encode(message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, f"create {kind} {name}")


def _link_attributes(name: str, netns: int | None, mtu_bytes: int | None) -> list[tuple[str, Any]]:
    attributes: list[tuple[str, Any]] = [("IFLA_IFNAME", name)]
    if mtu_bytes is not None:
        attributes.append(("IFLA_MTU", mtu_bytes))
    if netns is not None:
        attributes.append(("IFLA_NET_NS_FD", netns))
    return attributes


def set_link(
    index: int, *, up: bool = True, mtu_bytes: int | None = None, hairpin: bool | None = None
) -> Message:
    """A request that changes an interface; `hairpin` lets a bridge port send a frame back out where it came
    in (VEPA)."""
    message = ifinfmsg()
    message["index"] = index
    if up:
        message["flags"] = message["change"] = IFF_UP
    attributes: list[tuple[str, Any]] = []
    if mtu_bytes is not None:
        attributes.append(("IFLA_MTU", mtu_bytes))
    if hairpin is not None:
        port = {"attrs": [("IFLA_BRPORT_MODE", int(hairpin))]}
        attributes.append(
            ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", port)]})
        )
    message["attrs"] = attributes
    return _encode(message, RTM_NEWLINK, 0, f"change interface {index}")


def set_master(index: int, master: int) -> Message:
    """A request that makes an interface a port of a bridge."""
    message = ifinfmsg()
    message["index"] = index
    message["attrs"] = [("IFLA_MASTER", master)]
    return _encode(message, RTM_NEWLINK, 0, f"make interface {index} a port of {master}")


def delete_link(index: int) -> Message:
    """A request that deletes an interface."""
    message = ifinfmsg()
    message["index"] = index
    return _encode(message, RTM_DELLINK, 0, f"delete interface {index}")


def new_address(index: int, address: IPv4Interface | IPv6Interface) -> Message:
    """A request for an address, usable at once: duplicate address detection (1-2 s) is left out, the
    addresses are ours."""
    message = ifaddrmsg()
    message["family"] = socket.AF_INET if address.version == 4 else socket.AF_INET6
    message["prefixlen"] = address.network.prefixlen
    message["index"] = index
    message["attrs"] = [("IFA_LOCAL", str(address.ip)), ("IFA_ADDRESS", str(address.ip))]
    if address.version == 6:
        message["attrs"].append(("IFA_FLAGS", 0x02))  # IFA_F_NODAD
    return _encode(message, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, f"add address {address}")


def default_route(index: int, gateway: str) -> Message:
    """A request for the default route by way of `gateway`."""
    message = rtmsg()
    message["family"] = socket.AF_INET if ip_address(gateway).version == 4 else socket.AF_INET6
    message["table"], message["proto"], message["scope"], message["type"] = (
        254,
        4,
        0,
        1,
    )  # main, static, universe, unicast
    message["attrs"] = [("RTA_GATEWAY", gateway), ("RTA_OIF", index)]
    return _encode(message, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, f"add default route via {gateway}")


def new_qdisc(index: int, kind: str, options: dict[str, Any] | None = None) -> Message:
    """A request for a root queueing discipline."""
    message = tcmsg()
    message["family"], message["index"], message["handle"], message["parent"] = 0, index, 0x10000, 0xFFFFFFFF
    message["attrs"] = [("TCA_KIND", kind)]
    if options:
        message["attrs"].append(("TCA_OPTIONS", {"attrs": list(options.items())}))
    return _encode(message, RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, f"add qdisc {kind}")


@dataclass(frozen=True)
class LinkCounters:
    """What an interface has received: frames (after GRO, before segmentation) and their bytes."""

    received_bytes: int
    received_count: int


class Netlink:
    """A route-netlink socket in the network namespace in which it was made."""

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
        )
        self._socket.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def do(self, *messages: Message) -> None:
        """Send the requests, in order, and wait until the kernel has acknowledged each.

        Raises LinkError with the kernel's words for the first that it refused; those after it in the same
        batch were still tried.
        """
        for start in range(0, len(messages), BATCH):
            self._batch(messages[start : start + BATCH])

    def _batch(self, messages: Sequence[Message]) -> None:
        buffer = b"".join(
            message.body[:8] + struct.pack("I", number) + message.body[12:]
            for number, message in enumerate(messages)
        )
        self._socket.send(buffer)
        first: LinkError | None = None
        missing = len(messages)
        while missing:
            data = self._socket.recv(65536)
            for kind, flags, number, body in _messages(data):
                if kind != 2:  # NLMSG_ERROR carries every acknowledgement
                    continue
                missing -= 1
                errno = -struct.unpack_from("i", body)[0]
                if errno and first is None:
                    first = LinkError(messages[number].what, errno, _extended_words(flags, body))
        if first is not None:
            raise first

    def counters(self, index: int) -> LinkCounters:
        """The 64-bit receive counters of one interface (RTM_GETSTATS; 20 µs, where a full RTM_GETLINK costs
        ten times that)."""
        # struct if_stats_msg: family, pad, ifindex, filter_mask
        body = struct.pack("BBHII", 0, 0, 0, index, 1 << (IFLA_STATS_LINK_64 - 1))
        self._socket.send(_header.pack(16 + len(body), RTM_GETSTATS, NLM_F_REQUEST, 0, 0) + body)
        for kind, _flags, _number, answer in _messages(self._socket.recv(65536)):
            if kind == 2:
                raise LinkError(
                    f"read counters of interface {index}", -struct.unpack_from("i", answer)[0], ""
                )
            # if_stats_msg (12), attribute header (4), then struct rtnl_link_stats64: rx_packets, tx_packets,
            # rx_bytes, …
            rx_packets, _tx_packets, rx_bytes = struct.unpack_from("QQQ", answer, 16)
            return LinkCounters(rx_bytes, rx_packets)
        raise LinkError(f"read counters of interface {index}", 5, "no answer")


def _messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    offset = 0
    while offset + 16 <= len(data):
        length, kind, flags, number, _port = _header.unpack_from(data, offset)
        yield kind, flags, number, data[offset + 16 : offset + length]
        offset += (length + 3) & ~3


def _extended_words(flags: int, body: bytes) -> str:
    """NLMSGERR_ATTR_MSG of an extended acknowledgement: with CAP_ACK it follows the error and the request's
    header."""
    if not flags & 0x200:  # NLM_F_ACK_TLVS
        return ""
    offset = 4 + 16
    while offset + 4 <= len(body):
        length, kind = struct.unpack_from("HH", body, offset)
        if kind == 1:
            return body[offset + 4 : offset + length].rstrip(b"\0").decode(errors="replace")
        offset += (length + 3) & ~3
    return ""


def index_of(name: str) -> int:
    """The index of an interface in the namespace of the calling thread. Raises OSError when there is none of
    that name."""
    return socket.if_nametoindex(name)


def _call(function: str, *arguments: int) -> None:
    if getattr(_libc, function)(*arguments) != 0:
        errno = ctypes.get_errno()
        raise LinkError(function, errno, "")


@contextmanager
def inside(netns: int) -> Iterator[None]:
    """The calling thread is in the network namespace `netns` (a file descriptor); programs that it starts
    are, too."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", netns, CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", home, CLONE_NEWNET)
    finally:
        os.close(home)


def new_namespaces(count: int) -> list[tuple[int, Netlink]]:
    """`count` anonymous network namespaces: a file descriptor that keeps each alive, and a netlink socket in
    it.

    When the descriptors are closed, by whomever and however, the kernel frees them and all that is in them.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    made: list[tuple[int, Netlink]] = []
    try:
        for _ in range(count):
            _call("unshare", CLONE_NEWNET)
            made.append((os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC), Netlink()))
    finally:
        _call("setns", home, CLONE_NEWNET)
        os.close(home)
    return made


def new_ingress(index: int, kind: str) -> Message:
    """A request for `ingress` or `clsact`, the places for filters on arriving traffic: parent TC_H_INGRESS
    (linux/pkt_sched.h)."""
    message = tcmsg()
    message["family"], message["index"], message["handle"], message["parent"] = (
        0,
        index,
        0xFFFF0000,
        0xFFFFFFF1,
    )
    message["attrs"] = [("TCA_KIND", kind)]
    return _encode(message, RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, f"add qdisc {kind}")
