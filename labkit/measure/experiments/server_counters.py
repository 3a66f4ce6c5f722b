"""The servers' side of a whole run: whether every flow carries data, and what arrived while all of them ran.

The servers may be on this host or on another one; `ServerSide` is the interface of both.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import msgspec

from labkit.common.errors import Failed
from labkit.measure.endpoints import Endpoint, Kernel, of_guests
from labkit.measure.observers.counters.receive_counters import Receivers
from labkit.measure.traffic.base import Flows, Page
from labkit.system import machine


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of the servers' host in `window_s` seconds of its own clock.

    The CPU time in it is that of the host that runs the clients. What was sent is known only if they are on this host.
    """

    window_s: float
    received_bytes: int
    received_count: int
    sent_count: int | None = None
    fragments_count: int | None = None
    reverse_bytes: int | None = None
    cpu_s: float
    softirq_s: float
    steal_s: float
    doubts: list[str] = []

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a row: what arrived, at which rates, and the CPU time."""
        names = ("window_s", "received_bytes", "received_count", "cpu_s", "softirq_s", "steal_s")
        each_bytes = {"throughput_bps": self.received_bytes}
        if self.reverse_bytes is not None:
            forward_bytes = self.received_bytes - self.reverse_bytes
            each_bytes |= {"forward_bps": forward_bytes, "reverse_bps": self.reverse_bytes}
        return {
            **{name: getattr(self, name) for name in names},
            **{name: count * 8 / self.window_s for name, count in each_bytes.items()},
            "throughput_pps": self.received_count / self.window_s,
        }


# The shares of the time limit after which flows without data are started again; the last start has all of it. With 10 %
# loss each way, four starts of one flow fail in one run of 800.
STARTS = (0.3, 0.3, 0.4, 1.0)


class ServerSide(Protocol):
    """The servers of a run, and the counters of what they receive.

    begun: when (time.monotonic()) the flows were started again, if they were; else 0.
    """

    begun: float

    def idle(self) -> bool:
        """Return whether no flow has carried data yet."""

    def carrying(self, within_s: float) -> bool:
        """Wait until data arrives on every flow; return False if it is late or a flow ends."""

    def window(self, until: float) -> Window:
        """Count until `until` (time.monotonic()) or until all flows end; the CPU time is that of this host."""

    def pages(self) -> list[Page]:
        """Return the reports of the servers themselves (iperf3's JSON), after they have ended."""

    def report(self) -> dict[str, Any]:
        """Return further columns of the row for the window."""


class LocalServer(ServerSide):
    """Servers that are on this host."""

    def __init__(self, flows: Flows, counters: Receivers, ends: Sequence[Endpoint] = ()) -> None:
        self._flows, self._counters, self._ends = flows, counters, ends
        self._before = counters.per_server()
        self._used: dict[str, Any] = {}
        self.doubts: list[str] = []
        self.begun = 0.0

    def idle(self) -> bool:
        return not any(self._counters.carrying(self._before))

    def carrying(self, within_s: float) -> bool:
        """Wait until data has arrived on every flow; False if not in time, or when one has ended.

        Flows without data are started again, a bounded number of times. Raises Failed if no start helped.
        """
        for number, share in enumerate(STARTS, 1):
            if self._carry(share * within_s):
                return True
            if self._flows.early_end():
                return False
            if number == len(STARTS):
                break
            self.begun = time.monotonic()
            if not self._flows.again():
                return self._carry((1 - share) * within_s)
            self._before = self._counters.per_server()
            self.doubts = [
                f"the flows were started {number + 1} times: a datagram with which one begins may have been lost"
            ]
        raise Failed(f"not every flow carried data, though the flows were started {len(STARTS)} times")

    def _carry(self, within_s: float) -> bool:
        return carrying(self._counters, self._before, within_s, lambda: bool(self._flows.early_end()))

    def window(self, until: float) -> Window:
        """Count until `until` (time.monotonic()) or until all flows end.

        Busy guests answer slowly, so labkit asks them within the window and does not extend it. Raises Failed if
        their answers take until the end of the window, because the flows may have ended meanwhile.
        """
        begun = time.monotonic()
        used: list[Callable[[float], dict[str, Any]]] = []

        def wait(end: float) -> None:
            used.append(guests_cpu(self._ends))
            if begun < end < time.monotonic():
                text = "the receive counters were first read when the flows may already have ended"
                raise Failed(f"{text}: make duration_s longer, or use fewer pairs")
            self._flows.wait(end)

        seen = window(self._counters, wait, until)
        self._used = used[0](seen.window_s)
        return msgspec.structs.replace(seen, doubts=[*seen.doubts, *self.doubts])

    def pages(self) -> list[Page]:
        return self._flows.server_pages()

    def report(self) -> dict[str, Any]:
        """Return the CPU time of guests as their kernels report it; the run reads this machine's CPU time itself."""
        return self._used


def guests_cpu(ends: Sequence[Endpoint]) -> Callable[[float], dict[str, Any]]:
    """Begin to measure the CPU time that the guests' own kernels report.

    Returns a function. Call it with the length of the measured window in seconds; it returns columns of the row. Each
    guest answers at its own moment, so its CPU time between two answers is scaled to the window.
    """
    guests = list(of_guests(ends).values())
    if not guests:
        return lambda _window_s: {}
    before = [_moment(guest) for guest in guests]

    def used(window_s: float) -> dict[str, Any]:
        busy_s = softirq_s = 0.0
        for (begin, then), (end, now) in zip(before, map(_moment, guests), strict=True):
            passed, share = now - then, window_s / (end - begin)
            busy_s, softirq_s = busy_s + share * passed.busy_s, softirq_s + share * passed.softirq_s
        return {"guest_cpu_s": busy_s, "guest_softirq_s": softirq_s}

    return used


def _moment(guest: Kernel) -> tuple[float, machine.CpuTimes]:
    """Return the CPU times of a guest and their moment (time.monotonic()): the middle of the request."""
    before = time.monotonic()
    text = guest.read("/proc/stat")
    return (before + time.monotonic()) / 2, machine.cpu_times_of(text.splitlines()[0])


def carrying(counters: Receivers, before: Iterable[int], within_s: float, ended: Callable[[], bool]) -> bool:
    """Wait until data has arrived on every flow since `before`; False if not in time, or when one has ended."""
    deadline = time.monotonic() + within_s
    while not all(counters.carrying(before)):
        if time.monotonic() > deadline or ended():
            return False
        time.sleep(0.005)
    return True


def window(counters: Receivers, wait: Callable[[float], object], until: float) -> Window:
    """Count until `until` (time.monotonic()); `wait` sleeps until a time, or less if all flows have ended."""
    times, start, before = machine.cpu_times(), time.monotonic(), counters.read()
    wait(until)
    now, end, total = machine.cpu_times(), time.monotonic(), counters.read()
    return Window(window_s=end - start, **(asdict(total - before) | (now - times).columns))
