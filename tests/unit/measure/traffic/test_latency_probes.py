"""Probes that were lost, arrived twice, or overtook each other."""

import errno
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.traffic import latency_probes, packet_generator, ping
from labkit.measure.traffic.base import Arrived, Trial
from labkit.measure.traffic.latency_probes import Prober, latency
from labkit.measure.traffic.packet_generator import PacketTrials

FIRST, COUNT = 1, 5  # number 0 is the ignored one
ARRIVED = [0, 1, 3, 2, 2]
# The last is of a tunnel's underlay.
STAMPS = [(0, 1), (1, 1_000), (2, 2_000), (3, 3_000), (4, 4_000), (2, 9_999)]


def result(monkeypatch: pytest.MonkeyPatch, stamps: list[tuple[int, int]]) -> dict[str, Any]:
    """Return the counts of probes that are sent 50 ns before their stamps and arrive 100 ns after them."""
    prober = object.__new__(Prober)
    prober._stamps, prober._probes = {}, []
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


def test_late_probes_are_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path delays them for longer than the trial takes, and for longer than labkit waits between two of them."""
    prober, sent = object.__new__(Prober), list[tuple[float, int]]()
    prober._number = 0

    def one(_now_ns: int) -> None:
        sent.append((time.monotonic() + 0.12, prober._number))
        prober._number += 1

    def arrived() -> Iterator[tuple[int, int, int]]:
        while sent and sent[0][0] <= time.monotonic():
            yield sent.pop(0)[1], 0, 1

    monkeypatch.setattr(prober, "_one", one)
    monkeypatch.setattr(prober, "_sent", lambda: iter(()))
    monkeypatch.setattr(prober, "_arrived", arrived)
    monkeypatch.setattr(latency_probes, "DRAIN_S", 0.02)
    result = prober.answer([0.05, 1000, 0.2])
    assert (result["sent"], result["received"]) == (50, 50)


def test_probe_that_the_first_hop_drops_is_lost() -> None:
    """A full queue at the sender must not end a search, which would lose its rows."""
    prober = object.__new__(Prober)
    prober._frame, prober._at, prober._number = bytearray(64), 42, 3

    def full(*_: object) -> None:
        raise OSError(errno.ENOBUFS, "No buffer space available")

    prober._send, prober._to = SimpleNamespace(sendto=full), ()  # type: ignore[assignment]
    prober._one(0)
    assert prober._number == 4


@pytest.mark.parametrize(("rate_pps", "load_pps", "probes_pps"), [(5000, 4000, 1000), (200, 100, 100)])
def test_load_and_probes_are_together_as_fast_as_asked(
    rate_pps: float, load_pps: float, probes_pps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, begun = object.__new__(PacketTrials), list[Any]()
    made = Trial(
        rate_pps=None, duration_s=1, offered_count=0, sent_count=0, received_count=0, hops={}, elapsed_s=1,
        slip_s=0, generator_cpu_s=0,
    )  # fmt: skip
    monkeypatch.setattr(trials, "prepare", lambda latency: None)
    monkeypatch.setattr(trials, "begun", lambda *given: begun.append(given) or (lambda: made))
    assert trials.trial(rate_pps, 1.0, latency=True).rate_pps == rate_pps
    assert begun == [(load_pps, 1.0, probes_pps, None)]


@pytest.mark.parametrize(
    "times_s",
    [
        [0.1] * 10,  # a delay that is longer than the trial
        [0.04 * number for number in range(10)],  # a slow link, or a low rate
        [*[0.1] * 9, 0.14],  # a delay that varies
    ],
)
def test_late_frames_are_no_loss(times_s: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    assert arriving(before_a_load(), times_s, monkeypatch)[0] == 10


def before_a_load() -> PacketTrials:
    trials = object.__new__(PacketTrials)
    trials._delay_s = None
    return trials


def arriving(
    trials: PacketTrials, times_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, float]:
    """Return how many of ten frames that arrive so long after a load of 0.2 s count, and how long they still arrived
    beside the delay of the path."""
    begun_s = time.monotonic()
    trials._receiving: Any = SimpleNamespace(settle_s=0.02, names=["server0"])

    def counted() -> tuple[Arrived, int]:
        passed_s = time.monotonic() - begun_s
        return Arrived([sum(one <= passed_s for one in times_s)], 0), 10

    monkeypatch.setattr(trials, "_counted", counted)
    by_server, _hops, drained_s = trials._wait_for_arrivals((Arrived([0], 0), 0), 10, 0.2)
    return by_server["server0"], drained_s


def test_path_with_a_delay_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first load shows the delay, although it is longer than labkit waits on other paths."""
    monkeypatch.setattr(packet_generator, "DRAIN_S", 0.1)
    monkeypatch.setattr(ping, "PATIENCE_S", 0.5)
    trials, others = before_a_load(), before_a_load()
    slow_s = [0.03 * number for number in range(10)]
    assert arriving(trials, [0.3] * 10, monkeypatch) == (10, 0)
    assert arriving(trials, slow_s, monkeypatch) == (10, 0), "the delay is 0.5 s"
    assert arriving(others, [0.0] * 10, monkeypatch) == (10, 0)
    assert arriving(others, slow_s, monkeypatch)[0] < 10, "a path without delay, whose queue is long"
    count, drained_s = arriving(others, [*[0.0] * 5, *[0.06] * 5], monkeypatch)
    assert (count, drained_s) == (10, pytest.approx(0.06, abs=0.03))
