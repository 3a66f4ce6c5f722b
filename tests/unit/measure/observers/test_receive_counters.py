"""Receive counters where a tunnel ends beside the server: the tunnel's own datagrams, which the kernel counts, are
subtracted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.endpoints.namespace import Opened
from labkit.measure.observers.counters import receive_counters
from labkit.measure.observers.counters.receive_counters import ReceiveCounts
from labkit.system.netlink import LinkCounters

SNMP = "Udp: InDatagrams NoPorts InErrors OutDatagrams\nUdp: {} 0 0 7\n"


def server(taken_out: Iterator[int]) -> Any:
    """Return an endpoint whose namespace has decapsulated these numbers of packets, one for each reading."""
    kernel = SimpleNamespace(counters=lambda _index: LinkCounters(0, next(taken_out)))
    return SimpleNamespace(namespace=SimpleNamespace(netlink=kernel))


@pytest.mark.parametrize(
    ("taken_out", "expected"),
    [
        ([60, 60], 40),
        ([59, 60, 60, 60], 40),  # a packet arrived between the readings, but not the next time
        ([50, 60, 50, 60, 50, 60, 50, 60], 45),  # packets always arrive between the readings
    ],
)
def test_tunnel_datagrams_are_not_the_load(taken_out: list[int], expected: int, tmp_path: Path) -> None:
    path = tmp_path / "snmp"
    path.write_text(SNMP.format(100))
    readings = iter(taken_out)
    with Opened(str(path)) as file:
        assert receive_counters._received_datagrams(server(readings), file, [100]) == expected
    assert list(readings) == []


def test_all_datagrams_without_a_tunnel(tmp_path: Path) -> None:
    path = tmp_path / "snmp"
    path.write_text(SNMP.format(100))
    with Opened(str(path)) as file:
        assert receive_counters._received_datagrams(server(iter(())), file, []) == 100


def test_counts_never_decrease() -> None:
    assert ReceiveCounts(900, 9, 4, 12) - ReceiveCounts(1000, 10, 1, 3) == ReceiveCounts(0, 0, 3, 9)
    assert ReceiveCounts(1000, 10) - ReceiveCounts(900, 9) == ReceiveCounts(100, 1, None)
