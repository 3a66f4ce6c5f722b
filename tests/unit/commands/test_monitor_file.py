"""The file of `labkit monitor`: what is said of packets that are not in it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from labkit.commands import monitor
from labkit.common.packets import ETHERNET, pcapng
from labkit.measure.observers.monitor.live_monitor import MonitoredPacket, MonitorReport
from labkit.measure.observers.monitor.monitor import MonitorCounts


def test_packets_that_the_display_filter_hides_are_not_missed(tmp_path: Path) -> None:
    """Of ten packets seven are hidden, and one of the others left memory before it could be written."""
    counts = MonitorCounts(
        seen_count=12, selected_count=10, dropped_count=0, waiting_count=0, unsampled_count=0, kept_count=2,
        forgotten_count=1, hidden_count=7, unexamined_count=0,
    )  # fmt: skip
    packets = [MonitoredPacket(number, number, "in", 60, bytes(60), ETHERNET) for number in (7, 9)]
    report = MonitorReport(counts, {}, [], packets, False, ETHERNET)
    source: Any = SimpleNamespace(
        read=lambda _since, _limit: report, hop="a:b", request=SimpleNamespace(snap_bytes=256)
    )
    with monitor._writing(tmp_path / "file", source) as writer:
        writer.write(source)
    assert (writer.count, writer.missed) == (2, 1)
    assert len(pcapng.read((tmp_path / "file").read_bytes()).frames) == 2
