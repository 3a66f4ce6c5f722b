"""Read the drops of the packet sockets (packet(7)) of a namespace: sock_diag(7), linux/packet_diag.h.

A program that receives through packet sockets, like the userspace datapath of Open vSwitch, loses packets when a
socket's buffer is full. No interface counter shows that; `ss -0 -e -m` shows it as d in skmem.
"""

import socket
import struct

from labkit.system.netlink.netns import inside
from labkit.system.netlink.sockets import Netlink, attributes, request

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_DUMP = 0x300
PACKET_SHOW_INFO, PACKET_SHOW_MEMINFO = 1, 0x10
PACKET_DIAG_INFO, PACKET_DIAG_MEMINFO = 0, 6
SK_MEMINFO_DROPS = 8  # linux/sock_diag.h: the ninth number

_request = struct.Struct("=BBHIIII")  # struct packet_diag_req
_answer = struct.Struct("=16xBBHIII")  # header, struct packet_diag_msg: family, type, protocol, inode, cookie


class PacketSockets(Netlink):
    """Reader of the packet sockets of the namespace `netns` (a file descriptor)."""

    def __init__(self, netns: int) -> None:
        with inside(netns):
            super().__init__(NETLINK_SOCK_DIAG)

    def drops(self) -> dict[int, int]:
        """Return the packets dropped because a socket's buffer was full, by interface index.

        Sockets that receive nothing are left out. Raises LinkError if the kernel does not report them.
        """
        body = _request.pack(socket.AF_PACKET, 0, 0, 0, PACKET_SHOW_INFO | PACKET_SHOW_MEMINFO, 0, 0)
        what = "list packet sockets (CONFIG_PACKET_DIAG may be missing)"
        result: dict[int, int] = {}
        for answer in self.ask(request(what, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, body)):
            _family, _type, protocol, *_ = _answer.unpack_from(answer)
            parts = dict(attributes(answer[_answer.size :]))
            if protocol and PACKET_DIAG_INFO in parts:
                # struct packet_diag_info begins with pdi_index
                [index] = struct.unpack_from("I", parts[PACKET_DIAG_INFO])
                memory = parts.get(PACKET_DIAG_MEMINFO, bytes(4 * SK_MEMINFO_DROPS + 4))
                [dropped] = struct.unpack_from("I", memory, 4 * SK_MEMINFO_DROPS)
                result[index] = result.get(index, 0) + dropped
        return result
