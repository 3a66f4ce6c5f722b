"""CPU time of the whole machine (/proc/stat) and of processes (schedstat), from the kernel's own accounting."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass
from operator import sub
from pathlib import Path

from labkit.common import errors, units

TICKS_PER_S = os.sysconf("SC_CLK_TCK")  # USER_HZ, the unit of /proc/stat (proc(5)): 100 on most machines
STEAL_LIMIT = 0.05  # the share of the time of all CPUs above which a row gets a doubt


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds of all CPUs together since boot, in the kernel's steps of 10 ms.

    busy is user, nice, system, interrupts and softirqs (the CPU time of guests on this machine is in user); idle is
    idle and waiting for a disk.
    """

    busy_s: float
    softirq_s: float
    steal_s: float
    idle_s: float

    def __sub__(self, other: CpuTimes) -> CpuTimes:
        return CpuTimes(*map(sub, astuple(self), astuple(other)))

    @property
    def columns(self) -> dict[str, float]:
        """The columns of a row, of the difference of two moments."""
        return {"cpu_s": self.busy_s, "softirq_s": self.softirq_s, "steal_s": self.steal_s}


def cpu_times() -> CpuTimes:
    """Return the current CPU times; this takes 10 µs."""
    with open("/proc/stat", "rb") as file:
        return cpu_times_of(file.readline().decode())


@errors.reading("/proc/stat")
def cpu_times_of(line: str) -> CpuTimes:
    """Parse the first line of /proc/stat (proc(5))."""
    numbers = (int(word) / TICKS_PER_S for word in line.split()[1:9])
    user, nice, system, idle, iowait, irq, softirq, steal = numbers
    return CpuTimes(user + nice + system + irq + softirq, softirq, steal, idle + iowait)


def stolen(steal_s: float, window_s: float) -> list[str]:
    """Return a doubt if the hypervisor took more than 5 % of the time of all CPUs for something else.

    In a short window one or two of the kernel's 10 ms steps already exceed 5 %. They prove nothing and give no doubt.
    """
    share = steal_s / (window_s * (os.cpu_count() or 1))
    if share <= STEAL_LIMIT or steal_s <= 2.5 / TICKS_PER_S:
        return []
    return [f"the hypervisor took away {units.percent(share)} of the CPU time meanwhile"]


def busy_share(window_s: float) -> float:
    """Wait `window_s` seconds and return the share (0 to 1) of the time of all CPUs in which they were busy.

    Time that the hypervisor took does not count.
    """
    before = cpu_times()
    time.sleep(window_s)
    passed = cpu_times() - before
    total_s = passed.busy_s + passed.idle_s
    return passed.busy_s / total_s if total_s > 0 else 0.0


def thread_times(pids: Iterable[int]) -> dict[str, tuple[int, int]]:
    """Return the nanoseconds on a CPU and waiting for one of each thread of these processes.

    The key is the path of the thread's schedstat file. Threads that have ended are left out. Source:
    Documentation/scheduler/sched-stats.rst.
    """
    result = {}
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                ran, waited, _ = path.read_text().split()
            except (OSError, ValueError):
                continue
            result[str(path)] = int(ran), int(waited)
    return result


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU time of all living threads of these processes in seconds."""
    return sum(ran for ran, _waited in thread_times(pids).values()) / 1e9


def process_stats() -> Iterator[tuple[int, str, list[str]]]:
    """Yield the PID, the name and the fields after it, from the state on, of each process (/proc/PID/stat, proc(5))."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                head, _, rest = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")
                yield int(entry.name), head.partition("(")[2], rest.split()


def descendants(pid: int) -> frozenset[int]:
    return frozenset(with_descendants({pid}, ((one, int(of[1])) for one, _, of in process_stats()))) - {pid}


def with_descendants(pids: Iterable[int], parents: Iterable[tuple[int, int]]) -> set[int]:
    """Return these processes and their descendants. parents: each process, and its parent."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents:
        children.setdefault(parent, []).append(pid)
    result, left = set[int](), list(pids)
    while left:
        result.add(pid := left.pop())
        left += children.get(pid, [])
    return result
