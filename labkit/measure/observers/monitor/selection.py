"""What the kernel lets through: addresses, ports, protocol and VLAN, as an expression in libpcap's syntax."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_network

import msgspec

from labkit.common.errors import BadInput
from labkit.common.packets import PORTS
from labkit.system import libpcap

PROTOCOLS = ("arp", "gre", "icmp", "icmp6", "ip", "ip6", "sctp", "tcp", "udp")
OF_PROTOCOL = {"gre": "proto gre"}  # where libpcap has no word of its own
MAX_VLAN, MAX_PORT = 4095, 65535
# What says that there is an inner IPv4 header, and where it begins in libpcap's words for a byte of the packet:
# behind an outer header without options, and GRE without checksum, key and sequence number.
_VXLAN, _GENEVE = ({kind: port for port, kind in PORTS.items()}[name] for name in ("vxlan", "geneve"))
INSIDE = {
    "vxlan": (f"udp dst port {_VXLAN} and udp[28:2] = 0x0800", "udp", 30),
    "geneve": (f"udp dst port {_GENEVE} and udp[8] & 0x3f = 0 and udp[28:2] = 0x0800", "udp", 30),
    "gre": ("proto gre and ip[0] = 0x45 and ip[20:4] = 0x00000800", "ip", 24),
}
SOURCE_AT, DESTINATION_AT = 12, 16  # in an IPv4 header


class Selection(msgspec.Struct, frozen=True):
    """Which packets are seen. All that is given must hold. Addresses may be prefixes. `port` is the source's or the
    destination's, a number or a range 5000-5010. `inside` is the tunnel whose inner IPv4 header `source` and
    `destination` are about. `expression` is in libpcap's syntax (pcap-filter(7))."""

    source: str | None = None
    destination: str | None = None
    port: str | int | None = None
    protocol: str | None = None
    vlan: int | None = None
    inside: str | None = None
    expression: str | None = None

    def filter(self) -> str:
        """Return the expression for libpcap; empty for every packet. Raises BadInput for an invalid value."""
        parts = [*self._addresses()]
        if self.protocol is not None:
            if self.protocol not in PROTOCOLS:
                raise BadInput(
                    f"protocol={_quoted(self.protocol)} is not known: it is one of {', '.join(PROTOCOLS)}"
                )
            parts.insert(0, OF_PROTOCOL.get(self.protocol, self.protocol))
        if self.port is not None:
            parts.append(_port(self.port))
        if self.expression:
            libpcap.check(self.expression)
            _check_parentheses(self.expression)
            parts.append(f"({self.expression})")
        if self.vlan is not None:
            if not 0 <= self.vlan <= MAX_VLAN:
                raise BadInput(f"vlan={self.vlan} is out of range: use 0 to {MAX_VLAN}")
            parts.insert(0, f"vlan {self.vlan}")  # libpcap looks for what follows it behind the tag
        return " and ".join(parts)

    def _addresses(self) -> list[str]:
        ends = [
            ("src", "source", SOURCE_AT, self.source),
            ("dst", "destination", DESTINATION_AT, self.destination),
        ]
        if self.inside is None:
            return [
                f"{word} net {_network(name, value)}" for word, name, _at, value in ends if value is not None
            ]
        if self.inside not in INSIDE:
            raise BadInput(f"inside={_quoted(self.inside)} is not known: it is one of {', '.join(INSIDE)}")
        condition, header, begin = INSIDE[self.inside]
        parts = [condition]
        for _word, name, at, value in ends:
            if value is None:
                continue
            network = _network(name, value)
            if not isinstance(network, IPv4Network):
                raise BadInput(
                    f"{name}={network}: with inside={self.inside} it is an IPv4 address; leave inside out"
                )
            address, mask = int(network.network_address), int(network.netmask)
            parts.append(f"{header}[{begin + at}:4] & 0x{mask:08x} = 0x{address:08x}")
        return parts


def _network(name: str, value: str) -> object:
    try:
        return ip_network(value, strict=False)
    except ValueError:
        example = "write an address such as 10.0.0.1 or a prefix such as 10.0.0.0/8 or fd00::/64"
        raise BadInput(f"{name}={_quoted(value)} is not an address: {example}") from None


def _port(value: str | int) -> str:
    first, dash, last = str(value).partition("-")
    try:
        numbers = [int(first), int(last if dash else first)]
    except ValueError:
        numbers = []
    if not numbers or not 0 <= numbers[0] <= numbers[1] <= MAX_PORT:
        raise BadInput(f"port={_quoted(value)} is no port: use 0 to {MAX_PORT}, or a range such as 5000-5010")
    return f"portrange {numbers[0]}-{numbers[1]}"


def _check_parentheses(expression: str) -> None:
    """An expression must not close the parentheses that are put around it: `a) or (b` would undo the other limits."""
    depth = 0
    for letter in expression:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            break
    if depth:
        raise BadInput(
            f"the filter {_quoted(expression)} has parentheses that do not match: add or remove one"
        )


def _quoted(value: object) -> str:
    return repr(value)[:200]
