"""ping's output, as the real one wrote it (iputils 20221126), becomes round-trip times in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.traffic import ping

SAMPLES = Path(__file__).parents[1] / "samples"


def sample(name: str) -> str:
    return (SAMPLES / f"ping-20221126-{name}.txt").read_text()


def test_every_answer_is_a_round_trip_time_in_seconds() -> None:
    times = ping.round_trip_times(sample("answered"))
    assert len(times) == 12
    # ping's own summary: rtt min/avg/max = 0.006/0.036/0.234 ms
    assert min(times) == pytest.approx(6e-6)
    assert max(times) == pytest.approx(234e-6)
    assert sum(times) / 12 == pytest.approx(36e-6, abs=1e-6)


def test_ipv6_reads_alike() -> None:
    assert ping.round_trip_times(sample("answered-ipv6")) == pytest.approx([68e-6, 41e-6, 5e-6])


def test_no_answer_is_no_time() -> None:
    assert ping.round_trip_times(sample("silent")) == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.004", 4e-6), ("1.23", 1.23e-3), ("12.3", 0.0123), ("1023", 1.023)]
)
def test_ping_prints_fewer_digits_of_longer_times(text: str, seconds: float) -> None:
    line = f"64 bytes from 10.2.0.1: icmp_seq=1 ttl=64 time={text} ms\n"
    assert ping.round_trip_times(line) == pytest.approx([seconds])
