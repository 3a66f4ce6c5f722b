"""Samplers on packets with known times, lengths and flows."""

import pytest

from labkit.common.errors import BadInput
from labkit.measure.observers.monitor import sampler
from labkit.measure.observers.monitor.sampling import MAX_FLOWS

MS = 1_000_000


def chosen(text: str, packets: list[tuple[int, int, bytes]]) -> list[int]:
    sample = sampler(text)
    return [number for number, packet in enumerate(packets) if sample(*packet)]


def every_ms(count: int) -> list[tuple[int, int, bytes]]:
    return [(number * MS, 100, b"flow") for number in range(count)]


def test_samplers() -> None:
    assert chosen("all", every_ms(3)) == [0, 1, 2]
    assert chosen("one_in:4", every_ms(10)) == [3, 7]
    assert chosen("interval:2:0.01", every_ms(30)) == [0, 1, 10, 11, 20, 21]
    count = len(chosen("random:0.1", every_ms(10_000)))
    assert 850 < count < 1150  # 5 standard deviations of a binomial distribution
    assert chosen("random:0.1:7", every_ms(1000)) == chosen("random:0.1:7", every_ms(1000))
    assert chosen("random:0", every_ms(1000)) == []
    assert len(chosen("random:1", every_ms(1000))) == 1000
    packets = [(0, 100, flow) for _ in range(5) for flow in (b"a", b"b")]
    assert chosen("first:250", packets) == [0, 1, 2, 3, 4, 5]
    packets = [(0, 100, number.to_bytes(4)) for number in range(MAX_FLOWS + 1)]
    assert len(chosen("first:100", [*packets, packets[0]])) == MAX_FLOWS + 2


def test_invalid_sampler_is_refused() -> None:
    fractions = ("one_in:1.5", "random:0.1:0.5", "interval:1.5:1", "first:1.5")
    for text in (*fractions, "some", "one_in:0", "one_in:nan", "random:2", "interval:1:1:1", "x" * 10_000):
        with pytest.raises(BadInput, match="choose all, one_in:N") as raised:
            sampler(text)
        assert len(str(raised.value)) < 600
