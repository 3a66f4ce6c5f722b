"""Frames become layers, are followed from hop to hop, and are read from capture files."""

import itertools
import struct
from dataclasses import replace
from pathlib import Path

import pytest
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
    vxlan,
)

from labkit.common import packets
from labkit.common.errors import BadInput
from labkit.common.packets import ETHERNET, RAW_IP, journey, pcapng
from labkit.common.packets.journey import Journey
from labkit.common.packets.pcapng import Counts, Frame

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


ENDS = "20.0.0.1 > 20.0.0.3"
MS = 1_000_000


def frame(data: bytes, hop: str, ms: float, direction: str = "in", size: int | None = None) -> Frame:
    return Frame(hop, ETHERNET, round(ms * MS), direction, len(data), data[:size])


def result(*frames: Frame) -> list[Journey]:
    return journey.journeys(frames, PORTS)


def hops(journeys: list[Journey]) -> list[list[str]]:
    return [[seen.hop for seen in one.sightings] for one in journeys]


def request(sequence: int = 1, **more: int) -> bytes:
    return ethernet(ip(echo(8, sequence), ENDS, 1, **more))


def reply(sequence: int = 1) -> bytes:
    return ethernet(ip(echo(0, sequence), "20.0.0.3 > 20.0.0.1", 1))


def carried(inner: bytes) -> bytes:
    return ethernet(ip(udp(vxlan(inner), 4900), "21.0.0.1 > 23.0.0.1", 17, number=77, ttl=63))


def test_packet_identity_through_tunnels_and_routers() -> None:
    routed = ethernet(ip(echo(), ENDS, 1, ttl=62)).replace(bytes(range(6)), b"\2\2\2\2\2\2", 1)
    [one] = result(
        frame(routed, "e:4", 3),
        frame(SEED, "c:3", 2),
        frame(INNER, "a:1", 0, "out"),
        frame(carried(INNER), "b:2", 1),
    )
    assert [seen.hop for seen in one.sightings] == ["a:1", "b:2", "c:3", "e:4"]
    assert [len(seen.layers) for seen in one.sightings] == [3, 7, 9, 3]
    assert (one.source, one.target) == ("20.0.0.1", "20.0.0.3")
    assert one.what() == "20.0.0.1 > 20.0.0.3 echo request"
    assert one.what({"20.0.0.1": "cs1", "20.0.0.3": "cs5"}) == "cs1 > cs5 echo request"


def test_packets_are_told_apart() -> None:
    data = [request(1), reply(1), request(2), reply(2)]
    journeys = result(*(frame(each, hop, at) for at, each in enumerate(data) for hop in ("a:1", "b:2")))
    assert hops(journeys) == [["a:1", "b:2"]] * 4
    assert [one.what().split()[-1] for one in journeys] == ["request", "reply"] * 2
    looped = [frame(request(ttl=ttl), hop, 64 - ttl) for ttl in (64, 63, 62) for hop in ("a:1", "b:2")]
    assert hops(result(*looped)) == [["a:1", "b:2"] * 3]
    again = [ethernet(ip(tcp(b"data"), ENDS, 6, number=number)) for number in (1, 2)]
    assert len(result(*(frame(each, "a:1", at) for at, each in enumerate(again)))) == 2
    places = (0x2000, 0x2000 | 7, 14)
    parts = [ethernet(ip(echo() if place == 0x2000 else bytes(56), ENDS, 1, place=place)) for place in places]
    journeys = result(*(frame(part, hop, at) for at, part in enumerate(parts) for hop in ("a:1", "b:2")))
    assert hops(journeys) == [["a:1", "b:2"]] * 3
    assert journeys[1].what() == "20.0.0.1 > 20.0.0.3 fragment at 56"
    small = ethernet(ip(udp(b"ab", 53), ENDS, 17))
    assert hops(result(frame(small, "a:1", 0), frame(small + bytes(14), "b:2", 1))) == [["a:1", "b:2"]]
    assert hops(result(frame(SEED, "a:1", 0, size=160), frame(INNER, "b:2", 1, size=80))) == [["a:1", "b:2"]]
    for direction, order in (("in", ["b:2", "a:1"]), ("out", ["a:1", "b:2"])):
        both = [frame(INNER, "a:1", 0, direction), frame(carried(INNER), "b:2", 0, direction)]
        assert hops(result(*both)) == [order]


def test_a_segment_that_is_sent_again_is_another_packet() -> None:
    """An IPv6 header has no identifier. The first segment is lost after a, and the second one arrives at b."""
    times = (b"\x01\x01\x08\x0a" + bytes([0, 0, 0, at, 0, 0, 0, 9]) for at in (1, 2))
    first, again = (ethernet(ip6(tcp(b"data", one), "fd00::1 > fd00::2", 6), 0x86DD) for one in times)
    journeys = result(frame(first, "a:1", 0), frame(again, "a:1", 200), frame(again, "b:2", 201))
    assert hops(journeys) == [["a:1"], ["a:1", "b:2"]]


def test_identical_packets() -> None:
    """ARP repeats a request with the same bytes. Here the second one is lost between a and b."""
    arp_frame = ethernet(ARP, 0x0806)
    times = {"a:1": (0, 1000, 2000), "b:2": (1, 2001)}
    journeys = result(*(frame(arp_frame, hop, at) for hop, all_ in times.items() for at in all_))
    assert hops(journeys) == [["a:1", "b:2"], ["a:1"], ["a:1", "b:2"]]
    assert journeys[0].what() == "ARP who-has 21.0.0.1 tell 21.0.0.2"
    at_once = result(*(frame(arp_frame, hop, at) for at, hop in enumerate(("a:1", "a:1", "b:2", "b:2"))))
    assert hops(at_once) == [["a:1", "b:2"], ["a:1", "b:2"]]
    flooded = result(*(frame(arp_frame, hop, 0, "out") for hop in ("a:1", "a:2", "a:3")))
    assert hops(flooded) == [["a:1", "a:2", "a:3"]]


def test_one_row_per_sighting() -> None:
    journeys = result(frame(INNER, "cs1:eth0", 1, "out"), frame(carried(INNER), "lc1:lc1_br1", 1.5))
    counts = {"cs1:eth0": Counts(1), "lc1:lc1_br1": Counts(1, dropped_count=2, skipped_count=3)}
    first, second = journey.rows(journeys, counts, {"20.0.0.1": "cs1"})
    assert (first["packet"], first["position"], first["hop"], first["direction"]) == (0, 0, "cs1:eth0", "out")
    assert first["what"] == "cs1 > 20.0.0.3 echo request"
    assert (second["namespace"], second["interface"], second["time_s"]) == ("lc1", "lc1_br1", 0.0005)
    assert (first["time_ns"], second["time_ns"]) == (1 * MS, round(1.5 * MS))
    assert (second["length_bytes"], second["dropped_count"], second["skipped_count"]) == (148, 2, 3)
    assert second["stack"].startswith("Ethernet / IP 21.0.0.1 > 23.0.0.1 / UDP 4900 / VXLAN 30 / Ethernet")
    layer = second["layers"][3]
    assert (layer["name"], layer["text"], layer["header_bytes"], layer["length_bytes"]) == (
        "vxlan",
        "VXLAN 30",
        8,
        106,
    )


def test_comments_say_what_happened() -> None:
    routed = ethernet(ip(echo(), ENDS, 1, ttl=62))
    lost = frame(request(2), "a:1", 4, "out")
    seen = [frame(routed, "e:4", 3), frame(INNER, "a:1", 0, "out"), frame(carried(INNER), "b:2", 1), lost]
    names = {"20.0.0.1": "a", "20.0.0.3": "e"}
    result = journey.comments(journey.journeys(seen, PORTS), names)
    removed = (
        "removed Ethernet / IP 21.0.0.1 > 23.0.0.1 / UDP 4900 / VXLAN 30 (50 bytes); routed: TTL 64 is now 62"
    )
    assert result[0] == "packet 1 of 2: a > e echo request; hop 1 of 3: out at a:1"
    assert "hop 2 of 3: in at b:2; 1000.0 µs after the first; added Ethernet / IP 21.0.0.1" in result[1]
    assert result[2].endswith(f"3000.0 µs after the first; {removed}; arrived at e")
    assert result[3].endswith("hop 1 of 1: out at a:1; no later hop saw it, so it did not reach e")
    assert journey.comments(journey.journeys([lost], PORTS))[0].endswith("; this is the last hop that saw it")
    # A bridge floods what it has not learned: the copy for another end comes last.
    flooded = [frame(request(), hop, at) for at, hop in enumerate(("e:4", "f:5"))]
    last = journey.comments(journey.journeys(flooded, PORTS), names)[1]
    assert last.endswith("in at f:5; 1000.0 µs after the first; arrived at e")


def test_comments_in_a_file() -> None:
    """A commented file holds the same frames; a long comment is cut."""
    content, frames = written()
    content += pcapng.statistics(0, 1, Counts(2)) + pcapng.statistics(1, 1, Counts(2))
    commented = pcapng.in_order(content, {0: "first µ", 3: "µ" * 5000})
    expected = [replace(frame, comment=None) for frame in frames[::-1]]
    expected[0] = replace(expected[0], comment="first µ")
    expected[3] = replace(expected[3], comment="µ" * (pcapng.MAX_COMMENT_BYTES // 2))
    assert pcapng.read(commented).frames == expected
    assert pcapng.read(commented).counts == pcapng.read(content).counts
    assert pcapng.in_order(commented) == commented
    labels = "MPLS 5 / " * 10_000  # a frame may have thousands, and a comment has 65,535 bytes at most
    [one] = pcapng.read(
        pcapng.header([("a:1", 1)], 64) + pcapng.packet(0, 0, 1, 60, bytes(60), labels)
    ).frames
    assert one.comment == labels[: pcapng.MAX_COMMENT_BYTES]


def written(snap_bytes: int = 100) -> tuple[bytes, list[Frame]]:
    named = [("a:1", ETHERNET), ("b:2", RAW_IP)]
    content = pcapng.header(named, snap_bytes)
    frames = []
    for number, (data, (hop, kind)) in enumerate(itertools.product((INNER, SEED), named)):
        now = 1_795_000_000_000_000_000 + (7 - number)
        frames.append(Frame(hop, kind, now, "out" if number == 1 else "in", len(data), data[:snap_bytes]))
        flags = 2 if number == 1 else 5
        content += pcapng.packet(named.index((hop, kind)), now, flags, len(data), data[:snap_bytes])
    return content, frames


def test_capture_file_round_trip_and_order(tmp_path: Path) -> None:
    content, frames = written()
    content += pcapng.statistics(0, 1, Counts(2, 5, 7)) + pcapng.statistics(1, 1, Counts(2))
    report = pcapng.read(content)
    assert report.frames == frames[::-1]
    assert report.counts == {"a:1": Counts(2, 5, 7, 1), "b:2": Counts(2, 0, 0, 1)}
    assert report.is_whole
    path = tmp_path / "capture.pcapng"
    path.write_bytes(content)
    pcapng.sort(path)
    assert path.stat().st_size == len(content)
    assert pcapng.read(path.read_bytes()) == pcapng.read(content)
    places = [path.read_bytes().index(each.data) for each in frames[::-1]]
    assert places == sorted(places)
    assert [each.name for each in tmp_path.iterdir()] == ["capture.pcapng"]


def test_truncated_capture_file() -> None:
    """The file is that of a killed recorder or of a full disk."""
    content, frames = written()
    seen = set()
    for size in range(len(pcapng.header([], 0)), len(content)):
        report = pcapng.read(content[:size])
        assert report.frames == frames[: len(report.frames)][::-1]
        assert not report.is_whole or not report.counts
        seen.add(len(report.frames))
    assert seen == {0, 1, 2, 3}
    assert pcapng.read(content).counts == {
        "a:1": Counts(2, truncated_count=1),
        "b:2": Counts(2, truncated_count=1),
    }
    for wrong in (b"", b"\xd4\xc3\xb2\xa1" + bytes(20)):
        with pytest.raises(BadInput, match="not a capture"):
            pcapng.read(wrong)
