"""Read the drops of the packet sockets (packet(7)) of a namespace: sock_diag(7), linux/packet_diag.h.

A program that receives through packet sockets, like the userspace datapath of Open vSwitch, loses packets when a
socket's buffer is full. No interface counter shows that; `ss -0 -e -m` shows it as d in skmem.
"""

import socket
import struct
from collections.abc import Iterator

from labkit.system.netlink.netns import inside
from labkit.system.netlink.sockets import Netlink, attributes, request

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_DUMP = 0x300
PACKET_SHOW_INFO, PACKET_SHOW_MEMINFO, PACKET_SHOW_FILTER = 1, 0x10, 0x20
PACKET_DIAG_INFO, PACKET_DIAG_MEMINFO, PACKET_DIAG_FILTER = 0, 6, 7
ETH_P_ALL, INSTRUCTION_BYTES = 3, 8  # linux/if_ether.h, linux/filter.h (struct sock_filter)
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
        result: dict[int, int] = {}
        for _protocol, index, parts in self._receiving(PACKET_SHOW_MEMINFO):
            memory = parts.get(PACKET_DIAG_MEMINFO, bytes(4 * SK_MEMINFO_DROPS + 4))
            [dropped] = struct.unpack_from("I", memory, 4 * SK_MEMINFO_DROPS)
            result[index] = result.get(index, 0) + dropped
        return result

    def captured(self) -> set[int]:
        """Return the indexes of interfaces of which a socket takes every frame, 0 for any interface: it is for all
        protocols, and has no filter or that of libpcap for all. Raises as `drops`."""
        sockets = self._receiving(PACKET_SHOW_FILTER)
        filters = (
            (protocol, index, parts.get(PACKET_DIAG_FILTER, b"")) for protocol, index, parts in sockets
        )
        return {
            index
            for protocol, index, own in filters
            if protocol == ETH_P_ALL and len(own) <= INSTRUCTION_BYTES
        }

    def _receiving(self, show: int) -> Iterator[tuple[int, int, dict[int, bytes]]]:
        """Yield the protocol of each socket that receives, the index of its interface, and its attributes."""
        body = _request.pack(socket.AF_PACKET, 0, 0, 0, PACKET_SHOW_INFO | show, 0, 0)
        what = "list packet sockets (CONFIG_PACKET_DIAG may be missing)"
        for answer in self.ask(request(what, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, body)):
            _family, _type, protocol, *_ = _answer.unpack_from(answer)
            parts = dict(attributes(answer[_answer.size :]))
            if protocol and PACKET_DIAG_INFO in parts:
                # struct packet_diag_info begins with pdi_index
                yield protocol, struct.unpack_from("I", parts[PACKET_DIAG_INFO])[0], parts
