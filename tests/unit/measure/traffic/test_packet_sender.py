"""Frames of the packet generator: lengths, checksums, flows, rates, and line rate arithmetic."""

import dataclasses
import errno
import os
import socket
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from example_frames import ones_sum

from labkit.common import packets
from labkit.common.errors import BadInput
from labkit.measure.traffic import packet_generator, packet_sender, rates
from labkit.measure.traffic.base import Trial
from labkit.measure.traffic.packet_sender import FrameAddresses, Mix, headers
from labkit.measure.traffic.rates import IMIX, Line

V4 = FrameAddresses("eth0", "02:00:00:00:00:01", "02:00:00:00:00:02", "10.1.0.1", "10.2.0.1")
V6 = FrameAddresses("eth0", "02:00:00:00:00:01", "02:00:00:00:00:02", "fd00::1:1", "fd00::2:1")


def frames(addresses: FrameAddresses, mix: Mix) -> list[bytes]:
    """Return the prepared frames as they are sent (without FCS)."""
    made, length, sizes = headers(addresses, mix)
    starts = range(0, len(made), length)
    return [
        bytes(made[at : at + length]) + bytes(size - length) for at, size in zip(starts, sizes, strict=True)
    ]


def flow_of(frame: bytes) -> tuple[bytes, ...]:
    at = 26 if frame[12:14] == b"\x08\x00" else 22
    size = 4 if at == 26 else 16
    end = at + 2 * size
    return frame[:6], frame[6:12], frame[at : at + size], frame[at + size : end], frame[end : end + 4]


@pytest.mark.parametrize("addresses", [V4, V6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("vary", [("source_port",), ("target_ip", "source_mac"), ("source_ip", "target_mac")])
def test_flows_and_checksums(addresses: FrameAddresses, vary: tuple[str, ...]) -> None:
    result = frames(addresses, Mix((100, 600), 3000, vary))
    assert len({flow_of(frame) for frame in result}) == 3000
    assert [len(frame) for frame in result[:4]] == [96, 596, 96, 596]
    for frame in result[::97]:
        ip = frame[14:]
        if addresses is V4:
            assert ones_sum(ip[:20]) == 0xFFFF
            assert struct.unpack_from("!H", ip, 2)[0] == len(ip)
            udp = ip[20:]
        else:
            udp = ip[40:]
            assert ones_sum(ip[8:40] + struct.pack("!II", len(udp), 17) + udp) == 0xFFFF
            assert struct.unpack_from("!H", ip, 4)[0] == len(udp)
        assert struct.unpack_from("!H", udp, 4)[0] == len(udp)


def test_frames_with_a_tag_without_ethernet_and_in_a_mix() -> None:
    [first, *_] = frames(V4, Mix((64,), 1))
    layers = {layer.name: layer.fields for layer in packets.layers(first, 1)}
    assert (layers["ip"]["source"], layers["ip"]["target"]) == ("10.1.0.1", "10.2.0.1")
    assert layers["udp"]["target_port"] == 9
    tagged, plain = frames(V4, Mix(vlan=7))[0], frames(V4, Mix())[0]
    assert tagged[12:18] == bytes.fromhex("810000070800")
    assert tagged[:12] + tagged[16:] == plain  # the tag makes a frame longer and changes nothing else
    assert frames(dataclasses.replace(V4, vlan=7), Mix())[0] == tagged  # a sender in a VLAN
    bare = FrameAddresses("tun0", V4.source_mac, V4.target_mac, V4.source_ip, V4.target_ip, ethernet=False)
    [frame, *_] = frames(bare, Mix((64,), 1))
    assert (frame[0], len(frame)) == (0x45, 46)
    sizes = [len(frame) + 4 for frame in frames(V4, Mix(IMIX, 1))]
    assert len(sizes) % 12 == 0
    assert {size: 12 * sizes.count(size) / len(sizes) for size in set(sizes)} == {64: 7, 594: 4, 1518: 1}
    assert rates.mean_bytes(IMIX) == pytest.approx((7 * 64 + 4 * 594 + 1518) / 12)


def test_lines_and_sizes() -> None:
    gigabit = Line(1e9)
    assert gigabit.wire_bytes(64) == 84
    assert gigabit.max_pps(64) == pytest.approx(1_488_095, abs=1)
    assert Line(1e9, ("vlan",)).max_pps(64) == pytest.approx(1_420_455, abs=1)
    assert Line(1e9, ("vxlan",)).wire_bytes(64) == 134
    assert Line(1e9, ("vlan", "vxlan")).wire_bytes(64) == 138
    assert Line(1e9, ("vlan",)).arithmetic(64) == (
        "64 + 4 (vlan) + 20 = 88 bytes on the line; 1 Gbit/s / (88 · 8 bit) = 1420455 pps"
    )
    assert gigabit.arithmetic(64) == ("64 + 20 = 84 bytes on the line; 1 Gbit/s / (84 · 8 bit) = 1488095 pps")
    assert (rates.sizes("512"), rates.sizes("imix")) == ((512,), IMIX)
    with pytest.raises(BadInput, match="frame_bytes=big"):
        rates.sizes("big")


def test_rates_in_every_unit() -> None:
    for text, result in (
        ("100kpps", 1e5), ("1.4 Mpps", 1.4e6), ("512kbit/s", 1000), ("50%", 744_047.6), ("7pps", 7),
        ("1Mbps", 1953.125),
    ):  # fmt: skip
        assert rates.pps("rate", text, (64,), Line(1e9)) == pytest.approx(result)


def test_senders_share_a_number_of_frames() -> None:
    for count, number in ((10, 4), (3, 4), (1_000_001, 7), (5, 1)):
        shares = [packet_generator.share(count, number, place) for place in range(number)]
        assert sum(shares) == count
        assert max(shares) - min(shares) <= 1


def counted(offered: int, elapsed_s: float) -> Trial:
    """Return a trial of 1000 frames at 10 kpps."""
    return Trial(
        rate_pps=1e4, duration_s=0.1, requested_count=1000, offered_count=offered, sent_count=offered,
        received_count=offered, hops={}, elapsed_s=elapsed_s, slip_s=0.0, generator_cpu_s=0.0,
    )  # fmt: skip


def test_late_trial_of_exact_frames_is_generator_limited() -> None:
    """All frames were sent, but more than 1 % slower than the rate that was asked for."""
    assert not counted(1000, 0.1).generator_limited
    assert counted(1000, 0.102).generator_limited
    assert counted(999, 0.1).generator_limited


class BusyHop:
    """A socket whose first hop refuses frames until its queue has room again."""

    def __init__(self, refusals: int, number: int = errno.ENOBUFS) -> None:
        self.left, self.number = refusals, number
        self.sent: list[bytes] = []

    def send(self, frame: bytes) -> None:
        if self.left:
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number))
        self.sent.append(frame)


def sender_to(call: Callable[[int, int, int, int], int], burst: int | None = None) -> packet_sender.Sender:
    """Return a sender of 1,000 frames whose system call is this function."""
    sender = object.__new__(packet_sender.Sender)
    sender._call = call
    sender._socket = cast(socket.socket, SimpleNamespace(fileno=lambda: 0))
    sender._all = cast(Any, SimpleNamespace(buffer_info=lambda: (0, 0)))
    sender._block, sender._repeats, sender._count, sender._position, sender._turn = None, 1, 1000, 0, 0
    sender._burst = burst
    return sender


def test_refused_frames_of_a_batch_are_counted() -> None:
    """sendmmsg(2) returns how many frames were sent before the refused one, and no error."""
    answers = iter([5, 2, -1])
    called: list[tuple[int, int]] = []

    def call(_fd: int, place: int, wanted: int, _flags: int) -> int:
        called.append((place // 64, wanted))
        answer = next(answers, wanted)
        packet_sender.ctypes.set_errno(errno.ENOBUFS)
        return min(answer, wanted)

    report = sender_to(call).send(None, 10.0, 20)
    assert (report.sent_count, report.dropped_count) == (17, 3)
    assert [place for place, _ in called] == [0, 6, 9, 10], "the refused frame is not sent again"


@pytest.mark.parametrize("burst", [None, 150, 1024])
def test_no_rate_is_above_the_requested_one(burst: int | None) -> None:
    """The last burst leaves before its time of the rate is over, and a short trial may be one burst."""
    report = sender_to(lambda _fd, _place, wanted, _flags: wanted, burst).send(10_000, 10.0, 500)
    assert report.sent_count == 500
    assert report.sent_count / report.elapsed_s <= 10_000 * 1.001


def test_varied_addresses_are_of_no_end() -> None:
    """Ends have consecutive addresses. A switch drops a frame from the address of another end, or to its own port."""
    ends = {bytes.fromhex(f"0200000000{number:02x}") for number in range(256)}
    made = frames(V4, Mix((64,), 300, ("source_mac",)))[:300]
    assert made[0][6:12] == bytes.fromhex("020000000001")
    assert len({frame[6:12] for frame in made}) == 300
    assert not ends & {frame[6:12] for frame in made[1:]}
    assert all(frame[6] & 0b11 == 0b10 for frame in made), "locally administered, of one end"


def test_flows_of_more_than_one_field_differ() -> None:
    """A source port alone distinguishes 64,512."""
    made = frames(V4, Mix((64,), 70_000, ("source_port", "source_ip")))
    assert len({frame[26:36] for frame in made}) == len(made) == 70_000


def test_frame_after_a_load_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow CPU still works through the load before, so its backlog refuses the frame for a while."""
    busy = BusyHop(3)
    packet_sender.send_frame(cast(socket.socket, busy), b"frame")
    assert busy.sent == [b"frame"]
    monkeypatch.setattr(packet_sender, "REFUSED_S", 0.0)
    for refuses in (BusyHop(1 << 30), BusyHop(1, errno.ENETDOWN)):
        with pytest.raises(OSError, match=os.strerror(refuses.number)):
            packet_sender.send_frame(cast(socket.socket, refuses), b"frame")
