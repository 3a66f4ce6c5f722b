"""What each kind of tunnel adds to a packet, header by header: sizes in bytes, and where they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from labkit.common import packets
from labkit.common.errors import BadInput


class Header(NamedTuple):
    """A header: its name as it stands in a drawing of a packet, its size, and what says so."""

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

# The headers of each kind between the outer IP header and the inner packet, from the outside in; those of a kind that
# is two tunnels, one in the other, have the IP header between the two here as well. Their own inner packet begins with
# an IP header, that of ipip too.
HEADERS: dict[str, tuple[Header, ...]] = {
    "vxlan": (UDP, VXLAN, ETHERNET),
    "geneve": (UDP, GENEVE, ETHERNET),
    "gre": (GRE,),
    "gretap": (GRE, ETHERNET),
    "ipip": (),
    "vxlan_gre": (GRE, IPV4, UDP, VXLAN, ETHERNET),
}

LAYER_2 = ("vxlan", "geneve", "gretap")  # these carry frames, and can be ports of a bridge
PORTS = {kind: port for port, kind in packets.PORTS.items()}  # of those in UDP


def headers(kind: str, family: int = 4, key: bool = False) -> tuple[Header, ...]:
    """All headers that a tunnel of this kind puts before a packet, from the outside in, the outer IP header of this
    family first. `key`: a GRE key is there. Raises BadInput for an unknown kind."""
    if kind not in HEADERS:
        raise BadInput(f"there is no kind of tunnel {kind}; there are {', '.join(HEADERS)}")
    result: list[Header] = [IP[family]]
    for header in HEADERS[kind]:
        result += [header, GRE_KEY] if key and header is GRE else [header]
    return tuple(result)


def overhead_bytes(kind: str, family: int = 4, key: bool = False) -> int:
    """What a tunnel of this kind adds: its MTU is by so many bytes smaller than that of its way."""
    return length_bytes(headers(kind, family, key))


def length_bytes(added: Sequence[Header]) -> int:
    """The size of these headers together."""
    return sum(header.length_bytes for header in added)


def arithmetic(mtu_bytes: int, at: str, added: Sequence[Header]) -> str:
    """What is left of the MTU of the interface `at` inside these headers, as an equation:
    `1500 (lc1_sc2) - 20 (IPv4) - 4 (GRE) = 1476`."""
    terms = [f"{mtu_bytes} ({at})", *(f"{header.length_bytes} ({header.name})" for header in added)]
    return f"{' - '.join(terms)} = {mtu_bytes - length_bytes(added)}"
