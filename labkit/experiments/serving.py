"""The servers' side of a whole run: whether every flow carries data, and what arrived while all of them ran.

It may be on this host or on another; a run asks for the same of both (`There`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from labkit import machine
from labkit.endpoints import Endpoint
from labkit.observers.receivers import Receivers
from labkit.traffic import iperf3, pages


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What the servers' host counted in so many seconds of its own clock."""

    window_s: float
    received_bytes: int
    received_count: int
    cpu_s: float
    softirq_s: float
    steal_s: float
    doubts: list[str] = []


class There(Protocol):
    """The servers of a run, and the counters of what they receive."""

    def idle(self) -> bool:
        """Whether no flow has carried data yet."""

    def carrying(self, within_s: float) -> bool:
        """Wait until data has arrived on every flow; False if not in time, or when one has ended."""

    def window(self, for_s: float) -> Window:
        """Count for so long, or until all flows have ended."""

    def pages(self) -> list[pages.Page]:
        """The servers' own JSON, after their ends."""

    def told(self, seen: Window) -> dict[str, Any]:
        """What of a window goes into columns of its own."""


class Here:
    """The servers of these flows are on this host."""

    def __init__(self, flows: iperf3.Flows, counters: Receivers, ends: Sequence[Endpoint] = ()) -> None:
        self._flows, self._counters, self._ends = flows, counters, ends
        self._before = counters.each()
        self._used: dict[str, Any] = {}

    def idle(self) -> bool:
        """Whether no flow has carried data yet."""
        return not any(self._counters.carrying(self._before))

    def carrying(self, within_s: float) -> bool:
        """Wait until data has arrived on every flow; False if not in time, or when one has ended."""
        return carrying(self._counters, self._before, within_s, lambda: bool(self._flows.early_end()))

    def window(self, for_s: float) -> Window:
        """Count for so long, or until all flows have ended."""
        used = guests_cpu(self._ends)
        seen = window(self._counters, self._flows.wait, for_s)
        self._used = used()
        return seen

    def pages(self) -> list[pages.Page]:
        """The servers' own JSON, after their ends."""
        return self._flows.server_pages()

    def told(self, _seen: Window) -> dict[str, Any]:
        """The CPU time of guests, as their own kernels tell it; this machine's the run reads itself."""
        return self._used


def guests_cpu(ends: Sequence[Endpoint]) -> Callable[[], dict[str, Any]]:
    """From now on, the CPU time that guests' own kernels tell of: what is called afterwards gives columns."""
    boxes = {end.box.name: end for end in ends if end.box is not None and end.box.kernel is not None}
    files = [end.open("/proc/stat") for end in boxes.values()]  # once for a guest that ends share
    if not files:
        return dict

    def now() -> list[machine.CpuTimes]:
        return [machine.cpu_times_of(file.read().splitlines()[0]) for file in files]

    before = now()

    def used() -> dict[str, Any]:
        passed = [after - then for after, then in zip(now(), before, strict=True)]
        return {
            "guest_cpu_s": sum(one.busy_s for one in passed),
            "guest_softirq_s": sum(one.softirq_s for one in passed),
        }

    return used


def carrying(counters: Receivers, before: list[int], within_s: float, ended: Callable[[], bool]) -> bool:
    """Wait until data has arrived on every flow since `before`; False if not in time, or when one has ended."""
    deadline = time.monotonic() + within_s
    while not all(counters.carrying(before)):
        if time.monotonic() > deadline or ended():
            return False
        time.sleep(0.005)
    return True


def window(counters: Receivers, wait: Callable[[float], object], for_s: float) -> Window:
    """Count for so long; `wait` sleeps until a time (time.monotonic()), or less when there is nothing to wait for."""
    times, start, got = machine.cpu_times(), time.monotonic(), counters.read()
    wait(start + for_s)
    now, end, total = machine.cpu_times(), time.monotonic(), counters.read()
    used, passed = now - times, total - got
    return Window(
        window_s=end - start,
        received_bytes=passed.received_bytes,
        received_count=passed.received_count,
        cpu_s=used.busy_s,
        softirq_s=used.softirq_s,
        steal_s=used.steal_s,
    )
