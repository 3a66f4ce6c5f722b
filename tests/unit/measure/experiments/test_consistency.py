"""A row whose numbers contradict each other is invalid, with the reason. A consistent row stays valid."""

from pathlib import Path
from typing import Any

from labkit.measure.experiments import RunContext, consistency, rows
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import Arm
from labkit.measure.topologies.base import Copies
from labkit.measure.topologies.open_vswitch import mirrors

UDP: dict[str, Any] = {
    "protocol": "udp", "method": "whole", "duration_s": 5, "length_bytes": 100, "window_s": 4.0,
    "received_count": 4000, "received_bytes": 400_000, "throughput_bps": 800_000.0, "throughput_pps": 1000.0,
    "iperf3_bps": 810_000.0, "reported_received_count": 5000, "sent_count": 6000, "lost_count": 1000,
}  # fmt: skip
PING: dict[str, Any] = {
    "protocol": "ping", "method": "whole", "duration_s": 5, "sent_count": 10, "received_count": 10,
    "latency_p50_s": 1e-3, "latency_p99_s": 2e-3, "latency_max_s": 3e-3,
}  # fmt: skip
FRAMES: dict[str, Any] = {
    "protocol": "udp", "method": "search", "frame_bytes": 64, "link_rate_bps": 1e8, "throughput_bps": 208_333 * 512.0,
}  # fmt: skip


def test_every_row_is_checked() -> None:
    run_context = RunContext("datapaths", Path("run"), 1, {})
    parameters, arm = DatapathParameters(protocol="udp", length_bytes=100), Arm("veth", "baseline")

    def row(**changes: Any) -> dict[str, Any]:
        return rows.row_of(parameters, run_context, arm, 1, {"status": "ok"} | UDP | changes)

    assert (row()["status"], row()["reason"]) == ("ok", None)
    wrong = row(received_bytes=0)
    assert wrong["status"] == "invalid"
    assert "contradiction: 0 bytes were received in 4000 packets" in wrong["reason"]
    failed = row(status="failed", reason="iperf3: no route", received_bytes=0)
    assert (failed["status"], failed["reason"]) == ("failed", "iperf3: no route")


def test_contradictions_are_named() -> None:
    for row, says in (
        (UDP, None),
        (PING, None),
        (UDP | {"received_count": None, "received_bytes": None}, None),  # rows of labkit 0.1 lack some
        (UDP | {"method": "slice", "sent_count": 10, "lost_count": None}, None),  # datagrams were queued before
        # Two flows that did not run at the same time: each had more than half of the link.
        (UDP | {"link_rate_bps": 800_000, "iperf3_bps": 900_000.0, "pairs": 2}, None),
        (UDP | {"link_rate_bps": 800_000, "iperf3_bps": 900_000.0, "streams": 2}, None),
        (UDP | {"link_rate_bps": 800_000, "iperf3_bps": 900_000.0, "pairs": 1, "streams": 1},
         "iperf3_bps is 0.9 Mbit/s over a link of 0.8 Mbit/s"),
        # The row of the report: no packet in the kernel's window, but 7,520 datagrams at iperf3's end.
        (UDP | {"received_bytes": 0, "received_count": 7520, "throughput_bps": 0.0},
         "0 bytes were received in 7520 packets"),
        (UDP | {"received_bytes": 300_000}, "4000 datagrams of 100 bytes were received, but 300000 bytes"),
        (UDP | {"lost_count": 1400}, "5000 packets arrived by the generator's count and 1400 were lost, but 6000"),
        (UDP | {"iperf3_bps": 400_000.0 - 1}, "iperf3 0.4 Mbit/s"),
        (UDP | {"link_rate_bps": 700_000}, "throughput_bps is 0.8 Mbit/s over a link of 0.7 Mbit/s"),
        # A token bucket of 100 Mbit/s passes 208,333 frames of 60 bytes, which are 64 with their check sequence.
        (FRAMES, None),
        (FRAMES | {"throughput_bps": 1.13e8}, "throughput_bps is 113 Mbit/s over a link of 100"),
        (UDP | {"throughput_bps": float("nan")}, "throughput_bps is nan"),
        (PING | {"received_count": 11}, "11 packets arrived and 0 were lost, but 10 were sent"),
        (PING | {"latency_p99_s": 4e-3}, "round-trip times of 0.001 s"),
    ):  # fmt: skip
        found = consistency.contradiction(row)
        assert found is None if says is None else says in str(found)


def test_doubt_about_mirrors() -> None:
    of_six = "but 0 of mirror0, 0 of mirror1, 0 of mirror2, 0 of mirror3 and of 1 more; "
    for each, words in (
        (None, ""),
        ([10_000, 9_600], ""),
        ([5_000, 5_000], ""),  # they lost alike, as on a link that is full
        ([10_000, 400], "should have made 10000, 10000 of mirror0 arrived, but 400 of mirror1; "),
        ([0, 0, 0, 0, 0, 9_000], of_six),
    ):
        expected = 10_000 * len(each or [1])
        found = consistency.doubts({"copies_expected_count": expected, "copies_of_mirrors": each})
        assert len(found) == bool(words)
        assert all(words in one for one in found)


def test_counts_of_copies() -> None:
    """Counts that are read one after the other differ by the packets in flight."""
    assert consistency.doubts({"copies_expected_count": 200, "copies_of_mirrors": [100, 40]}) == []
    assert consistency.doubts({"copies_expected_count": 0, "copies_of_mirrors": [0, 0]}) == []
    before = Copies(10, (4, 6), (0, 1))
    now = Copies(110, (54, 56), (7, 1))
    assert mirrors.copy_columns(before, now) == {
        "copies_count": 100, "copies_of_mirrors": [50, 50], "copies_unread_count": 7, "unread_of_mirrors": [7, 0],
    }  # fmt: skip
    # Mirrors on one cable may not be told apart, and share a reader; tcpdump's losses are unknown.
    assert mirrors.copy_columns(Copies(0, None, (0,)), Copies(9, None, (2,))) == {
        "copies_count": 9, "copies_unread_count": 2,
    }  # fmt: skip
    assert mirrors.copy_columns(Copies(0, (0, 0), (0,)), Copies(9, (4, 5), (2,))) == {
        "copies_count": 9, "copies_of_mirrors": [4, 5], "copies_unread_count": 2,
    }  # fmt: skip
    assert mirrors.copy_columns(Copies(0, (0, 0), (None, 0)), Copies(9, (4, 5), (None, 0))) == {
        "copies_count": 9, "copies_of_mirrors": [4, 5],
    }  # fmt: skip
