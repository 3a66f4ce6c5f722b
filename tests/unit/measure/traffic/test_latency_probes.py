"""Probes that were lost, arrived twice, or overtook each other."""

from typing import Any

import pytest

from labkit.measure.traffic.latency_probes import Prober, latency

FIRST, COUNT = 1, 5  # number 0 is the ignored one
ARRIVED = [0, 1, 3, 2, 2]
STAMPS = [
    (0, 1),
    (1, 1_000),
    (2, 2_000),
    (3, 3_000),
    (4, 4_000),
    (2, 9_999),
]  # the last is of a tunnel's underlay


def result(monkeypatch: pytest.MonkeyPatch, stamps: list[tuple[int, int]]) -> dict[str, Any]:
    """Return the counts of probes that are sent 50 ns before their stamps and arrive 100 ns after them."""
    prober = object.__new__(Prober)
    arrived = [(number, 1_000 * number - 50, 1_000 * number + 100) for number in ARRIVED]
    monkeypatch.setattr(prober, "_sent", lambda: iter(stamps))
    monkeypatch.setattr(prober, "_arrived", lambda: iter(arrived))
    return prober._result(FIRST, COUNT)


def test_probes_and_their_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    one = latency(result(monkeypatch, STAMPS))
    assert (one.sent_count, one.received_count, one.lost_count) == (5, 3, 2)
    assert (one.reordered_count, one.duplicated_count) == (1, 1)
    made = result(monkeypatch, STAMPS)
    assert (made["clock"], made["latencies_ns"]) == ("kernel", [100] * 3)
    made = result(monkeypatch, [one for one in STAMPS if one[0] != 3])
    assert (made["clock"], made["latencies_ns"]) == ("sender", [150] * 3)
