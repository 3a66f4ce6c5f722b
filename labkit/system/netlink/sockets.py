"""A netlink socket of one namespace: batched requests, their answers, and cheap counters."""

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labkit.common.errors import Failed
from labkit.system.netlink.messages import NLM_F_REQUEST, Message

# linux/rtnetlink.h, linux/netlink.h, linux/if_link.h
RTM_GETSTATS = 94
IFLA_STATS_LINK_64 = 1
SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 270, 10, 11
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_MULTI, NLM_F_DUMP_INTR = 2, 0x10
NLA_TYPE_MASK = 0x3FFF
EAGAIN, EOPNOTSUPP = 11, 95
# What to do about an answer, by its error number (asm-generic/errno.h) or a word of the kernel's text.
WAYS_OUT = {
    17: "leave it out, or change its name, number or metric",  # the kernel may have made it, as a connected route
    98: "another one has this port, change one port",
    "IPv6": "give the namespace's interfaces IPv6 addresses, or use IPv4",
}
ATTEMPTS = 10  # attempts to list objects that another process may be changing
BATCH = 64  # acknowledgements of a batch must fit into the socket's receive buffer

_header = struct.Struct("IHHII")


class LinkError(Failed):
    """The kernel refused a netlink request. `errno` is its error number; the message includes the kernel's text, if
    any.

    `unknown` is the link kind that the kernel does not support, if that is the reason.
    """

    def __init__(self, what: str, errno: int, text: str, kind: str | None = None) -> None:
        reason = os.strerror(errno) + (f" ({text})" if text else "")
        way_out = WAYS_OUT.get("IPv6" if "IPv6" in text else errno)
        super().__init__(f"{what}: {reason}" + (f": {way_out}" if way_out else ""))
        self.errno = errno
        self.unknown = kind if errno == EOPNOTSUPP else None  # rtnetlink's answer (net/core/rtnetlink.c)


@dataclass(frozen=True)
class LinkCounters:
    """The received frames (after GRO, before segmentation) and bytes of an interface, and its sent frames."""

    received_bytes: int
    received_count: int
    sent_count: int = 0


class Netlink:
    """A netlink socket in the network namespace in which it was created; `protocol`: whom it asks (linux/netlink.h).

    `where`: the namespace's name, for messages.
    """

    where = ""

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)

    def close(self) -> None:
        self._socket.close()

    def do(self, *messages: Message) -> None:
        """Send the requests in order and wait until the kernel has acknowledged each.

        Raises LinkError for the first refused request; later requests of the same batch are still attempted.
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
            for kind, flags, number, whole in _messages(self._socket.recv(65536)):
                if kind != NLMSG_ERROR:  # it carries every acknowledgement
                    continue
                missing -= 1
                errno = -struct.unpack_from("i", whole, 16)[0]
                if errno and first is None:
                    refused = messages[number]
                    what = refused.what + f" in {self.where}" * bool(self.where)
                    first = LinkError(what, errno, _extended_words(flags, whole), refused.kind)
        if first is not None:
            raise first

    def ask(self, message: Message) -> list[bytes]:
        """Send a request and return the kernel's messages, each with its header: one, or all of a dump.

        Raises LinkError if the kernel refuses.
        """
        answers, interrupted = self.attempted(message)
        if interrupted:
            raise LinkError(message.what, EAGAIN, "the listed objects changed during every attempt")
        return answers

    def attempted(self, message: Message, most: int | None = None) -> tuple[list[bytes], bool]:
        """Return the answers of the last attempt, and whether a change interrupted it.

        most: the number of messages after which the attempt ends. The rest stays in this socket: close it.
        Raises LinkError if the kernel refuses.
        """
        for _ in range(ATTEMPTS):
            self._socket.send(message.body)
            answers, interrupted = self._answers(message, most)
            if not interrupted or len(answers) == most:
                break
        return answers, interrupted

    def _answers(self, message: Message, most: int | None) -> tuple[list[bytes], bool]:
        """Return the answers, and whether a change interrupted the dump."""
        answers: list[bytes] = []
        interrupted = False
        while True:
            for kind, flags, _number, whole in _messages(self._socket.recv(1 << 17)):
                interrupted |= bool(flags & NLM_F_DUMP_INTR)
                if kind in (NLMSG_ERROR, NLMSG_DONE):
                    errno = -struct.unpack_from("i", whole, 16)[0]
                    if errno > 0:
                        raise LinkError(message.what, errno, _extended_words(flags, whole))
                    return answers, interrupted
                answers.append(whole)
                if not flags & NLM_F_MULTI or len(answers) == most:
                    return answers, interrupted

    def counters(self, index: int) -> LinkCounters:
        """Return the 64-bit counters of an interface (RTM_GETSTATS: 20 µs; a full RTM_GETLINK costs ten times as
        much)."""
        # struct if_stats_msg: family, pad, ifindex, filter_mask
        body = struct.pack("BBHII", 0, 0, 0, index, 1 << (IFLA_STATS_LINK_64 - 1))
        [answer] = self.ask(request(f"read counters of interface {index}", RTM_GETSTATS, 0, body))
        # nlmsghdr (16), if_stats_msg (12), attribute header (4), then struct rtnl_link_stats64: rx_packets, tx_packets,
        # rx_bytes, …
        rx_packets, tx_packets, rx_bytes = struct.unpack_from("QQQ", answer, 32)
        return LinkCounters(rx_bytes, rx_packets, tx_packets)


def _messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield type, flags, number and the whole of each message (struct nlmsghdr)."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind, flags, number, _port = _header.unpack_from(data, offset)
        yield kind, flags, number, data[offset : offset + length]
        offset += (length + 3) & ~3


def _extended_words(flags: int, whole: bytes) -> str:
    """Return NLMSGERR_ATTR_MSG of an extended acknowledgement; with CAP_ACK it follows the error and the request's
    header."""
    if not flags & 0x200:  # NLM_F_ACK_TLVS
        return ""
    return dict(attributes(whole[16 + 4 + 16 :])).get(1, b"").rstrip(b"\0").decode(errors="replace")


def request(what: str, kind: int, flags: int, body: bytes) -> Message:
    """Return a request in the form of linux/netlink.h, for protocols that pyroute2's messages do not cover."""
    return Message(what, _header.pack(16 + len(body), kind, NLM_F_REQUEST | flags, 0, 0) + body)


def attribute(kind: int, content: bytes) -> bytes:
    """Return an attribute (struct nlattr), padded to the next one."""
    return struct.pack("HH", 4 + len(content), kind) + content + bytes(-len(content) % 4)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes in a part of the kernel's answer, without their flags.

    Raises Failed for one without a length.
    """
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("HH", data, at)
        if length < 4:
            raise Failed(f"an attribute of {length} bytes in the kernel's answer")
        yield kind & NLA_TYPE_MASK, data[at + 4 : at + length]
        at += (length + 3) & ~3
