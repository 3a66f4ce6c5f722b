"""A packet socket at one interface, with a ring that the kernel fills (TPACKET_V3).

Sources: packet(7), linux/if_packet.h, Documentation/networking/packet_mmap.rst. The ring needs no privilege for its
size. The kernel stores the packet's own timestamp if it has one, else the time when this socket saw the packet
(tpacket_get_timestamp, net/packet/af_packet.c). Packets carry a timestamp only while a program requests timestamps, as
ping does, and lose it when they are forwarded or change the namespace. Until then all interfaces show the same time,
and a decapsulation within one namespace seems to take no time.
"""

import ctypes
import mmap
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from labkit.common.packets import ETHERNET, RAW_IP
from labkit.system import netlink

SOL_PACKET, SO_ATTACH_FILTER = 263, 26
PACKET_RX_RING, PACKET_STATISTICS, PACKET_VERSION, TPACKET_V3 = 5, 6, 10, 2
ETH_P_ALL = 3
RETURN = 0x06  # BPF_RET | BPF_K: keep this many bytes of every packet
STATUS_USER, STATUS_VLAN, STATUS_VLAN_TPID = 1, 1 << 4, 1 << 6
# linux/if_arp.h: Ethernet and loopback have an Ethernet header; ipip, ip6tnl, sit, gre, ip6gre and tun have none.
WITH_ETHERNET = (1, 772)
WITHOUT_HEADER = (768, 769, 776, 778, 823, 65534)

BLOCK_BYTES = 1 << 16
OUTGOING = 4  # sll_pkttype; 0 is to us, 1 broadcast, 2 multicast, 3 to another
SLOT_BYTES = 256  # the kernel requires a slot size, but packs packets anyway
RETIRE_MS = 20  # the kernel hands over an unfilled block after this time

# struct tpacket_block_desc: status, count of packets, offset of the first, bytes in use
_block = struct.Struct("=8xIIII")
_status = struct.Struct("=I")
# struct tpacket3_hdr: next, s, ns, captured bytes, original bytes, status, frame offset, VLAN tag and type; then the
# packet type of a struct sockaddr_ll
_head = struct.Struct("=6IH6xIH20xB")

_short = struct.Struct("=I8xIIIH")  # of the same: next, captured bytes, original bytes, status, frame offset

RingPacket = tuple[int, int, int, bytes]  # time in ns, sll_pkttype, original length in bytes, captured bytes


@dataclass(frozen=True, slots=True)
class Block:
    """A copy of a block of the ring, as the kernel filled it. `count` packets; the first is at offset `first`."""

    data: bytes
    count: int
    first: int
    link_type: int

    def packets(self) -> Iterator[RingPacket]:
        """Yield its packets, with the VLAN tags that the kernel keeps beside them."""
        data, at = self.data, self.first
        for _ in range(self.count):
            following, s, ns, here, whole, status, mac, tag, tag_type, kind = _head.unpack_from(data, at)
            packet = data[at + mac : at + mac + here]
            if status & STATUS_VLAN and self.link_type == ETHERNET:
                tag_type = tag_type if status & STATUS_VLAN_TPID else 0x8100
                packet, whole = packet[:12] + struct.pack("!HH", tag_type, tag) + packet[12:], whole + 4
            yield s * 1_000_000_000 + ns, kind, whole, packet
            at += following

    def places(self) -> Iterator[tuple[int, int, int, bool]]:
        """Yield where each packet is, which costs less than `packets`: begin and end in `data`, original length, and
        whether a VLAN tag is kept beside it."""
        data, at = self.data, self.first
        for _ in range(self.count):
            following, here, whole, status, mac = _short.unpack_from(data, at)
            yield at + mac, at + mac + here, whole, status & STATUS_VLAN != 0
            at += following


class Ring:
    """Captures what passes `interface` in the namespace `netns` (a file descriptor), without promiscuous mode.

    Raises OSError: EPERM without CAP_NET_RAW, ENODEV for an unknown interface, EAFNOSUPPORT if the kernel has no
    packet sockets or none for this kind of interface. `program` returns, for a link type, the instructions of a BPF
    program that selects packets; without it all packets are captured.
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
        # the largest packet with the kernel's header must fit; a power of two
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
            attach(self._socket, self._program)
        self._socket.bind((interface, ETH_P_ALL))  # capturing starts here

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the kernel hands over a block."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _take(self, size_bytes: int) -> None:
        """Keep this many bytes of every packet; with 0, packets are neither captured nor counted."""
        attach(self._socket, struct.pack("HBBI", RETURN, 0, 0, size_bytes))

    def stop_receiving(self) -> None:
        """Ignore packets from now on."""
        self._take(0)

    def counts(self) -> tuple[int, int]:
        """Return the packets seen since the start, and those of them that did not fit into the ring."""
        # counts since the previous call
        statistics = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 12)
        seen, dropped = struct.unpack_from("II", statistics)
        self._seen, self._dropped = self._seen + seen, self._dropped + dropped
        return self._seen, self._dropped

    def clear_error(self) -> None:
        """Clear the error after the interface went down; it may come up again."""
        self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks handed over since the last call; each returns to the kernel as soon as it is copied."""
        if self._memory is None:
            self._memory = mmap.mmap(self.fileno(), self._blocks * self._block_bytes, mmap.MAP_SHARED)
        memory = self._memory
        while True:
            base = self._at * self._block_bytes
            status, count, offset, used_bytes = _block.unpack_from(memory, base)
            if not status & STATUS_USER:
                return
            copied = Block(memory[base : base + used_bytes], count, offset, self.link_type)
            _status.pack_into(memory, base + 8, 0)
            self._at = (self._at + 1) % self._blocks
            yield copied

    def packets(self) -> Iterator[RingPacket]:
        """Yield the packets handed over since the last call."""
        for block in self.blocks():
            yield from block.packets()


def attach(packet_socket: socket.socket, instructions: bytes) -> None:
    """Let a packet socket receive only what a BPF program selects (struct sock_fprog: count and address of the
    instructions)."""
    code = ctypes.create_string_buffer(instructions)
    program = struct.pack("HP", len(instructions) // 8, ctypes.addressof(code))
    packet_socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def _socket(interface: str) -> tuple[socket.socket, int]:
    """Return an inactive packet socket for an interface of this namespace, and its link type."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    try:
        made.bind((interface, 0))
        kind = made.getsockname()[3]
        if kind in WITH_ETHERNET:
            return made, ETHERNET
        made.close()
        if kind not in WITHOUT_HEADER:
            raise OSError(97, f"its link type ({kind}) is not supported", interface)
        return socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0), RAW_IP
    except OSError:
        made.close()
        raise
