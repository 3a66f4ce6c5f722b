"""A full log of sockperf 3.7 becomes round trips: 1,000 requests a second, and the server was stopped for 300 ms."""

import gzip
from array import array
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.common.errors import Failed
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.traffic import sockperf

LOG = Path(__file__).parents[3] / "samples" / "sockperf-3.7-stalled-server.csv.gz"


def log() -> sockperf.Log:
    with gzip.open(LOG, "rt") as lines:
        return sockperf.read(lines)


def columns(log: sockperf.Log, duration_s: int, rate_rps: int | None, omit_s: int = 0) -> dict[str, Any]:
    given = DatapathParameters(duration_s=duration_s, rate_rps=rate_rps, omit_s=omit_s)
    return sockperf.columns([log], given)


def punctual(count: int, period_ns: int = 1_000_000, rtt_ns: int = 20_000) -> sockperf.Log:
    """A log of messages that were sent when they were due, all with the same round trip."""
    sent = array("q", (5_000_000_000 + number * period_ns for number in range(count)))
    received = array("q", (one + rtt_ns for one in sent))
    return sockperf.Log(sent, received, count, count * period_ns * 1e-9, 0, 0)


def test_stall_shows_in_the_recorded_log() -> None:
    row = columns(log(), 1, 1000)
    assert (row["loop"], row["sent_count"], row["lost_count"]) == ("open", 1000, 62)
    # 30 % of the requests came during the stall.
    assert row["latency_p50_s"] < 2e-3 < 0.2 < row["latency_p90_s"] < 0.3
    # More than 1 % were lost, because the socket was full. Nobody knows how long they would have taken.
    assert {row[f"latency_{name}_s"] for name in ("p99", "p999", "max")} == {None}
    assert "6.2 % of the requests got no response" in row["doubts"][-1]


@pytest.mark.parametrize("rate_rps", [None, 1000])
def test_delay_of_one_percent_is_at_p99_and_not_at_p50(rate_rps: int | None) -> None:
    plain = punctual(1500)
    slow = array("q", (one + 5_000_000 * (number % 80 == 0) for number, one in enumerate(plain.received_ns)))
    logs = (plain, replace(plain, received_ns=slow))
    before, after = (columns(one, 1, rate_rps) for one in logs)
    for row in (before, after):
        assert row["latency_p50_s"] == pytest.approx(20e-6, rel=1e-3)
        assert row["transaction_rate"] == pytest.approx(1000, rel=2e-3)
    assert before["latency_p99_s"] == pytest.approx(20e-6, rel=1e-3)
    assert after["latency_p99_s"] == pytest.approx(5.02e-3, rel=1e-3)


def test_overtaken_requests_are_slower_than_all_others() -> None:
    """sockperf leaves out a response that comes after a later one, which is how a delayed request looks at a rate."""
    plain = punctual(1500)
    kept = [number for number in range(1500) if number % 80]
    sent, received = (array("q", (one[at] for at in kept)) for one in (plain.sent_ns, plain.received_ns))
    left = sockperf.Log(sent, received, 1500, 1.5, 0, 1500 - len(kept))
    row = columns(left, 1, 1000)
    assert (row["received_count"], row["sent_count"], row["lost_count"]) == (1000, 1000, 0)
    assert (row["latency_p90_s"], row["latency_p99_s"]) == (pytest.approx(20e-6, rel=0.1), None)
    assert "sockperf does not time 1.2 % of the requests" in row["doubts"][-1]


def test_sender_that_was_held_hides_nothing() -> None:
    """Its messages wait for 300 ms and leave together. Every tenth of the others was lost."""
    plain = punctual(1500)
    sent = array("q", plain.sent_ns)
    sent[400:700] = array("q", [sent[700]] * 300)
    kept = [number for number in range(1500) if 400 <= number < 700 or number % 10 != 5]
    left, answered = (array("q", (sent[at] + rtt_ns for at in kept)) for rtt_ns in (0, 20_000))
    held = sockperf.Log(left, answered, 1500, 1.5, 1500 - len(kept), 0)
    due = held.due_ns(1000)
    assert all(abs(due[at] - plain.sent_ns[number]) < 1000 for at, number in enumerate(kept))
    row = columns(held, 1, 1000)
    assert row["latency_p50_s"] == pytest.approx(20e-6, rel=0.05)
    assert row["latency_max_s"] is None
    assert row["lost_count"] == pytest.approx(70, abs=2)
    assert "sockperf sent 32 % of the requests more than 50 µs late" in row["doubts"][0]


def test_too_few_requests() -> None:
    row = columns(punctual(1500), 1, 2000)
    assert row["reason"] == "generator-limited: 1000 of the requested 2000 requests a second were sent"
    with pytest.raises(Failed, match=r"^after 500 round trips a response did not come, and sockperf waited"):
        columns(punctual(500), 1, None)


@pytest.mark.parametrize("rate_rps", [None, 1000])
def test_the_warm_up_is_left_out(rate_rps: int | None) -> None:
    """Its requests are slow here; those behind the duration are, too."""
    plain = punctual(3500)
    late = [300_000 if 1000 <= number < 3000 else 9_000_000 for number in range(3500)]
    slow = array("q", (one + extra for one, extra in zip(plain.sent_ns, late, strict=True)))
    row = columns(replace(plain, received_ns=slow), 2, rate_rps, 1)
    assert row["received_count"] == pytest.approx(2000, abs=2)
    assert row["latency_p99_s"] == pytest.approx(300e-6, rel=0.02)
    given = {"protocol": "udp_rr", "duration_s": 2, "omit_s": 3, "slices": 0, "rate_rps": rate_rps}
    pair: Any = SimpleNamespace(
        client=SimpleNamespace(cpu=None), server=SimpleNamespace(port_offset=0), server_address="10.2.0.3"
    )
    assert "-t6" in sockperf.client_argv(DatapathParameters.of(given), pair, Path("log"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sockperf: No messages were received from the server.\n", "no request got a response"),
        ("0, 1.0, 2.0\n", "the full log of sockperf cannot be read: not enough values"),
    ],
)
def test_other_logs(text: str, words: str) -> None:
    with pytest.raises(Failed, match=words):
        sockperf.read(text.splitlines())
