"""Frames become layers: made by hand for each kind of header, cut at every byte, and random."""

import struct

from example_frames import (
    ARP,
    INNER,
    PAYLOAD,
    PORTS,
    SEED,
    V6,
    echo,
    ethernet,
    geneve,
    gre,
    ip,
    ip6,
    tcp,
    udp,
)

from labkit.common import packets
from labkit.common.packets import ETHERNET, RAW_IP

FRAMES = {
    "seed": (
        SEED,
        "Ethernet / IP 26.0.0.2 > 28.0.0.2 / GRE / IP 21.0.0.1 > 23.0.0.1 / UDP 4900 / VXLAN 30 / Ethernet"
        " / IP 20.0.0.1 > 20.0.0.3 / ICMP echo request",
        [14, 20, 4, 20, 8, 8, 14, 20, 8],
    ),
    "tcp with options": (
        ethernet(ip(tcp(b"data", bytes(12)), "10.0.0.1 > 10.0.0.2", 6, options=bytes(8))),
        "Ethernet / IP 10.0.0.1 > 10.0.0.2 / TCP 5201",
        [14, 28, 32],
    ),
    "old qinq": (
        ethernet(struct.pack("!HHHH", 7, 0x8100, 42, 0x0800) + ip(echo(0), "10.0.0.1 > 10.0.0.2", 1), 0x9100),
        "Ethernet / 802.1Q 7 / 802.1Q 42 / IP 10.0.0.1 > 10.0.0.2 / ICMP echo reply",
        [14, 4, 4, 20, 8],
    ),
    "mpls": (
        ethernet(struct.pack("!II", 16 << 12, 17 << 12 | 0x1FF) + ip(echo(0), "10.0.0.1 > 10.0.0.2", 1), 0x8847),
        "Ethernet / MPLS 16 / MPLS 17 / IP 10.0.0.1 > 10.0.0.2 / ICMP echo reply",
        [14, 4, 4, 20, 8],
    ),
    "erspan type i": (
        ethernet(ip(gre(INNER, 0x88BE), "1.0.0.1 > 1.0.0.2", 47)),
        "Ethernet / IP 1.0.0.1 > 1.0.0.2 / GRE / Ethernet / IP 20.0.0.1 > 20.0.0.3 / ICMP echo request",
        [14, 20, 4, 14, 20, 8],
    ),
    **{
        f"erspan of {len(head)} bytes": (
            ethernet(ip(gre(head + INNER, kind, sequence=1), "1.0.0.1 > 1.0.0.2", 47)),
            "Ethernet / IP 1.0.0.1 > 1.0.0.2 / GRE / ERSPAN 77 / Ethernet / IP 20.0.0.1 > 20.0.0.3 / ICMP echo request",
            [14, 20, 8, len(head), 14, 20, 8],
        )
        for kind, head in (
            (0x88BE, struct.pack("!HHI", 0x1000, 77, 0)),
            (0x22EB, struct.pack("!HHII", 0x2000, 77, 0, 0)),
            (0x22EB, struct.pack("!HHIIQ", 0x2000, 77, 0, 1, 0)),
        )
    },
    "arp request": (ethernet(ARP, 0x0806), "Ethernet / ARP who-has 21.0.0.1 tell 21.0.0.2", [14, 28]),
    "arp reply": (
        ethernet(ARP[:6] + b"\0\2" + ARP[8:], 0x0806),
        "Ethernet / ARP 21.0.0.2 is-at 00:01:02:03:04:05",
        [14, 28],
    ),
    "gre with all": (
        ethernet(ip(gre(INNER, 0x6558, checksum=5, key=7, sequence=9), "1.0.0.1 > 1.0.0.2", 47)),
        "Ethernet / IP 1.0.0.1 > 1.0.0.2 / GRE key 7 / Ethernet / IP 20.0.0.1 > 20.0.0.3 / ICMP echo request",
        [14, 20, 16, 14, 20, 8],
    ),
    "geneve": (
        ethernet(ip6(udp(geneve(INNER, options=bytes(8)), 6081), V6, 17), 0x86DD),
        "Ethernet / IP6 fd00::1 > fd00::2 / UDP 6081 / Geneve 77 / Ethernet / IP 20.0.0.1 > 20.0.0.3"
        " / ICMP echo request",
        [14, 40, 8, 16, 14, 20, 8],
    ),
    "ipip": (
        ethernet(ip(ip(echo(), "20.0.0.1 > 20.0.0.3", 1), "1.0.0.1 > 1.0.0.2", 4)),
        "Ethernet / IP 1.0.0.1 > 1.0.0.2 / IP 20.0.0.1 > 20.0.0.3 / ICMP echo request",
        [14, 20, 20, 8],
    ),
    "6in4": (
        ethernet(ip(ip6(udp(b"x", 53), V6, 17), "1.0.0.1 > 1.0.0.2", 41)),
        "Ethernet / IP 1.0.0.1 > 1.0.0.2 / IP6 fd00::1 > fd00::2 / UDP 53",
        [14, 20, 40, 8],
    ),
    "first fragment": (
        ethernet(ip(echo(), "10.0.0.1 > 10.0.0.2", 1, place=0x2000)),
        "Ethernet / IP 10.0.0.1 > 10.0.0.2 fragment at 0 / ICMP echo request",
        [14, 20, 8],
    ),
    "last fragment": (
        ethernet(ip(PAYLOAD, "10.0.0.1 > 10.0.0.2", 1, place=185)),
        "Ethernet / IP 10.0.0.1 > 10.0.0.2 fragment at 1480",
        [14, 20],
    ),
    "ipv6 fragment behind options": (
        ethernet(ip6(bytes((44, 0, *bytes(6))) + struct.pack("!BBHI", 17, 0, 1448, 5) + PAYLOAD, V6, 0), 0x86DD),
        "Ethernet / IP6 fd00::1 > fd00::2 fragment at 1448",
        [14, 56],
    ),
    "other icmp": (
        ethernet(ip(bytes((3, 4)) + bytes(6) + PAYLOAD, "10.0.0.1 > 10.0.0.2", 1)),
        "Ethernet / IP 10.0.0.1 > 10.0.0.2 / ICMP type 3 code 4",
        [14, 20, 8],
    ),
    "unknown protocol": (
        ethernet(ip(PAYLOAD, "10.0.0.1 > 10.0.0.2", 132)),
        "Ethernet / IP 10.0.0.1 > 10.0.0.2 / IP protocol 132",
        [14, 20, 0],
    ),
    "unknown type": (ethernet(PAYLOAD, 0x88CC), "Ethernet / type 0x88cc", [14, 0]),
    "spanning tree": (ethernet(PAYLOAD, 38), "Ethernet / 802.3", [14, 0]),
    "vxlan without vni": (
        ethernet(ip(udp(bytes(8) + INNER, 4900), "21.0.0.1 > 23.0.0.1", 17)),
        "Ethernet / IP 21.0.0.1 > 23.0.0.1 / UDP 4900 / VXLAN without VNI",
        [14, 20, 8, 0],
    ),
    "pptp": (
        ethernet(ip(struct.pack("!HHI", 0x3001, 0x880B, 0), "1.0.0.1 > 1.0.0.2", 47)),
        "Ethernet / IP 1.0.0.1 > 1.0.0.2 / GRE version 1",
        [14, 20, 0],
    ),
    "no ip": (ethernet(bytes(40)), "Ethernet / no IP header", [14, 0]),
}  # fmt: skip


def test_headers() -> None:
    for name in FRAMES:
        frame, stack, header_bytes = FRAMES[name]
        result = packets.layers(frame, ETHERNET, PORTS)
        assert packets.stack(result) == stack
        assert [layer.header_bytes for layer in result] == header_bytes
        at = 0
        for layer in result:  # no frame here is padded, so each layer is as long as the rest
            assert layer.length_bytes == len(frame) - at
            at += layer.header_bytes


def test_header_lengths() -> None:
    """The lengths equal tcpdump's for a ping of 84 bytes: GRE length 138, UDP length 106 (its payload)."""
    lengths = {layer.text: layer.length_bytes for layer in packets.layers(SEED, ETHERNET, PORTS)}
    assert (lengths["GRE"], lengths["VXLAN 30"], lengths["UDP 4900"]) == (138, 106, 114)
    assert lengths["IP 20.0.0.1 > 20.0.0.3"] == 84
    report = {layer.name: layer.fields for layer in packets.layers(SEED, ETHERNET, PORTS)}
    assert (report["udp"]["source_port"], report["vxlan"]["id"], report["icmp"]["sequence"]) == (40809, 30, 1)
    small = ethernet(ip(udp(b"x", 53), "10.0.0.1 > 10.0.0.2", 17))
    padded = packets.layers(small + bytes(60 - len(small)))
    assert [layer.length_bytes for layer in padded] == [60, 29, 9]
    cut = packets.layers(SEED[:120], ETHERNET, PORTS, len(SEED))
    assert [(layer.name, layer.length_bytes) for layer in cut[-2:]] == [("ip", 84), ("icmp", 64)]
    big = SEED[:16] + b"\0\0" + SEED[18:]  # BIG TCP: a total length of 0
    assert packets.layers(big)[1].length_bytes == len(SEED) - 14
    for inner, text in (
        (SEED[14:], "IP 26.0.0.2 > 28.0.0.2"),
        (ip6(echo(129), V6, 58), "IP6 fd00::1 > fd00::2"),
    ):
        assert packets.layers(inner, RAW_IP)[0].text == text
    assert packets.stack(packets.layers(b"\x10", RAW_IP)) == "IP version 1"
    assert packets.stack(packets.layers(b"", RAW_IP)) == "raw cut off"
    assert packets.stack(packets.layers(SEED, 105)) == "link type 105"


def test_truncated_frames() -> None:
    """With any number of bytes, complete layers are unchanged, and an incomplete one is marked."""
    for name in FRAMES:
        frame, _, header_bytes = FRAMES[name]
        whole = packets.layers(frame, ETHERNET, PORTS)
        for size in range(sum(header_bytes)):
            result = packets.layers(frame[:size], ETHERNET, PORTS, len(frame))
            complete = result[:-1]
            assert complete == whole[: len(complete)]
            assert result[-1].name == "cut", (size, result[-1])
            assert sum(layer.header_bytes for layer in complete) <= size
