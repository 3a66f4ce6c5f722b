"""What requests and their replies count as, for pings between all containers and for probes at a fixed rate, and the
outage that probes show."""

import errno
import os
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from example_networks import switched

from labkit.common.errors import Failed
from labkit.measure.observers.counters.receive_counters import Receivers
from labkit.system import netlink
from studies import probes
from studies.latency_under_load.experiment import CountsWithProbes, LatencyUnderLoad, late_probes, round_trips
from studies.overlay import reachability
from studies.overlay.reachability import PingPair
from studies.overlay.spine_failure import outage
from studies.probes import Probe

NO_NEIGHBOUR = OSError(errno.EHOSTUNREACH, "No route to host")
NO_ROUTE = OSError(errno.ENETUNREACH, "Network is unreachable")
ONE, TWO, LATE = (64, 0.001), (64, 0.002), (64, 0.9)  # the TTL of a reply, and its round-trip time
PAIR: Any = SimpleNamespace(
    client=SimpleNamespace(name="one", namespace=SimpleNamespace(fd=-1)),
    server=SimpleNamespace(name="two", address="10.0.0.2", port_offset=0),
)
ENDS = PingPair("one", "two", "10.0.0.1", "10.0.0.2")

Reply = tuple[int, float] | Exception


class FakeEcho:
    """An Echo that sends nothing: its requests get the given replies at once, and further ones get none.

    NO_ROUTE is an error of sending, and any other one comes back instead of a reply.
    """

    def __init__(self, replies: list[list[Reply]]) -> None:
        self._replies, self._sent_count = replies, 0
        self._arrived: list[tuple[int, Reply]] = []
        self._ready = os.eventfd(0, os.EFD_NONBLOCK)
        self.ttl: int | None = None
        self.all_taken = threading.Event()

    def fileno(self) -> int:
        return self._ready

    def close(self) -> None:
        os.close(self._ready)

    def send(self) -> None:
        self._sent_count += 1
        arriving = self._replies[self._sent_count - 1] if self._sent_count <= len(self._replies) else []
        if NO_ROUTE in arriving:
            raise NO_ROUTE
        self._arrived += [(self._sent_count, reply) for reply in arriving]
        os.eventfd_write(self._ready, 1)

    def answer(self) -> tuple[int, int] | None:
        if not self._arrived:
            os.eventfd_read(self._ready)
            if self._sent_count >= len(self._replies):
                self.all_taken.set()
            return None
        number, reply = self._arrived.pop(0)
        if isinstance(reply, Exception):
            raise reply
        self.ttl, rtt_s = reply
        return number, time.time_ns() + round(rtt_s * 1e9)


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock from which round-trip times are computed, and let no socket be in a namespace."""
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    monkeypatch.setattr(netlink, "inside", lambda fd: nullcontext())
    monkeypatch.setattr(reachability, "PATIENCE_S", 0.05)
    monkeypatch.setattr(probes, "LINGER_S", 0.0)


@pytest.mark.parametrize(
    ("replies", "rtts_s", "ttl", "duplicates_count"),
    [
        ([[ONE], [TWO]], [0.001, 0.002], 64, 0),
        ([[ONE, LATE], [TWO]], [0.001, 0.002], 64, 1),
        ([[ONE], []], [0.001, None], 64, 0),
        ([[], []], [None, None], None, 0),
        ([[NO_NEIGHBOUR], [TWO]], [None, 0.002], 64, 0),
        ([[NO_ROUTE], [TWO]], [None, 0.002], 64, 0),
        ([[ONE], [(63, 0.002)]], [0.001, 0.002], None, 0),
    ],
    ids=["answered", "duplicate", "lost", "silent", "error", "not sent", "two TTLs"],
)
@pytest.mark.usefixtures("stopped_clock")
def test_replies(
    replies: list[list[Reply]],
    rtts_s: list[float | None],
    ttl: int | None,
    duplicates_count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reachability, "Echo", lambda *_: FakeEcho(replies))
    [answers] = reachability.echo({"one": PAIR.client.namespace}, [ENDS], 2)
    times = [one for one in rtts_s if one is not None]
    assert answers.row() == {
        "sent_count": 2,
        "received_count": len(times),
        "ttl": ttl,
        "rtt_min_s": pytest.approx(min(times)) if times else None,
        "rtt_p50_s": pytest.approx(sum(times) / len(times)) if times else None,
        "rtt_max_s": pytest.approx(max(times)) if times else None,
    }
    assert answers.duplicates_count == duplicates_count
    at_a_rate = FakeEcho(replies)
    monkeypatch.setattr(probes, "Echo", lambda *_: at_a_rate)
    with probes.probing([PAIR], 1000) as probing:
        assert at_a_rate.all_taken.wait(30)
    assert [one.rtt_s for one in probing.probes[:2]] == [one and pytest.approx(one) for one in rtts_s]


@pytest.mark.usefixtures("stopped_clock")
def test_requests_without_a_route_are_sent_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise refused

    refused = NO_ROUTE
    monkeypatch.setattr(reachability, "Echo", refuse)
    [answers] = reachability.echo({"one": PAIR.client.namespace}, [ENDS], 3)
    assert (answers.row()["sent_count"], answers.row()["received_count"]) == (3, 0)
    refused = OSError(errno.EPERM, "Operation not permitted")
    with pytest.raises(Failed, match="one cannot ping two: Operation not permitted"):
        reachability.echo({"one": PAIR.client.namespace}, [ENDS], 3)


@pytest.mark.usefixtures("stopped_clock")
def test_error_that_ends_probes_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it, nothing is sent, so the probes would end early without a word."""
    monkeypatch.setattr(probes, "Echo", lambda *_: FakeEcho([[ONE], [ValueError("no reply at all")]]))
    with pytest.raises(ValueError, match="no reply at all"), probes.probing([PAIR], 1000) as probing:
        probing.probers[0].join(30)


def regular(lost: set[int]) -> list[Probe]:
    return [Probe(number / 10, None if number in lost else 0.001) for number in range(20)]


def test_longest_outage() -> None:
    for lost, length_s, over in (
        (set(), 0.0, True), ({5}, 0.1, True), ({5, 6, 7, 12}, 0.3, True), ({4, 17, 18, 19}, 0.3, False),
    ):  # fmt: skip
        result = outage(regular(lost))
        assert result.length_s == pytest.approx(length_s, abs=1e-3)
        assert result.over == over


def test_outage_of_late_answers() -> None:
    """Requests wait for a neighbour's address, and all of them are answered together a second late."""
    late = [
        Probe(one.sent_s, 1.3 - one.sent_s if 0.25 < one.sent_s < 1.25 else 0.001) for one in regular(set())
    ]
    assert outage(late) == pytest.approx((1.3 - 0.201 - 0.1, 0.201, True))
    assert outage(late, since_s=1.35).length_s == pytest.approx(0, abs=1e-6)
    assert outage([Probe(5.0, 0.001)]) == (0.0, 5.001, False)


@pytest.mark.parametrize(
    ("stalled", "words"), [("idle", "before the load"), ("loaded", "under load"), ("after", "after the load")]
)
def test_late_probes_of_any_phase_are_a_doubt(stalled: str, words: str) -> None:
    """A stall before the load makes the increase too small."""
    phases = {"idle": (0.0, 10.0), "loaded": (10.0, 20.0), "after": (20.0, 30.0)}
    begin_s, _ = phases[stalled]
    sent = [Probe(at, 0.001, 0.3 if begin_s <= at < begin_s + 2 else 0.0) for at in range(30)]
    [doubt] = late_probes(probes.Probing(probes=sent), phases, udp=True)
    assert doubt.startswith(f"20 % of the probes {words} were sent late")
    assert doubt.endswith("times include")


def test_a_load_may_lose_all_probes() -> None:
    """They are slower than all others. Before the load, the path is then broken."""
    phases = {"idle": (0.0, 10.0), "loaded": (10.0, 20.0), "after": (20.0, 30.0)}
    sent = [Probe(at, None if 10 <= at < 20 else 0.001) for at in range(30)]
    row = round_trips(probes.Probing(probes=sent), phases)
    assert (row["received_count"], row["lost_count"], row["sent_count"]) == (0, 10, 10)
    assert (row["idle_p50_s"], row["latency_p50_s"], row["increase_p50_s"]) == (0.001, None, None)
    with pytest.raises(Failed, match="none of 10 probes got an answer before the load"):
        round_trips(probes.Probing(probes=sent), {**phases, "idle": phases["loaded"]})
    with pytest.raises(Failed, match="no probe was sent"):
        round_trips(probes.Probing(), phases)


@pytest.mark.parametrize(("load", "carries"), [(0, False), (1, False), (2, True)])
def test_probes_that_counters_have_do_not_begin_a_flow(load: int, carries: bool) -> None:
    """Some arrive just before the counters are read."""
    sending, others = Mock(sent_counts=[100, 300]), Mock(sent_counts=[0, 0])
    before = CountsWithProbes([7, 7, 9, 9], (sending, 1), (others, 2))

    def received() -> list[int]:
        sending.sent_counts, others.sent_counts = [140, 350], [5, 10]
        return [57, 77, 59 + load, 79 + load]

    counters = Mock(_protocol="udp", per_server=received)
    assert Receivers.carrying(counters, before) == [False, False, carries, carries]


def test_requests_beside_datagrams_cross_a_network_of_ones_own() -> None:
    """It publishes no port."""
    given = {"topology": [switched()], "protocol": "udp_rr", "load": "udp", "rate_bps": 1e6}
    LatencyUnderLoad.of(given).check()
