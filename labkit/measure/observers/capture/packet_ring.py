"""A packet socket at one interface, with a ring that the kernel fills (packet(7); TPACKET_V3 in linux/if_packet.h,
Documentation/networking/packet_mmap.rst).

The ring is memory of its own, large without a privilege. In it the kernel writes the packet's own timestamp where it
has one, else when this socket saw it (tpacket_get_timestamp, net/packet/af_packet.c). A packet has one only while some
program wants timestamps, as ping does, and loses it when it goes to another namespace or is forwarded: until then all
interfaces tell the same time, and a decapsulation in one namespace takes none.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
import struct
from collections.abc import Callable, Iterator

from labkit.common.packets import ETHERNET, RAW_IP
from labkit.system import netlink

SOL_PACKET, SO_ATTACH_FILTER = 263, 26
PACKET_RX_RING, PACKET_STATISTICS, PACKET_VERSION, TPACKET_V3 = 5, 6, 10, 2
ETH_P_ALL = 3
RETURN = 0x06  # BPF_RET | BPF_K: so many bytes of every packet
STATUS_USER, STATUS_VLAN, STATUS_VLAN_TPID = 1, 1 << 4, 1 << 6
# linux/if_arp.h: Ethernet and loopback have Ethernet's header; of others (ipip, ip6tnl, sit, gre, ip6gre, tun) none.
WITH_ETHERNET = (1, 772)
WITHOUT_HEADER = (768, 769, 776, 778, 823, 65534)

BLOCK_BYTES = 1 << 16
OUTGOING = 4  # sll_pkttype; 0 is to us, 1 broadcast, 2 multicast, 3 to another
SLOT_BYTES = 256  # the kernel wants a size of slots, and packs all the same
RETIRE_MS = 20  # after this a block is handed over though it is not full

_block = struct.Struct("=8xIII")  # struct tpacket_block_desc: status, count of packets, offset of the first
_status = struct.Struct("=I")
# struct tpacket3_hdr: next, s, ns, bytes here, bytes in all, status, offset of the frame; VLAN tag and type; then of a
# struct sockaddr_ll the kind of packet
_head = struct.Struct("=6IH6xIH20xB")

Seen = tuple[int, int, int, bytes]  # time in ns, sll_pkttype, bytes in all, those that are here


class Ring:
    """Sees what passes the interface `interface` of the namespace `netns` (a descriptor) from now on.

    Not promiscuous: it changes nothing. Raises OSError: EPERM without CAP_NET_RAW, ENODEV for no such interface,
    EAFNOSUPPORT where the kernel has no packet sockets, or none for this kind of interface. `program` makes from the
    link type the instructions of a BPF program that selects packets; without it all are seen.
    """

    def __init__(
        self,
        netns: int,
        interface: str,
        snap_bytes: int,
        buffer_bytes: int,
        program: Callable[[int], bytes] | None = None,
    ) -> None:
        with netlink.inside(netns):
            self._socket, self.link_type = _socket(interface)
            try:
                self._program = None if program is None else program(self.link_type)
            except BaseException:
                self._socket.close()
                raise
        # the largest that fits with the kernel's own header in front of it; a power of two
        self._block_bytes = max(BLOCK_BYTES, 1 << (snap_bytes + 255).bit_length())
        self._blocks = max(buffer_bytes // self._block_bytes, 2)
        self._at = self._seen = self._dropped = 0
        self._memory: mmap.mmap | None = None
        try:
            self._set_up(interface, snap_bytes)
        except OSError:
            self.close()
            raise

    def _set_up(self, interface: str, snap_bytes: int) -> None:
        size = self._blocks * self._block_bytes
        request = (self._block_bytes, self._blocks, SLOT_BYTES, size // SLOT_BYTES, RETIRE_MS, 0, 0)
        self._socket.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V3)
        self._socket.setsockopt(SOL_PACKET, PACKET_RX_RING, struct.pack("7I", *request))
        if self._program is None:
            self._take(snap_bytes)
        else:
            self._attach(self._program)
        self._socket.bind((interface, ETH_P_ALL))  # from here on it sees

    def fileno(self) -> int:
        """A descriptor that becomes readable when a block of the ring is handed over."""
        return self._socket.fileno()

    def close(self) -> None:
        """See no more."""
        self._socket.close()

    def _take(self, size_bytes: int) -> None:
        """Of every packet so many bytes; with 0 there are none, and none is counted."""
        self._attach(struct.pack("HBBI", RETURN, 0, 0, size_bytes))

    def _attach(self, instructions: bytes) -> None:
        """See only what this program selects (struct sock_fprog: count and address of the instructions)."""
        code = ctypes.create_string_buffer(instructions)
        program = struct.pack("HP", len(instructions) // 8, ctypes.addressof(code))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def deafen(self) -> None:
        """See nothing that comes after this."""
        self._take(0)

    def counts(self) -> tuple[int, int]:
        """Packets seen since the beginning, and those of them that found the ring full."""
        report = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 12)  # since it was asked last
        seen, dropped = struct.unpack_from("II", report)
        self._seen, self._dropped = self._seen + seen, self._dropped + dropped
        return self._seen, self._dropped

    def clear_error(self) -> None:
        """Forget that the interface went down: it may come up again."""
        self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def packets(self) -> Iterator[Seen]:
        """What has been handed over since the last call; a block is the kernel's again when its end is reached."""
        if self._memory is None:
            self._memory = mmap.mmap(self.fileno(), self._blocks * self._block_bytes, mmap.MAP_SHARED)
        memory = self._memory
        while True:
            base = self._at * self._block_bytes
            status, count, offset = _block.unpack_from(memory, base)
            if not status & STATUS_USER:
                return
            at = base + offset
            for _ in range(count):
                following, s, ns, here, whole, status, mac, tag, tag_type, kind = _head.unpack_from(
                    memory, at
                )
                data = memory[at + mac : at + mac + here]
                if status & STATUS_VLAN and self.link_type == ETHERNET:
                    tag_type = tag_type if status & STATUS_VLAN_TPID else 0x8100
                    data, whole = data[:12] + struct.pack("!HH", tag_type, tag) + data[12:], whole + 4
                yield s * 1_000_000_000 + ns, kind, whole, data
                at += following
            _status.pack_into(memory, base + 8, 0)
            self._at = (self._at + 1) % self._blocks


def _socket(interface: str) -> tuple[socket.socket, int]:
    """A packet socket that does not see anything yet, bound to an interface of this namespace, and the link type."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    try:
        made.bind((interface, 0))
        kind = made.getsockname()[3]
        if kind in WITH_ETHERNET:
            return made, ETHERNET
        made.close()
        if kind not in WITHOUT_HEADER:
            raise OSError(97, f"its kind of link ({kind}) is not known", interface)
        return socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0), RAW_IP
    except OSError:
        made.close()
        raise
