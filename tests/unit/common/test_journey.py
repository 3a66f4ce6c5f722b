"""Packets are followed from hop to hop, and read from capture files."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from example_frames import ARP, INNER, PORTS, SEED, echo, ethernet, ip, ip6, tcp, udp, vxlan

from labkit.common import packets
from labkit.common.errors import BadInput
from labkit.common.packets import journey, pcapng
from labkit.common.packets.journey import Journey
from labkit.common.packets.pcapng import Counts, Frame

ENDS = "20.0.0.1 > 20.0.0.3"
MS = 1_000_000


def frame(data: bytes, hop: str, ms: float, direction: str = "in", size: int | None = None) -> Frame:
    return Frame(hop, packets.ETHERNET, round(ms * MS), direction, len(data), data[:size])


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
    named = [("a:1", packets.ETHERNET), ("b:2", packets.RAW_IP)]
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
