"""Blocks of the ring: decoded, counted and kept like their packets one by one, within bounds and with exact counts."""

import random
import struct
from collections import deque

import pytest
from example_frames import PAYLOAD, echo, ethernet, ip, tcp, udp, vxlan
from monitored_frames import mutants

from labkit.common.packets import ETHERNET, RAW_IP
from labkit.measure.observers.monitor.flows import MAX_CONVERSATIONS, OTHERS, Totals, identify
from labkit.measure.observers.monitor.kept import KeptPackets, Row, row
from labkit.system.recording import packet_ring
from labkit.system.recording.packet_ring import OUTGOING, STATUS_VLAN, Block

MAC_AT = 82  # where the kernel puts a frame behind its header


def block(frames: list[bytes], link_type: int = ETHERNET, tagged: frozenset[int] = frozenset()) -> Block:
    """Lay out a block as the kernel does (struct tpacket3_hdr), with a VLAN tag beside the frames `tagged`."""
    made, first = bytearray(48), 48
    for number, data in enumerate(frames):
        size = (MAC_AT + len(data) + 15) // 16 * 16
        status = STATUS_VLAN if number in tagged else 0
        head = packet_ring._head.pack(
            size, number, 5, len(data), len(data) + 4, status, MAC_AT, 7, 0x8100, OUTGOING * (number % 2)
        )
        made += (head.ljust(MAC_AT, b"\0") + data).ljust(size, b"\0")
    return Block(bytes(made), len(frames), first, link_type)


def test_packets_of_a_block() -> None:
    frames = [ethernet(bytes(30)), ethernet(bytes(50), 0x86DD)]
    seen = list(block(frames, tagged=frozenset({1})).packets())
    assert seen[0] == (5, 0, len(frames[0]) + 4, frames[0])
    tag = b"\x81\x00\x00\x07"
    assert seen[1] == (1_000_000_005, OUTGOING, len(frames[1]) + 8, frames[1][:12] + tag + frames[1][12:])
    raw = block([b"\x45" + bytes(30)], RAW_IP, frozenset({0}))
    assert next(iter(raw.packets()))[3] == b"\x45" + bytes(30)


@pytest.mark.parametrize("link_type", [ETHERNET, RAW_IP])
def test_blocks_are_counted_like_their_packets(link_type: int) -> None:
    draw = random.Random(18)
    ends = [f"10.0.0.{number}" for number in range(5)]
    ordinary = [
        ethernet(ip(bytes(40), f"{draw.choice(ends)} > {draw.choice(ends)}", draw.choice((1, 6, 17))))
        for _ in range(500)
    ]
    head = struct.pack("!IHBB", 6 << 28, 8, 17, 64)
    six = [ethernet(head + bytes([number % 3] * 40), 0x86DD) for number in range(99)]
    frames = [*ordinary, *six, *mutants(2000, seed=4)]
    draw.shuffle(frames)
    tagged = frozenset(draw.sample(range(len(frames)), 50))
    together, totals = Totals(), Totals()
    parts = [
        block(frames[at : at + 100], link_type, frozenset(number - at for number in tagged))
        for at in range(0, len(frames), 100)
    ]
    for part in parts:
        totals.add_block(part)
        for _time_ns, _kind, length_bytes, data in part.packets():
            name, addresses, _ports = identify(data, link_type)
            together.add(name, addresses, 1, length_bytes)
    assert totals.classes() == together.classes()
    assert sorted(totals.conversations(10**6)) == sorted(together.conversations(10**6))
    totals.add_block(parts[0])
    assert sum(count for count, _bytes in totals.classes().values()) == len(frames) + parts[0].count
    totals.clear()
    assert (totals.classes(), totals.conversations(9)) == ({}, [])


@pytest.mark.parametrize("port", [4789, 8472])
def test_what_vxlan_carries_is_counted_beside_plain_udp_of_the_same_hosts(port: int) -> None:
    ends = "10.0.0.1 > 10.0.0.2"
    plain = ethernet(ip(udp(PAYLOAD, 9), ends, 17))
    inside = [ethernet(ip(data, ends, number)) for data, number in ((echo(), 1), (tcp(b""), 6))]
    frames = [plain, *(ethernet(ip(udp(vxlan(one), port), ends, 17)) for one in inside)] * 20
    for part in (frames, frames[::-1]):
        totals = Totals({port: "vxlan"})
        for _ in range(2):
            totals.add_block(block(part))
        assert {name: count for name, (count, _) in totals.classes().items()} == {
            "udp": 40,
            "icmp": 40,
            "tcp": 40,
        }


def test_more_conversations_than_the_table_holds() -> None:
    frames = [
        ethernet(ip(bytes(40), f"10.0.{number >> 8}.{number & 255} > 10.0.0.1", 17))
        for number in range(MAX_CONVERSATIONS + 200)
    ]
    totals = Totals()
    for _ in range(2):
        totals.add_block(block(frames))
    rows = totals.conversations(10**6)
    assert len(rows) == MAX_CONVERSATIONS + 1
    assert rows[0][0] == OTHERS
    assert sum(one[3] for one in rows) == 2 * len(frames)


@pytest.mark.parametrize("max_bytes", [10**9, 30_000])
def test_kept_packets_and_forgotten_ones_are_exact(max_bytes: int) -> None:
    """Whatever comes as rows or as blocks: the newest are there, in order, and the others are counted."""
    draw = random.Random(7)
    kept, number = KeptPackets(100, max_bytes), 0
    came: deque[Row] = deque()
    for _ in range(300):
        frames = [ethernet(draw.randbytes(20)) for _ in range(draw.randrange(60))]
        some = block(frames)
        rows = [row(number + at, *seen) for at, seen in enumerate(some.packets())]
        if draw.random() < 0.5:
            kept.add(rows)
        else:
            kept.add_block(number, some)
        came.extend(rows)
        number += len(rows)
        assert kept.count + kept.forgotten_count == number
        assert kept.count <= 100
        there = kept.newest(-1, 10**6)
        assert there == list(came)[len(came) - kept.count :]
        half = number // 2
        assert kept.newest(-1, 7, half) == [one for one in there if one[0] < half][-7:]
        assert kept.newest(number - 10, 5) == there[-min(5, max(0, kept.count)) :][-9:]
    assert max_bytes < 10**9 or kept.count == 100
    kept.clear()
    assert (kept.count, kept.forgotten_count, kept.newest(-1, 9)) == (0, number, [])
