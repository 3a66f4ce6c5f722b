"""Read the drops of the packet sockets (packet(7)) of a namespace: sock_diag(7), linux/packet_diag.h.

A program that receives through packet sockets, like the userspace datapath of Open vSwitch, loses packets when a
socket's buffer is full. No interface counter shows that; `ss -0 -e -m` shows it as d in skmem.
"""

from __future__ import annotations

import os
import socket
import struct

from labkit.common.errors import Failed
from labkit.system.netlink.netns import inside

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 1, 0x300, 2, 3
PACKET_SHOW_INFO, PACKET_SHOW_MEMINFO = 1, 0x10
PACKET_DIAG_INFO, PACKET_DIAG_MEMINFO = 0, 6
SK_MEMINFO_DROPS = 8  # linux/sock_diag.h: the ninth number

_header = struct.Struct("=IHHII")
_request = struct.Struct("=BBHIIII")  # struct packet_diag_req
_message = struct.Struct("=BBHIII")  # struct packet_diag_msg: family, type, protocol, inode, cookie


class PacketSockets:
    """Reader of the packet sockets of the namespace `netns` (a file descriptor)."""

    def __init__(self, netns: int) -> None:
        with inside(netns):
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG
            )

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def drops(self) -> dict[int, int]:
        """Return the packets dropped because a socket's buffer was full, by interface index.

        Sockets that receive nothing are left out. Raises Failed if the kernel does not report them
        (CONFIG_PACKET_DIAG).
        """
        body = _request.pack(socket.AF_PACKET, 0, 0, 0, PACKET_SHOW_INFO | PACKET_SHOW_MEMINFO, 0, 0)
        flags = NLM_F_REQUEST | NLM_F_DUMP
        self._socket.send(_header.pack(16 + len(body), SOCK_DIAG_BY_FAMILY, flags, 0, 0) + body)
        result: dict[int, int] = {}
        while True:
            data = self._socket.recv(1 << 17)
            offset = 0
            while offset + 16 <= len(data):
                length, kind, *_ = _header.unpack_from(data, offset)
                message = data[offset + 16 : offset + length]
                offset += (length + 3) & ~3
                if kind == NLMSG_DONE:
                    return result
                if kind == NLMSG_ERROR:
                    number = -struct.unpack_from("i", message)[0]
                    text = f"the kernel does not list packet sockets ({os.strerror(number)})"
                    raise Failed(f"{text}: CONFIG_PACKET_DIAG may be missing")
                index, dropped = _drops(message)
                if index is not None:
                    result[index] = result.get(index, 0) + dropped


def _drops(message: bytes) -> tuple[int | None, int]:
    """Return the interface that a socket receives from (or None) and its drops."""
    _family, _type, protocol, *_ = _message.unpack_from(message)
    index, dropped, at = None, 0, _message.size
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("HH", message, at)
        value = message[at + 4 : at + length]
        if kind == PACKET_DIAG_INFO and protocol:
            index = struct.unpack_from("I", value)[0]  # struct packet_diag_info: pdi_index
        elif kind == PACKET_DIAG_MEMINFO:
            dropped = struct.unpack_from("I", value, 4 * SK_MEMINFO_DROPS)[0]
        at += (length + 3) & ~3
    return index, dropped
