"""The headers that each kind of tunnel adds to a packet: sizes in bytes and sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from labkit.common import packets
from labkit.common.errors import BadInput


class Header(NamedTuple):
    """A header: its name in drawings, its size, and the source that defines it."""

    name: str
    length_bytes: int
    source: str


ETHERNET = Header("Ethernet", 14, "IEEE 802.3: two addresses and a type; no VLAN tag, no check sequence")
IPV4 = Header("IPv4", 20, "RFC 791, without options")
IPV6 = Header("IPv6", 40, "RFC 8200, without extension headers")
UDP = Header("UDP", 8, "RFC 768")
VXLAN = Header("VXLAN", 8, "RFC 7348, section 5")
GENEVE = Header("Geneve", 8, "RFC 8926, section 3.4, without options")
GRE = Header("GRE", 4, "RFC 2784, without checksum")
GRE_KEY = Header("GRE key", 4, "RFC 2890")
IP = {4: IPV4, 6: IPV6}

# The headers of each kind between the outer IP header and the inner packet, from the outside in. A kind that consists
# of two nested tunnels includes the IP header between them. The inner packet starts with an IP header, also for ipip.
HEADERS: dict[str, tuple[Header, ...]] = {
    "vxlan": (UDP, VXLAN, ETHERNET),
    "geneve": (UDP, GENEVE, ETHERNET),
    "gre": (GRE,),
    "gretap": (GRE, ETHERNET),
    "ipip": (),
    "vxlan_gre": (GRE, IPV4, UDP, VXLAN, ETHERNET),
}

IN_UDP = tuple(kind for kind, added in HEADERS.items() if added[:1] == (UDP,))
LAYER_2 = ("vxlan", "geneve", "gretap")  # these carry frames and can be bridge ports
PORTS = {kind: port for port, kind in packets.PORTS.items()}  # of the kinds in UDP


def headers(kind: str, family: int = 4, key: bool = False) -> tuple[Header, ...]:
    """Return all headers that a tunnel puts before a packet, from the outside in, the outer IP header first.

    `key`: with a GRE key. Raises BadInput for an unknown kind.
    """
    if kind not in HEADERS:
        raise BadInput(f"{kind} is not a kind of tunnel: choose {', '.join(HEADERS)}")
    result: list[Header] = [IP[family]]
    for header in HEADERS[kind]:
        result += [header, GRE_KEY] if key and header is GRE else [header]
    return tuple(result)


def overhead_bytes(kind: str, family: int = 4, key: bool = False) -> int:
    """Return the bytes that a tunnel of this kind adds. Its MTU is smaller than its path's by this number."""
    return length_bytes(headers(kind, family, key))


def length_bytes(added: Sequence[Header]) -> int:
    """Return the total size of these headers."""
    return sum(header.length_bytes for header in added)


def arithmetic(mtu_bytes: int, at: str, added: Sequence[Header]) -> str:
    """Write what is left of the MTU of interface `at` as an equation: `1500 (lc1_sc2) - 20 (IPv4) - 4 (GRE) =
    1476`."""
    terms = [f"{mtu_bytes} ({at})", *(f"{header.length_bytes} ({header.name})" for header in added)]
    return f"{' - '.join(terms)} = {mtu_bytes - length_bytes(added)}"
