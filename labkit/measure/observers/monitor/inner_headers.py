"""Filters on the IP packet inside a tunnel, in libpcap's syntax, whose own words are about the outer headers.

A tunnel's packets have several forms: the outer header is IPv4 or IPv6, the inner one too, and GRE carries IP or
Ethernet. A form says which bytes of the packet distinguish it, and where its inner IP header begins, which the packet
itself may say (options of Geneve, key and sequence number of GRE). Linux puts 8 bytes of destination options before GRE
and IP in IPv6 by default (encaplimit, RFC 2473); these are recognized. Not recognized are other outer extension headers
and options (with them the programs would be larger than net.core.optmem_max, 20 kB before Linux 6.12, allows), two VLAN
tags inside, and ports behind inner options or extension headers.

Arithmetic is used for the length of Geneve's options only: the optimizer of libpcap 1.10.3 makes programs of longer
arithmetic that the kernel refuses.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from itertools import product

from labkit.common.errors import BadInput
from labkit.common.packets import PORTS

ETHERTYPES = {4: "0x0800", 6: "0x86dd"}
TAGS = ("0x8100", "0x88a8")  # IEEE 802.1Q, 802.1ad
TRANSPARENT_ETHERNET = "0x6558"  # GRE's and Geneve's protocol type of Ethernet
UDP_BYTES, TUNNEL_BYTES = 8, 8  # the second of VXLAN, and of Geneve without options
PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "gre": 47, "icmp6": 58, "sctp": 132}
VERSIONS = {"ip": 4, "ip6": 6}  # words for a protocol that say the version of IP
WITH_PORTS = ("tcp", "udp", "sctp")
DESTINATION_OPTIONS = 60  # RFC 8200: the next header, then the length beyond 8 bytes in units of 8
# In an IP header, by its version.
_PROTOCOL_AT = {4: 9, 6: 6}
_SOURCE_AT, _DESTINATION_AT = {4: 12, 6: 8}, {4: 16, 6: 24}
_HEADER_BYTES = {4: 20, 6: 40}
Network = IPv4Network | IPv6Network


@dataclass(frozen=True)
class Form:
    """Packets of a tunnel that look alike: the condition that a packet is one, and its inner IP header.

    `version` is that of the inner IP header, which begins `begin` bytes (an expression) after the begin of the outer
    header that libpcap calls `header`.
    """

    condition: str
    version: int
    header: str
    begin: str

    def at(self, place: int, size: int = 1) -> str:
        """Return the value of `size` bytes at a place in the inner IP header."""
        return f"{self.header}[{self.begin} + {place}:{size}]"


def _udp_forms(port: int, tunnel: Callable[[str, int], tuple[str, str]]) -> Iterator[Form]:
    """Yield the forms of a tunnel in UDP.

    `tunnel` returns a condition and the tunnel's payload, by the outer header and where the tunnel begins in it.
    """
    outer = (("udp", 0, f"udp[2:2] = {port}"), ("ip6", 40, f"ip6[6] = 17 and ip6[42:2] = {port}"))
    for header, udp_at, condition in outer:
        more, payload = tunnel(header, udp_at + UDP_BYTES)
        yield from _ethernet_forms(f"{condition}{more}", header, payload)


def _ethernet_forms(condition: str, header: str, begin: str) -> Iterator[Form]:
    """Without a VLAN tag and with one."""
    for version, ethertype in ETHERTYPES.items():
        for tag, at in (("", 12), *((f" and {header}[{begin} + 12:2] = {one}", 16) for one in TAGS)):
            inner = f"{condition}{tag} and {header}[{begin} + {at}:2] = {ethertype}"
            yield Form(inner, version, header, f"{begin} + {at + 2}")


def _vxlan(_header: str, at: int) -> tuple[str, str]:
    """RFC 7348."""
    return "", str(at + TUNNEL_BYTES)


def _geneve(header: str, at: int) -> tuple[str, str]:
    """RFC 8926."""
    condition = f" and {header}[{at + 2}:2] = {TRANSPARENT_ETHERNET}"
    return condition, f"{at + TUNNEL_BYTES} + 4 * ({header}[{at}] & 0x3f)"


def _gre_forms() -> Iterator[Form]:
    """RFC 2784 and 2890: a checksum, a key and a sequence number are of 4 bytes each, where their flags are set."""
    outer = (
        ("ip", 20, "ip[0] = 0x45 and ip[9] = 47 and ip[6:2] & 0x1fff = 0"),
        *(("ip6", at, condition) for condition, at in _outer_ip6(47)),
    )
    for header, at, condition in outer:
        for flags in map(sum, product((0, 0x80), (0, 0x20), (0, 0x10))):
            begin = str(at + 4 + 4 * flags.bit_count())
            kind = f"{condition} and {header}[{at}] = 0x{flags:02x} and {header}[{at + 2}:2]"
            for version, ethertype in ETHERTYPES.items():
                yield Form(f"{kind} = {ethertype}", version, header, begin)
            yield from _ethernet_forms(f"{kind} = {TRANSPARENT_ETHERNET}", header, begin)


def _outer_ip6(protocol: int) -> Iterator[tuple[str, int]]:
    """Yield the condition that an outer IPv6 header carries this protocol, and where that begins: without and with
    8 bytes of destination options."""
    yield f"ip6[6] = {protocol}", 40
    yield f"ip6[6] = {DESTINATION_OPTIONS} and ip6[40:2] = {protocol << 8}", 48


def _ipip_forms() -> Iterator[Form]:
    """RFC 2003, 2473 and 4213."""
    for version, number in ((4, 4), (6, 41)):
        yield Form(f"ip[0] = 0x45 and ip[9] = {number} and ip[6:2] & 0x1fff = 0", version, "ip", "20")
        for condition, at in _outer_ip6(number):
            yield Form(condition, version, "ip6", str(at))


IN_UDP = {"vxlan": _vxlan, "geneve": _geneve}
IN_IP: Mapping[str, Callable[[], Iterator[Form]]] = {"gre": _gre_forms, "ipip": _ipip_forms}


def _forms(tunnel: str, ports: Mapping[int, str]) -> Iterator[Form]:
    """Yield the forms of a tunnel: gre, ipip, vxlan and geneve at all their `ports`, or vxlan:PORT, geneve:PORT."""
    kind, colon, word = tunnel.partition(":")
    if tunnel in IN_IP:
        yield from IN_IP[tunnel]()
        return
    own = [port for port, of in ports.items() if of == kind]
    if colon:
        own = [int(word)] if re.fullmatch("[0-9]{1,5}", word) and 0 < int(word) < 1 << 16 else []
    if kind not in IN_UDP or not own:
        raise BadInput(
            f"inside={tunnel[:100]!r} is not known: choose {', '.join((*IN_UDP, *IN_IP))}, or name the UDP port, for"
            " example vxlan:8472"
        )
    for port in own:
        yield from _udp_forms(port, IN_UDP[kind])


def inner_filter(
    tunnel: str,
    source: Network | None,
    destination: Network | None,
    protocol: str | None,
    ports: tuple[int, int] | None,
    tunnel_ports: Mapping[int, str] = PORTS,
) -> str:
    """Return the expression for the packets of a tunnel whose inner IP packet has all that is given.

    `tunnel_ports`: the UDP ports of vxlan and geneve, where `tunnel` names none. Raises BadInput for an unknown tunnel,
    for addresses of different versions, for a protocol that is not IP's, and for ports with a protocol that has none.
    """
    all_forms = list(_forms(tunnel, tunnel_ports))
    if protocol is not None and protocol not in (*PROTOCOLS, *VERSIONS):
        raise BadInput(
            f"protocol={protocol} cannot be inside={tunnel}: choose {', '.join((*PROTOCOLS, *VERSIONS))}"
        )
    if ports is not None and protocol in PROTOCOLS and protocol not in WITH_PORTS:
        raise BadInput(
            f"port cannot be given with protocol={protocol}, which has no ports: leave one of them out, or choose"
            f" protocol={', '.join(WITH_PORTS)}"
        )
    versions: set[int] = {one.version for one in (source, destination) if one is not None}
    versions |= {VERSIONS[protocol]} if protocol in VERSIONS else set()
    if len(versions) > 1:
        raise BadInput(
            f"with inside={tunnel}, source, destination and protocol belong to one inner packet: give IPv4 only, or"
            " IPv6 only"
        )
    forms = []
    for form in all_forms:
        if versions and form.version not in versions:
            continue
        parts = [form.condition]
        for place, network in ((_SOURCE_AT, source), (_DESTINATION_AT, destination)):
            parts += [] if network is None else _address(form, place[form.version], network)
        if protocol in PROTOCOLS:
            parts.append(f"{form.at(_PROTOCOL_AT[form.version])} = {PROTOCOLS[protocol]}")
        if ports is not None:
            parts += _ports(form, protocol, *ports)
        forms.append(" and ".join(parts))
    return f"({' or '.join(f'({form})' for form in forms)})"


def _address(form: Form, place: int, network: Network) -> Iterator[str]:
    """Compare 4 bytes at a time, which is what BPF loads.

    A comparison with the network's limits is used instead of a mask: libpcap 1.10.3 compiles `a & MASK = 0` wrongly
    where it follows another comparison with the same mask.
    """
    first, last = network.network_address.packed, network.broadcast_address.packed
    for at in range(0, len(first), 4):
        low, high = (int.from_bytes(one[at : at + 4]) for one in (first, last))
        word = form.at(place + at, 4)
        if low == high:
            yield f"{word} = 0x{low:08x}"
        elif high - low < 0xFFFFFFFF:
            yield f"{word} >= 0x{low:08x} and {word} <= 0x{high:08x}"


def _ports(form: Form, protocol: str | None, first: int, last: int) -> Iterator[str]:
    """The source's or the destination's port; of fragments only the first has ports."""
    if protocol not in PROTOCOLS:
        kind = form.at(_PROTOCOL_AT[form.version])
        yield f"({' or '.join(f'{kind} = {PROTOCOLS[name]}' for name in WITH_PORTS)})"
    if form.version == 4:
        yield f"{form.at(0)} = 0x45 and {form.at(6, 2)} & 0x1fff = 0"
    begin = _HEADER_BYTES[form.version]
    source, destination = form.at(begin, 2), form.at(begin + 2, 2)
    yield f"({' or '.join(f'({port} >= {first} and {port} <= {last})' for port in (source, destination))})"
