"""Count packets by class and by conversation, which a few bytes of each packet distinguish.

Decoding every packet would cost more.
"""

from __future__ import annotations

import struct
from ipaddress import ip_address

from labkit.common.packets import ETHERNET, layers
from labkit.system.recording.packet_ring import Block

MAX_CONVERSATIONS, MAX_CLASSES = 4096, 64
OTHERS = "others"  # the row of what came when the table was full
_VLAN = (b"\x81\x00", b"\x88\xa8")
_IP, _IP6 = b"\x08\x00", b"\x86\xdd"
_PLAIN_IP = _IP + b"\x45"  # IPv4 without options
# From the ethertype on: it and IPv4's first byte, the protocol, the addresses.
_plain_ip = struct.Struct("3s8xc2x8s")
Key = tuple[bytes, bytes, bytes]
_KEY_END = 54  # of an Ethernet frame: behind the addresses of IPv6, and behind those of IPv4
_ADDRESS_BYTES = (4, 16)  # IPv4, IPv6
_PORTS = (b"\x06", b"\x11", b"\x84")  # TCP, UDP, SCTP


def identify(data: bytes, link_type: int) -> tuple[bytes, bytes, bytes]:
    """Return the class of a packet (ethertype and IP protocol), its addresses and its ports, as bytes of the packet.

    Of a truncated packet they may be shorter. In a tunnel they are those of the outer headers.
    """
    if link_type == ETHERNET:
        kind, at = data[12:14], 14
        while kind in _VLAN:
            kind, at = data[at + 2 : at + 4], at + 4
    else:
        kind, at = (_IP if data[:1] < b"\x50" else _IP6), 0
    if kind == _IP:
        protocol = data[at + 9 : at + 10]
        begin = at + 4 * ((data[at] & 15) if len(data) > at else 5)
        addresses = data[at + 12 : at + 20]
    elif kind == _IP6:
        protocol, addresses, begin = data[at + 6 : at + 7], data[at + 8 : at + 40], at + 40
    else:
        return kind, b"", b""
    return kind + protocol, addresses, data[begin : begin + 4] if protocol in _PORTS else b""


class Totals:
    """Packets and bytes by class and by conversation, in tables of bounded size."""

    def __init__(self) -> None:
        # Packets of known conversations by protocol and addresses, which are added to the other tables on demand.
        self._known: dict[Key, list[int]] = {}
        self._classes: dict[str, list[int]] = {}
        self._names: dict[bytes, str] = {}
        self._conversations: dict[tuple[bytes, bytes], list[int]] = {}

    def add(self, kind: bytes, addresses: bytes, length_bytes: int, data: bytes, link_type: int) -> None:
        """Count a packet."""
        if kind not in self._names:
            self._name(kind, data, link_type)
        self._count(kind, addresses, 1, length_bytes)

    def add_block(self, block: Block) -> None:
        """Count the packets of a block. Ordinary IP packets of a known conversation take one look-up each."""
        data, known, fields = block.data, self._known, _plain_ip.unpack_from
        rest: list[int] = []
        for number, (begin, end, length_bytes, is_tagged) in enumerate(block.places()):
            row = None
            if begin + _KEY_END <= end and not is_tagged:
                key: Key = fields(data, begin + 12)
                row = known.get(key)
                if row is None and key[0][:2] == _IP6:
                    row = known.get((_IP6, data[begin + 20 : begin + 21], data[begin + 22 : begin + 54]))
            if row is None:
                rest.append(number)
                continue
            row[0] += 1
            row[1] += length_bytes
        if rest:
            self._add_rest(block, rest)

    def _add_rest(self, block: Block, rest: list[int]) -> None:
        """Count these packets of a block one by one, and remember their conversations."""
        wanted = set(rest)
        for number, (_time_ns, _kind, length_bytes, data) in enumerate(block.packets()):
            if number not in wanted:
                continue
            kind, addresses, _ports = identify(data, block.link_type)
            self.add(kind, addresses, length_bytes, data, block.link_type)
            is_plain = block.link_type == ETHERNET and len(kind) == 3 and len(addresses) in (8, 32)
            if is_plain and len(self._known) < MAX_CONVERSATIONS:
                head = _IP6 if kind[:2] == _IP6 else _PLAIN_IP
                self._known.setdefault((head, kind[2:], addresses), [0, 0])

    def _settle(self) -> None:
        """Add what was counted by block to the other tables."""
        for key, (count, length_bytes) in self._known.items():
            if count:
                self._count(key[0][:2] + key[1], key[2], count, length_bytes)
                self._known[key] = [0, 0]

    def _count(self, kind: bytes, addresses: bytes, count: int, length_bytes: int) -> None:
        row = self._classes.setdefault(self._label(kind), [0, 0])
        row[0] += count
        row[1] += length_bytes
        key = (kind, addresses)
        conversation = self._conversations.get(key)
        if conversation is None:
            if len(self._conversations) >= MAX_CONVERSATIONS:
                key = (b"", b"")
            conversation = self._conversations.setdefault(key, [0, 0])
        conversation[0] += count
        conversation[1] += length_bytes

    def _name(self, kind: bytes, data: bytes, link_type: int) -> None:
        """Name a class: the innermost header that the decoder knows, of the first packet of this class."""
        if len(self._names) < MAX_CLASSES:
            self._names[kind] = _protocol_class(data, link_type)

    def classes(self) -> dict[str, list[int]]:
        """Return packets and bytes by the name of the class."""
        self._settle()
        return self._classes

    def conversations(self, limit: int) -> list[tuple[str, str, str, int, int]]:
        """Return the `limit` conversations with the most bytes: class, source, destination, packets, bytes."""
        self._settle()
        rows = sorted(self._conversations.items(), key=lambda one: one[1][1], reverse=True)[:limit]
        result = []
        for (kind, addresses), (count, length_bytes) in rows:
            source, destination = _ends(addresses)
            result.append((self._label(kind), source, destination, count, length_bytes))
        return result

    def talkers(self, limit: int) -> list[tuple[str, int, int, int, int]]:
        """The hosts with the most bytes: address, packets and bytes sent, packets and bytes received.

        Packets without addresses are of no host, and neither are those of conversations beyond the table.
        """
        self._settle()
        hosts: dict[bytes, list[int]] = {}
        for (_kind, addresses), (count, length_bytes) in self._conversations.items():
            half = len(addresses) // 2
            if half not in _ADDRESS_BYTES or len(addresses) % 2:
                continue
            for at, address in ((0, addresses[:half]), (2, addresses[half:])):
                row = hosts.setdefault(address, [0, 0, 0, 0])
                row[at] += count
                row[at + 1] += length_bytes
        rows = sorted(hosts.items(), key=lambda one: one[1][1] + one[1][3], reverse=True)[:limit]
        return [(str(ip_address(host)), row[0], row[1], row[2], row[3]) for host, row in rows]

    def _label(self, kind: bytes) -> str:
        return self._names.get(kind, OTHERS)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._classes.clear()
        self._conversations.clear()


def _protocol_class(data: bytes, link_type: int) -> str:
    names = [layer.name for layer in layers(data, link_type, {})]
    known = [name for name in names if name not in ("ethernet", "802.1q", "unknown", "cut")]
    if known in (["ip"], ["ip6"]):
        return f"{known[0]} {layers(data, link_type, {})[-1].text}" if names[-1] == "unknown" else known[0]
    return known[-1] if known else "other"


def _ends(addresses: bytes) -> tuple[str, str]:
    half = len(addresses) // 2
    if half not in _ADDRESS_BYTES or len(addresses) % 2:
        return "", ""
    return str(ip_address(addresses[:half])), str(ip_address(addresses[half:]))
