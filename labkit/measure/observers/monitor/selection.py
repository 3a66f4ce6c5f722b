"""What the kernel lets through: addresses, ports, protocol and VLAN, as an expression in libpcap's syntax."""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network

import msgspec

from labkit.common.errors import BadInput, choose
from labkit.common.limits import Within
from labkit.common.packets import PORTS
from labkit.measure.observers.monitor.inner_headers import PROTOCOLS as NUMBERS
from labkit.measure.observers.monitor.inner_headers import WITH_PORTS, inner_filter
from labkit.system import libpcap

PROTOCOLS = ("arp", "gre", "icmp", "icmp6", "ip", "ip6", "sctp", "tcp", "udp")
PROTOCOL_FILTERS = {"gre": "proto gre"}  # where libpcap has no word of its own
# RFC 8200: hop-by-hop options, routing, destination options; each begins with the next header, then the length beyond
# 8 bytes in units of 8. A fragment header (44) has a zero there, and its place in the packet in the next 13 bits.
EXTENDED = "(ip6[6] = 0 or ip6[6] = 43 or ip6[6] = 60)"
EXTENDED_OR_FIRST = f"({EXTENDED} or (ip6[6] = 44 and ip6[42:2] < 8))"
MAX_VLAN, MAX_PORT = 4095, 65535


class Selection(msgspec.Struct, frozen=True):
    """Which packets are seen. All that is given must hold. Addresses may be prefixes. `port` is the source's or the
    destination's, a number or a range 5000-5010; later fragments have none. With a tunnel `inside`, `source`,
    `destination`, `port` and `protocol` are those of the inner packet. `expression` is in libpcap's syntax
    (pcap-filter(7))."""

    source: str | None = None
    destination: str | None = None
    port: str | int | None = None
    protocol: str | None = None
    vlan: int | None = None
    inside: str | None = None
    expression: str | None = None

    def filter(self, tunnel_ports: Mapping[int, str] = PORTS) -> str:
        """Return the expression for libpcap; empty for every packet. Raises BadInput for an invalid value.

        `tunnel_ports`: the UDP ports of vxlan and geneve, where `inside` names none.
        """
        if self.protocol is not None and self.protocol not in PROTOCOLS:
            raise BadInput(
                f"protocol={_quote(self.protocol)} is not known: {choose(self.protocol, PROTOCOLS)}"
            )
        source, destination = _network("source", self.source), _network("destination", self.destination)
        ports = None if self.port is None else _ports(self.port)
        if self.inside is not None:
            parts = [inner_filter(self.inside, source, destination, self.protocol, ports, tunnel_ports)]
        else:
            parts = [] if self.protocol is None else [_protocol_filter(self.protocol)]
            parts += [
                f"{word} net {network}"
                for word, network in (("src", source), ("dst", destination))
                if network is not None
            ]
            parts += [] if ports is None else [_ports_filter(*ports)]
        if self.expression:
            libpcap.check(self.expression)
            _check_parentheses(self.expression)
            parts.append(f"({self.expression})")
        if self.vlan is not None:
            Within(0, MAX_VLAN).check("vlan", self.vlan)
            parts.insert(0, f"vlan {self.vlan}")  # libpcap looks for what follows it behind the tag
        return " and ".join(parts)


def _protocol_filter(protocol: str) -> str:
    """Return libpcap's own word, with what is behind an extension header, where libpcap looks in fragments only."""
    word, number = PROTOCOL_FILTERS.get(protocol, protocol), NUMBERS.get(protocol)
    if number is None or protocol == "icmp":
        return word
    return f"({word} or ({EXTENDED} and ip6[40] = {number}))"


def _ports_filter(first: int, last: int) -> str:
    """Return libpcap's own word, with ports behind an extension header of 8 bytes, where libpcap does not look."""
    kinds = (f"ip6[40:2] = {NUMBERS[one] << 8}" for one in WITH_PORTS)
    ports = (f"(ip6[{at}:2] >= {first} and ip6[{at}:2] <= {last})" for at in (48, 50))
    behind = f"{EXTENDED_OR_FIRST} and ({' or '.join(kinds)}) and ({' or '.join(ports)})"
    return f"(portrange {first}-{last} or ({behind}))"


def _network(name: str, value: str | None) -> IPv4Network | IPv6Network | None:
    if value is None:
        return None
    try:
        return ip_network(value, strict=False)
    except ValueError:
        example = "write an address such as 10.0.0.1 or a prefix such as 10.0.0.0/8 or fd00::/64"
        raise BadInput(f"{name}={_quote(value)} is not an address: {example}") from None


def _ports(value: str | int) -> tuple[int, int]:
    """Return the first and the last port."""
    first, dash, last = str(value).partition("-")
    try:
        numbers = int(first), int(last if dash else first)
    except ValueError:
        numbers = -1, -1
    if not 0 <= numbers[0] <= numbers[1] <= MAX_PORT:
        raise BadInput(
            f"port={_quote(value)} is not a port: use 0 to {MAX_PORT}, or a range such as 5000-5010"
        )
    return numbers


def _check_parentheses(expression: str) -> None:
    """An expression must not close the parentheses that are put around it: `a) or (b` would undo the other limits."""
    depth = 0
    for letter in expression:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            break
    if depth:
        raise BadInput(
            f"the filter {_quote(expression)} has parentheses that do not match: add or remove one"
        )


def _quote(value: object) -> str:
    return repr(value)[:200]
