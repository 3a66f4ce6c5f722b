"""Packets by class and by conversation, told apart by a few bytes of each: decoding every packet would cost more."""

from __future__ import annotations

from ipaddress import ip_address

from labkit.common.packets import ETHERNET, layers

MOST_CONVERSATIONS, MOST_CLASSES = 4096, 64
OTHERS = "others"  # the row of what came when the table was full
_VLAN = (b"\x81\x00", b"\x88\xa8")
_IP, _IP6 = b"\x08\x00", b"\x86\xdd"
_PORTS = (b"\x06", b"\x11", b"\x84")  # TCP, UDP, SCTP


def identify(data: bytes, link_type: int) -> tuple[bytes, bytes, bytes]:
    """The class of a packet (ethertype and IP protocol), its addresses, and its ports; all as bytes of the packet. What
    is cut off is shorter. Of a packet inside a tunnel these are the outer ones."""
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
        self._classes: dict[str, list[int]] = {}
        self._names: dict[bytes, str] = {}
        self._conversations: dict[tuple[bytes, bytes], list[int]] = {}

    def add(self, kind: bytes, addresses: bytes, length_bytes: int, data: bytes, link_type: int) -> None:
        """Count a packet."""
        name = self._names.get(kind) or self._name(kind, data, link_type)
        row = self._classes.setdefault(name, [0, 0])
        row[0] += 1
        row[1] += length_bytes
        key = (kind, addresses)
        conversation = self._conversations.get(key)
        if conversation is None:
            if len(self._conversations) >= MOST_CONVERSATIONS:
                key = (b"", b"")
            conversation = self._conversations.setdefault(key, [0, 0])
        conversation[0] += 1
        conversation[1] += length_bytes

    def _name(self, kind: bytes, data: bytes, link_type: int) -> str:
        """The name of a class: the innermost header that the decoder knows, of the first packet of this class."""
        if len(self._names) >= MOST_CLASSES:
            return OTHERS
        name = _class_of(data, link_type)
        self._names[kind] = name
        return name

    def classes(self) -> dict[str, list[int]]:
        """Packets and bytes by the name of the class."""
        return self._classes

    def conversations(self, most: int) -> list[tuple[str, str, str, int, int]]:
        """The conversations with the most bytes: class, source, destination, packets, bytes."""
        rows = sorted(self._conversations.items(), key=lambda one: one[1][1], reverse=True)[:most]
        result = []
        for (kind, addresses), (count, length_bytes) in rows:
            source, destination = _ends(addresses)
            result.append((self._label(kind), source, destination, count, length_bytes))
        return result

    def _label(self, kind: bytes) -> str:
        return self._names.get(kind, OTHERS)

    def clear(self) -> None:
        """Forget everything."""
        self._classes.clear()
        self._conversations.clear()


def _class_of(data: bytes, link_type: int) -> str:
    names = [layer.name for layer in layers(data, link_type, {})]
    known = [name for name in names if name not in ("ethernet", "802.1q", "unknown", "cut")]
    if known in (["ip"], ["ip6"]):
        return f"{known[0]} {layers(data, link_type, {})[-1].text}" if names[-1] == "unknown" else known[0]
    return known[-1] if known else "other"


def _ends(addresses: bytes) -> tuple[str, str]:
    half = len(addresses) // 2
    if half not in (4, 16) or len(addresses) % 2:
        return "", ""
    return str(ip_address(addresses[:half])), str(ip_address(addresses[half:]))
