"""What packet sockets dropped because their receive buffers were full: the only place where a userspace switch on
AF_PACKET shows its loss (`ss -0 -e -m`, d in skmem)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from labkit.netlink.netns import inside

# linux/sock_diag.h, packet_diag.h, netlink.h
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
PACKET_SHOW_INFO, PACKET_SHOW_MEMINFO = 1, 0x10
PACKET_DIAG_MEMINFO = 6
SK_MEMINFO_DROPS = 8
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 1, 0x300, 2, 3


def packet_socket_drops(netns: int) -> int:
    """The sum over all packet sockets of a network namespace; 0 where the kernel does not tell (CONFIG_PACKET_DIAG)."""
    with inside(netns), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as asked:
        body = struct.pack(
            "BBHIIII",
            socket.AF_PACKET,
            0,
            0,
            0,
            PACKET_SHOW_INFO | PACKET_SHOW_MEMINFO,
            0xFFFFFFFF,
            0xFFFFFFFF,
        )
        header = struct.pack("IHHII", 16 + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 0, 0)
        asked.send(header + body)
        total = 0
        while True:
            for kind, content in _messages(asked.recv(1 << 16)):
                if kind in (NLMSG_DONE, NLMSG_ERROR):
                    return total
                total += _drops(content)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("IH", data, at)
        yield kind, data[at + 16 : at + length]
        at += (length + 3) & ~3


def _drops(content: bytes) -> int:
    """Of one socket: attributes follow struct packet_diag_msg (16 bytes)."""
    at = 16
    while at + 4 <= len(content):
        length, kind = struct.unpack_from("HH", content, at)
        if length < 4:
            break
        if kind == PACKET_DIAG_MEMINFO and length >= 4 + 4 * (SK_MEMINFO_DROPS + 1):
            return int(struct.unpack_from("I", content, at + 4 + 4 * SK_MEMINFO_DROPS)[0])
        at += (length + 3) & ~3
    return 0
