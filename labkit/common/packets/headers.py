"""A frame as the layers that it is made of: each header with its bytes, from the outside in.

An unknown or incomplete header ends the list with a layer that says so. No frame raises an error.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address, IPv6Address

# Link types of pcap (LINKTYPE_ETHERNET, LINKTYPE_RAW: IPv4 or IPv6 without a link's header).
ETHERNET, RAW_IP = 1, 101
ETHERNET_BYTES = 14
FCS_BYTES = 4  # counted in the size of a frame, but never passed to a driver
PORTS: Mapping[int, str] = {4789: "vxlan", 6081: "geneve"}  # IANA's (RFC 7348, RFC 8926)
WIREGUARD_PORT = 51820  # the usual one (wg(8)); what is inside cannot be seen
UNKNOWN, CUT = "unknown", "cut"

ETHERTYPES = {
    0x0800: "ip",
    0x86DD: "ip6",
    0x0806: "arp",
    0x8100: "802.1q",
    0x88A8: "802.1q",
    0x9100: "802.1q",  # an outer tag before IEEE 802.1ad
    0x8847: "mpls",
    0x8848: "mpls",
    0x88BE: "erspan",
    0x22EB: "erspan",
    0x88E5: "macsec",
    0x6558: "ethernet",
}
IP6_EXTENSIONS = {0, 43, 60}  # hop by hop, routing, destination: 8-byte units (RFC 8200); 44 is the fragment
IP6_FRAGMENT, AH = 44, 51
SYN = 2  # a flag of TCP
PROTOCOLS = {1: "icmp", 4: "ip", 6: "tcp", 17: "udp", 41: "ip6", 47: "gre", 50: "esp", AH: "ah", 58: "icmp6"}
ICMP = {0: "echo reply", 8: "echo request"}
ICMP6 = {128: "echo request", 129: "echo reply"}


@dataclass(frozen=True)
class Layer:
    """One header: its name, a text for people, and its own bytes.

    `length_bytes`: the header and all that follows, by its own length field if it has one, else by that of the layer
    around it. `fields`: what distinguishes packets, and `ttl`.
    """

    name: str
    text: str
    header_bytes: int
    length_bytes: int
    fields: Mapping[str, int | str] = field(default_factory=dict)


Decoded = tuple[Layer, str | None]  # and the name of what follows
Decoder = Callable[[bytes, int], Decoded]


def layers(
    frame: bytes, link_type: int = ETHERNET, ports: Mapping[int, str] = PORTS, length_bytes: int | None = None
) -> list[Layer]:
    """Return the layers of a frame.

    `ports`: UDP destination ports that carry `vxlan` or `geneve`. `length_bytes`: length of the whole frame, if `frame`
    is only its beginning.
    """
    result: list[Layer] = []
    kind = {ETHERNET: "ethernet", RAW_IP: "raw"}.get(link_type, f"link type {link_type}")
    at, left = 0, len(frame) if length_bytes is None else length_bytes
    following: str | None = kind
    while following is not None:
        decoder = DECODERS.get(following)
        if decoder is None:
            return [*result, Layer(UNKNOWN, following, 0, left)]
        try:
            layer, following = decoder(frame[at:], left)
        except struct.error:
            return [*result, Layer(CUT, f"{following} cut off", 0, left)]
        if layer.name != "raw":
            result.append(layer)
        at, left = at + layer.header_bytes, max(layer.length_bytes - layer.header_bytes, 0)
        if layer.name == "udp":
            own, other = (int(layer.fields[port]) for port in ("target_port", "source_port"))
            following = "wireguard" if WIREGUARD_PORT in (own, other) else ports.get(own)
    return result


def stack(all_layers: Sequence[Layer]) -> str:
    """Return the layers in one line, from the outside in: `Ethernet / IP 26.0.0.2 > 28.0.0.2 / GRE / …`."""
    return " / ".join(layer.text for layer in all_layers)


def behind_extensions(data: bytes, protocol: int, at: int) -> tuple[int, int]:
    """Return the protocol behind IPv6's extension headers, and where it begins. A fragment or AH ends them, but an AH
    that begins at `at` is passed. Raises struct.error where one is cut off."""
    if protocol == AH:  # RFC 4302: its length is in 4-byte units, less 2
        protocol, units = struct.unpack_from("BB", data, at)
        at += 4 * (units + 2)
    while protocol in IP6_EXTENSIONS:
        protocol, units = struct.unpack_from("BB", data, at)
        at += 8 * (units + 1)
    return protocol, at


def _whole(data: bytes, header_bytes: int) -> None:
    """Raises struct.error, as unpacking does, where a header of so many bytes is not all there."""
    if len(data) < header_bytes:
        raise struct.error


def _nonsense(name: str, length: int) -> Decoded:
    return Layer(UNKNOWN, name, 0, length), None


def _ethertype(number: int) -> str:
    return ETHERTYPES.get(number, f"type 0x{number:04x}")


def _protocol(number: int) -> str:
    return PROTOCOLS.get(number, f"IP protocol {number}")


def _raw(data: bytes, length: int) -> Decoded:
    (first,) = struct.unpack_from("B", data)
    kind = {4: "ip", 6: "ip6"}.get(first >> 4, f"IP version {first >> 4}")
    return Layer("raw", "", 0, length), kind


def _ethernet(data: bytes, length: int) -> Decoded:
    target, source, kind = struct.unpack_from("!6s6sH", data)
    fields: dict[str, int | str] = {"source": source.hex(":"), "target": target.hex(":")}
    following = _ethertype(kind) if kind >= 0x600 else "802.3"  # below, it is a length (IEEE 802.3)
    return Layer("ethernet", "Ethernet", ETHERNET_BYTES, length, fields), following


def _vlan(data: bytes, length: int) -> Decoded:
    tag, kind = struct.unpack_from("!HH", data)
    return Layer("802.1q", f"802.1Q {tag & 0xFFF}", 4, length, {"id": tag & 0xFFF}), _ethertype(kind)


def _arp(data: bytes, length: int) -> Decoded:
    """RFC 826, for IPv4 over Ethernet."""
    hardware, protocol, sizes, operation = struct.unpack_from("!HHHH", data)
    if (hardware, protocol, sizes) != (1, 0x0800, 0x0604):
        return _nonsense(f"ARP of type {hardware} for 0x{protocol:04x}", length)
    sender_mac, sender, target_mac, target = struct.unpack_from("!6s4s6s4s", data, 8)
    one, other = str(IPv4Address(sender)), str(IPv4Address(target))
    texts = {1: f"who-has {other} tell {one}", 2: f"{one} is-at {sender_mac.hex(':')}"}
    fields: dict[str, int | str] = {"operation": operation, "source": one, "target": other}
    fields |= {"source_mac": sender_mac.hex(":"), "target_mac": target_mac.hex(":")}
    return Layer("arp", f"ARP {texts.get(operation, f'operation {operation}')}", 28, 28, fields), None


def _ip(data: bytes, length: int) -> Decoded:
    """RFC 791. A total length of 0 is that of a packet that is yet to be segmented (BIG TCP)."""
    first, _tos, total, number, fragment, ttl, protocol, _sum, source, target = struct.unpack_from(
        "!BBHHHBBH4s4s", data
    )
    header_bytes = (first & 15) * 4
    if first >> 4 != 4 or header_bytes < 20:
        return _nonsense("no IP header", length)
    _whole(data, header_bytes)
    one, other = str(IPv4Address(source)), str(IPv4Address(target))
    offset, more = (fragment & 0x1FFF) * 8, bool(fragment & 0x2000)
    fields: dict[str, int | str] = {"source": one, "target": other, "protocol": protocol, "id": number}
    fields |= {"offset": offset, "ttl": ttl}
    text = f"IP {one} > {other}" + (f" fragment at {offset}" if offset or more else "")
    layer = Layer("ip", text, header_bytes, max(total or length, header_bytes), fields)
    return layer, None if offset else _protocol(protocol)


def _ip6(data: bytes, length: int) -> Decoded:
    """RFC 8200; extension headers count as part of it."""
    first, payload, following, ttl, source, target = struct.unpack_from("!IHBB16s16s", data)
    if first >> 28 != 6:
        return _nonsense("no IPv6 header", length)
    header_bytes, offset, fragment, number = 40, 0, False, 0
    while (following in IP6_EXTENSIONS or following == IP6_FRAGMENT) and not offset:
        if following == IP6_FRAGMENT:
            following, _, place, number = struct.unpack_from("!BBHI", data, header_bytes)
            offset, fragment, header_bytes = place & 0xFFF8, True, header_bytes + 8
        else:
            following, header_bytes = behind_extensions(data, following, header_bytes)
    _whole(data, header_bytes)
    one, other = str(IPv6Address(source)), str(IPv6Address(target))
    fields: dict[str, int | str] = {"source": one, "target": other, "protocol": following, "id": number}
    fields |= {"offset": offset, "ttl": ttl}
    text = f"IP6 {one} > {other}" + (f" fragment at {offset}" if fragment else "")
    layer = Layer("ip6", text, header_bytes, max(40 + payload if payload else length, header_bytes), fields)
    return layer, None if offset else _protocol(following)


def _ah(data: bytes, length: int) -> Decoded:
    """RFC 4302, with the destination options that may follow it."""
    index, sequence = struct.unpack_from("!II", data, 4)
    following, header_bytes = behind_extensions(data, AH, 0)
    _whole(data, header_bytes)
    layer = Layer("ah", f"AH {index}", header_bytes, length, {"id": index, "sequence": sequence})
    return layer, _protocol(following)


def _esp(data: bytes, length: int) -> Decoded:
    """RFC 4303."""
    index, sequence = struct.unpack_from("!II", data)
    return Layer("esp", f"ESP {index}", 8, length, {"id": index, "sequence": sequence}), None


def _macsec(data: bytes, length: int) -> Decoded:
    """IEEE 802.1AE: flags, short length, packet number, and with flag SC the channel's identifier."""
    flags, number = struct.unpack_from("!BxI", data)
    header_bytes = 14 if flags & 0x20 else 6
    _whole(data, header_bytes)
    fields: dict[str, int | str] = {"sequence": number, "id": data[6:header_bytes].hex()}
    return Layer("macsec", "MACsec", header_bytes, length, fields), None


def _wireguard(data: bytes, length: int) -> Decoded:
    """A message of WireGuard: 1 to 3 make or refuse a handshake, 4 has data (its header: receiver and counter)."""
    (kind,) = struct.unpack_from("<I", data)
    if kind != 4:
        return Layer("wireguard", f"WireGuard handshake {kind}", length, length, {}), None
    receiver, counter = struct.unpack_from("<IQ", data, 4)
    return Layer("wireguard", "WireGuard", 16, length, {"id": receiver, "sequence": counter}), None


def internet_checksum(words_sum: int) -> int:
    """Return the checksum over 16-bit words with this sum (RFC 1071): their sum with carries is one modulo 0xFFFF."""
    return -words_sum % 0xFFFF


def _echo(name: str, title: str, names: Mapping[int, str], data: bytes, length: int) -> Decoded:
    """RFC 792, RFC 4443: an echo has an identifier and a sequence number, of others 4 bytes that differ."""
    kind, code, _sum, number, sequence = struct.unpack_from("!BBHHH", data)
    text = f"{title} {names.get(kind, f'type {kind} code {code}')}"
    fields: dict[str, int | str] = {"type": kind, "code": code, "id": number, "sequence": sequence}
    return Layer(name, text, 8, length, fields), None


def _udp(data: bytes, length: int) -> Decoded:
    """RFC 768; a length below that of the header is that of a jumbogram (RFC 2675)."""
    source, target, total, _sum = struct.unpack_from("!HHHH", data)
    fields: dict[str, int | str] = {"source_port": source, "target_port": target}
    return Layer("udp", f"UDP {target}", 8, total if total >= 8 else length, fields), None


def _tcp(data: bytes, length: int) -> Decoded:
    """RFC 9293. The timestamp among the options tells a segment from one that is sent again. The options of a SYN may
    change on the way (MSS clamping)."""
    source, target, sequence, acknowledged, offset, flags = struct.unpack_from("!HHIIBB", data)
    header_bytes = (offset >> 4) * 4
    if header_bytes < 20:
        return _nonsense("no TCP header", length)
    _whole(data, header_bytes)
    fields: dict[str, int | str] = {"source_port": source, "target_port": target}
    fields |= {"sequence": sequence, "acknowledged": acknowledged}
    fields["options"] = "" if flags & SYN else data[20:header_bytes].hex()
    return Layer("tcp", f"TCP {target}", header_bytes, length, fields), None


def _gre(data: bytes, length: int) -> Decoded:
    """RFC 2784, with key and sequence number of RFC 2890."""
    flags, kind = struct.unpack_from("!HH", data)
    if flags & 0x4007:  # routing (RFC 1701), or another version (1: PPTP)
        return _nonsense(f"GRE version {flags & 7}" if flags & 7 else "GRE with routing", length)
    has_sum, has_key, has_sequence = (bool(flags & bit) for bit in (0x8000, 0x2000, 0x1000))
    header_bytes = 4 * (1 + has_sum + has_key + has_sequence)
    _whole(data, header_bytes)
    fields: dict[str, int | str] = {}
    if has_key:
        fields["key"] = struct.unpack_from("!I", data, 4 + 4 * has_sum)[0]
    if has_sequence:
        fields["sequence"] = struct.unpack_from("!I", data, header_bytes - 4)[0]
    text = "GRE" + (f" key {fields['key']}" if has_key else "")
    following = _ethertype(kind)
    if following == "erspan" and not has_sequence:  # type I has no header of its own
        following = "ethernet"
    return Layer("gre", text, header_bytes, length, fields), following


def _erspan(data: bytes, length: int) -> Decoded:
    """draft-foschiano-erspan-03: type II (version 1) has 8 bytes, type III (version 2) 12, and 8 more with flag O."""
    first, session = struct.unpack_from("!HH", data)
    version = first >> 12
    if version not in (1, 2):
        return _nonsense(f"ERSPAN version {version}", length)
    header_bytes = 8
    if version == 2:
        header_bytes = 20 if struct.unpack_from("!B", data, 11)[0] & 1 else 12
    _whole(data, header_bytes)
    number = session & 0x3FF
    return Layer("erspan", f"ERSPAN {number}", header_bytes, length, {"id": number}), "ethernet"


def _mpls(data: bytes, length: int) -> Decoded:
    """RFC 3032. The label says what follows the last entry, not the header, so the version of IP is looked at."""
    (entry,) = struct.unpack_from("!I", data)
    label = entry >> 12
    following = "mpls"
    if entry & 0x100:
        (first,) = struct.unpack_from("B", data, 4)
        following = {4: "ip", 6: "ip6"}.get(first >> 4, "payload of MPLS")
    return Layer("mpls", f"MPLS {label}", 4, length, {"id": label}), following


def _vxlan(data: bytes, length: int) -> Decoded:
    """RFC 7348."""
    flags, vni = struct.unpack_from("!II", data)
    if not flags & 0x08000000:
        return _nonsense("VXLAN without VNI", length)
    return Layer("vxlan", f"VXLAN {vni >> 8}", 8, length, {"id": vni >> 8}), "ethernet"


def _geneve(data: bytes, length: int) -> Decoded:
    """RFC 8926, with its options."""
    first, _flags, kind, vni = struct.unpack_from("!BBHI", data)
    if first >> 6:
        return _nonsense(f"Geneve version {first >> 6}", length)
    header_bytes = 8 + (first & 0x3F) * 4
    _whole(data, header_bytes)
    return Layer("geneve", f"Geneve {vni >> 8}", header_bytes, length, {"id": vni >> 8}), _ethertype(kind)


DECODERS: Mapping[str, Decoder] = {
    "raw": _raw, "ethernet": _ethernet, "802.1q": _vlan, "arp": _arp, "ip": _ip, "ip6": _ip6,
    "icmp": partial(_echo, "icmp", "ICMP", ICMP), "icmp6": partial(_echo, "icmp6", "ICMPv6", ICMP6),
    "ah": _ah, "udp": _udp, "tcp": _tcp, "gre": _gre, "vxlan": _vxlan, "geneve": _geneve,
    "erspan": _erspan, "mpls": _mpls, "esp": _esp, "macsec": _macsec, "wireguard": _wireguard,
}  # fmt: skip
