"""Build frames byte by byte from the headers' definitions, for the tests of their readers."""

from __future__ import annotations

import struct
from ipaddress import ip_address

MACS = bytes(range(12))
PAYLOAD = bytes(range(56))
PORTS = {4900: "vxlan", 6081: "geneve"}


def ethernet(inner: bytes, kind: int = 0x0800) -> bytes:
    return MACS + struct.pack("!H", kind) + inner


def ip(
    inner: bytes,
    ends: str,
    protocol: int,
    *,
    ttl: int = 64,
    place: int = 0,
    options: bytes = b"",
    number: int = 9,
) -> bytes:
    source, target = (ip_address(end).packed for end in ends.split(" > "))
    total = 20 + len(options) + len(inner)
    first = 0x45 + len(options) // 4
    head = struct.pack("!BBHHHBBH", first, 0, total, number, place, ttl, protocol, 0)
    return head + source + target + options + inner


def ip6(inner: bytes, ends: str, following: int) -> bytes:
    source, target = (ip_address(end).packed for end in ends.split(" > "))
    return struct.pack("!IHBB", 6 << 28, len(inner), following, 64) + source + target + inner


def echo(kind: int = 8, sequence: int = 1, payload: bytes = PAYLOAD) -> bytes:
    return struct.pack("!BBHHH", kind, 0, 0xAAAA, 3, sequence) + payload


def udp(inner: bytes, target: int, source: int = 40809) -> bytes:
    return struct.pack("!HHHH", source, target, 8 + len(inner), 0) + inner


def tcp(payload: bytes, options: bytes = b"") -> bytes:
    return (
        struct.pack("!HHIIBBHHH", 40000, 5201, 1, 2, (5 + len(options) // 4) << 4, 16, 0, 0, 0)
        + options
        + payload
    )


def vxlan(inner: bytes, vni: int = 30) -> bytes:
    return struct.pack("!II", 0x08000000, vni << 8) + inner


def geneve(inner: bytes, kind: int = 0x6558, options: bytes = b"") -> bytes:
    return struct.pack("!BBHI", len(options) // 4, 0, kind, 77 << 8) + options + inner


def gre(inner: bytes, kind: int, **fields: int) -> bytes:
    """Build a GRE header. `checksum`, `key` and `sequence` have this order on the wire."""
    bits = {"checksum": 0x8000, "key": 0x2000, "sequence": 0x1000}
    flags = sum(bits[name] for name in fields)
    words = [value << 16 * (name == "checksum") for name, value in fields.items()]
    return struct.pack(f"!HH{len(words)}I", flags, kind, *words) + inner


def ones_sum(data: bytes) -> int:
    """Return the RFC 1071 sum over data that includes its checksum: 0xffff if that is right."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


INNER = ethernet(ip(echo(), "20.0.0.1 > 20.0.0.3", 1))
SEED = ethernet(
    ip(gre(ip(udp(vxlan(INNER), 4900), "21.0.0.1 > 23.0.0.1", 17), 0x0800), "26.0.0.2 > 28.0.0.2", 47)
)
V6 = "fd00::1 > fd00::2"
ARP = (
    struct.pack("!HHHH", 1, 0x0800, 0x0604, 1)
    + MACS[:6]
    + bytes((21, 0, 0, 2))
    + bytes(6)
    + bytes((21, 0, 0, 1))
)
