"""Count packets by class and by conversation, which a few bytes of each packet distinguish.

Decoding every packet would cost more.
"""

import struct
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address

from labkit.common.packets import ETHERNET, layers
from labkit.common.packets.headers import AH, IP6_FRAGMENT, PORTS, PROTOCOLS, behind_extensions
from labkit.system.recording.packet_ring import Block

MAX_CONVERSATIONS, MAX_CLASSES = 4096, 64
OTHERS = "others"  # the row of what came when the table was full
_VLAN = (b"\x81\x00", b"\x88\xa8", b"\x91\x00")
_IP, _IP6 = b"\x08\x00", b"\x86\xdd"
UDP, GRE, MAX_TUNNELS = 17, 47, 8
_BRIDGED = b"\x65\x58"  # an Ethernet frame in GRE (RFC 1701) or Geneve
_TUNNELS = {4: _IP, 41: _IP6, GRE: b""}  # what the protocol carries; the header of GRE says it
_PLAIN_IP = _IP + b"\x45"  # IPv4 without options
# From the ethertype on: it and IPv4's first byte, the protocol, the addresses, the destination port.
_plain_ip = struct.Struct("3s8xc2x8s2x2s")
Key = tuple[bytes, bytes, bytes]
_KEY_END = 54  # of an Ethernet frame: behind the addresses of IPv6, and behind those of IPv4
_ADDRESS_BYTES = (4, 16)  # IPv4, IPv6
_WITH_PORTS = (6, 17, 132)  # TCP, UDP, SCTP
# Protocols that name the class of a packet, because they carry no other packet (UDP only at the ports of tunnels).
_LAST = {number: name for number, name in PROTOCOLS.items() if name in ("icmp", "icmp6", "tcp", "udp")}


def identify(
    data: bytes, link_type: int, tunnel_ports: Mapping[int, str] = PORTS
) -> tuple[str, bytes, bytes]:
    """Return the class of a packet (its innermost protocol), its outer addresses, and its outer ports as bytes.

    Of a truncated packet addresses and ports may be shorter. No fragment has ports, so all are of one flow.
    tunnel_ports: the UDP ports of vxlan and geneve.
    """
    if link_type == ETHERNET:
        kind, at = _behind_ethernet(data, 0)
    else:
        kind, at = (_IP if data[:1] < b"\x50" else _IP6), 0
    outer = _ip_header(data, kind, at)
    if outer is None:
        return _protocol_class(data, link_type, tunnel_ports), b"", b""
    protocol, addresses, begin, is_fragment = outer
    name = _innermost(data, protocol, begin, is_fragment, tunnel_ports)
    name = name or _protocol_class(data, link_type, tunnel_ports)
    has_ports = protocol in _WITH_PORTS and not is_fragment
    return name, addresses, data[begin : begin + 4] if has_ports else b""


def _innermost(
    data: bytes, protocol: int, begin: int, is_fragment: bool, tunnel_ports: Mapping[int, str]
) -> str | None:
    """Return the class behind tunnels, without decoding (35 µs a packet); None if that has to decide."""
    for _depth in range(MAX_TUNNELS):
        tunnel = None
        if protocol == UDP and not is_fragment:
            tunnel = tunnel_ports.get(int.from_bytes(data[begin + 2 : begin + 4]))
        if tunnel is None and (name := _LAST.get(protocol)) is not None:
            return name
        if is_fragment or (tunnel is None and protocol not in _TUNNELS):
            return None
        if tunnel is not None:
            carried = _in_udp_tunnel(data, begin + 8, tunnel)
        else:
            carried = _in_gre(data, begin) if protocol == GRE else (_TUNNELS[protocol], begin)
        inner = None if carried is None else _ip_header(data, *carried)
        if inner is None:
            return None
        protocol, _addresses, begin, is_fragment = inner
    return None


def _in_gre(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the type of what GRE carries and where that begins; None for forms that the decoder has to judge."""
    if len(data) < at + 4 or data[at] & 0x40 or data[at + 1] & 7:
        return None
    # RFC 2784, RFC 2890: a word each for the checksum, the key and the sequence number
    kind, begin = data[at + 2 : at + 4], at + 4 + 4 * (data[at] & 0xB0).bit_count()
    return _behind_ethernet(data, begin) if kind == _BRIDGED else (kind, begin)


def _in_udp_tunnel(data: bytes, at: int, tunnel: str) -> tuple[bytes, int] | None:
    """Return the same of VXLAN (RFC 7348) or Geneve (RFC 8926), whose header begins at `at`."""
    if len(data) < at + 8:
        return None
    if tunnel == "vxlan":
        return _behind_ethernet(data, at + 8) if data[at] & 8 else None
    kind, begin = data[at + 2 : at + 4], at + 8 + 4 * (data[at] & 0x3F)
    if data[at] >> 6:
        return None
    return _behind_ethernet(data, begin) if kind == _BRIDGED else (kind, begin)


def _behind_ethernet(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the type of what an Ethernet frame carries, behind its VLAN tags, and where that begins."""
    kind, at = data[at + 12 : at + 14], at + 14
    while kind in _VLAN:
        kind, at = data[at + 2 : at + 4], at + 4
    return kind, at


def _ip_header(data: bytes, kind: bytes, at: int) -> tuple[int, bytes, int, bool] | None:
    """Return the protocol (-1: cut off), the addresses, where the content begins, and whether it is a fragment's."""
    version = data[at] >> 4 if len(data) > at else 0
    if kind == _IP and version == 4:
        protocol = data[at + 9] if len(data) > at + 9 else -1
        begin = at + 4 * (data[at] & 15)
        addresses = data[at + 12 : at + 20]
        is_fragment = int.from_bytes(data[at + 6 : at + 8]) & 0x3FFF != 0
    elif kind == _IP6 and version == 6:
        protocol = data[at + 6] if len(data) > at + 6 else -1
        addresses, begin = data[at + 8 : at + 40], at + 40
        if protocol not in _WITH_PORTS:
            with suppress(struct.error):
                protocol, begin = behind_extensions(data, protocol, begin)
        is_fragment = protocol == IP6_FRAGMENT
        if is_fragment:
            protocol = data[begin] if len(data) > begin else -1
    else:
        return None
    if protocol == AH and not is_fragment:
        with suppress(struct.error):
            protocol, begin = behind_extensions(data, protocol, begin)
    return protocol, addresses, begin, is_fragment


class Totals:
    """Packets and bytes by class and by conversation, in tables of bounded size."""

    def __init__(self, tunnel_ports: Mapping[int, str] = PORTS) -> None:
        self._tunnel_ports = tunnel_ports
        self._tunnels = {port.to_bytes(2) for port in tunnel_ports}
        # Packets of known conversations by protocol and addresses, which are added to the other tables on demand.
        self._known: dict[Key, list[int]] = {}
        self._classes: dict[str, list[int]] = {}
        self._conversations: dict[tuple[str, bytes], list[int]] = {}

    def add(self, name: str, addresses: bytes, count: int, length_bytes: int) -> None:
        if name not in self._classes and len(self._classes) >= MAX_CLASSES:
            name = OTHERS
        key = (name, addresses)
        if key not in self._conversations and len(self._conversations) >= MAX_CONVERSATIONS:
            key = (OTHERS, b"")
        for row in (self._classes.setdefault(name, [0, 0]), self._conversations.setdefault(key, [0, 0])):
            row[0] += count
            row[1] += length_bytes

    def add_block(self, block: Block) -> None:
        """Count the packets of a block. Ordinary IP packets of a known conversation take one look-up each."""
        data, known, fields, tunnels = block.data, self._known, _plain_ip.unpack_from, self._tunnels
        rest: list[int] = []
        for number, (begin, end, length_bytes, is_tagged) in enumerate(block.places()):
            row = None
            if begin + _KEY_END <= end and not is_tagged:
                head, protocol, addresses, port = fields(data, begin + 12)
                if head[:2] == _IP6 and head[2] >> 4 == 6:
                    head, protocol, addresses = (
                        _IP6,
                        data[begin + 20 : begin + 21],
                        data[begin + 22 : begin + 54],
                    )
                    port = data[begin + 56 : begin + 58]
                if port not in tunnels:  # what a tunnel carries has another class
                    row = known.get((head, protocol, addresses))
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
            name, addresses, ports = identify(data, block.link_type, self._tunnel_ports)
            self.add(name, addresses, 1, length_bytes)
            head, at = (_IP6, 20) if data[12:14] == _IP6 else (_PLAIN_IP, 23)
            is_plain = (
                block.link_type == ETHERNET and data[12:].startswith(head) and len(addresses) in (8, 32)
            )
            is_plain = is_plain and data[at] in _LAST and ports[2:] not in self._tunnels
            if is_plain and len(self._known) < MAX_CONVERSATIONS:
                self._known.setdefault((head, data[at : at + 1], addresses), [0, 0])

    def _settle(self) -> None:
        """Add what was counted by block to the other tables."""
        for key, (count, length_bytes) in self._known.items():
            if count:
                self.add(_LAST[key[1][0]], key[2], count, length_bytes)
                self._known[key] = [0, 0]

    def classes(self) -> dict[str, list[int]]:
        """Return packets and bytes by the name of the class."""
        self._settle()
        return self._classes

    def conversations(self, limit: int) -> list[tuple[str, str, str, int, int]]:
        """Return the `limit` conversations with the most bytes: class, source, destination, packets, bytes."""
        self._settle()
        rows = sorted(self._conversations.items(), key=lambda one: one[1][1], reverse=True)[:limit]
        result = []
        for (name, addresses), (count, length_bytes) in rows:
            source, destination = [str(ip_address(one)) for one in _ends(addresses)] or ("", "")
            result.append((name, source, destination, count, length_bytes))
        return result

    def talkers(self, limit: int) -> list[tuple[str, int, int, int, int]]:
        """The hosts with the most bytes: address, packets and bytes sent, packets and bytes received.

        Packets without addresses are of no host, and neither are those of conversations beyond the table.
        """
        self._settle()
        hosts: dict[bytes, list[int]] = {}
        for (_name, addresses), (count, length_bytes) in self._conversations.items():
            for at, address in zip((0, 2), _ends(addresses), strict=False):
                row = hosts.setdefault(address, [0, 0, 0, 0])
                row[at] += count
                row[at + 1] += length_bytes
        rows = sorted(hosts.items(), key=lambda one: one[1][1] + one[1][3], reverse=True)[:limit]
        return [(str(ip_address(host)), row[0], row[1], row[2], row[3]) for host, row in rows]

    def clear(self) -> None:
        self._known.clear()
        self._classes.clear()
        self._conversations.clear()


def _protocol_class(data: bytes, link_type: int, tunnel_ports: Mapping[int, str] = PORTS) -> str:
    """Return the name of the innermost header that the decoder knows; of a later fragment, that of its protocol."""
    decoded = layers(data, link_type, tunnel_ports)
    known = [one for one in decoded if one.name not in ("ethernet", "802.1q", "unknown", "cut")]
    if not known:
        return "other"
    last = known[-1]
    if last.fields.get("offset"):
        return PROTOCOLS.get(int(last.fields["protocol"]), last.name)
    return (
        f"{last.name} {decoded[-1].text}"
        if last.name in ("ip", "ip6", "ah") and decoded[-1].name == "unknown"
        else last.name
    )


def _ends(addresses: bytes) -> list[bytes]:
    """Return the source and the destination; nothing of a truncated packet."""
    half = len(addresses) // 2
    return [addresses[:half], addresses[half:]] if half in _ADDRESS_BYTES and len(addresses) % 2 == 0 else []
