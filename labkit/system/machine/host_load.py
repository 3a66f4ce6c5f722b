"""The load of this machine while a lab VM on it measures.

The guest cannot see this load, because an emulated CPU that waits for a real one reports no steal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.common import errors, units
from labkit.system.machine.cpu_time import TICKS_PER_S, cpu_times, load1

# Above these shares a row gets a doubt. Two emulated CPUs on two real ones make each other wait for a few per cent.
FOREIGN_LIMIT = 0.10
WAITING_LIMIT = 0.10


@dataclass(frozen=True)
class HostTimes:
    """The CPU times of a host since its boot, in seconds.

    busy_s: all CPUs. ours_s: the processes of this command, by pid. ran_s and waited_s: QEMU's threads, by thread;
    both are empty if the kernel has no schedstat.
    """

    at_s: float
    busy_s: float
    ours_s: dict[int, float]
    ran_s: dict[str, float] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)


def host_times(scratch: str | None = None) -> HostTimes:
    """Read the times now.

    The processes of a command are this one, all its descendants, and the holder of the lab VM whose sockets are in
    `scratch`, which another process may have booted.
    """
    ours = dict(_family(scratch))
    ran_s, waited_s = {}, {}
    for pid in ours:
        for task in _qemu_tasks(pid):
            with suppress(OSError, errors.LabkitError):
                ran_s[task.name], waited_s[task.name] = parse_schedstat((task / "schedstat").read_text())
    return HostTimes(time.monotonic(), cpu_times().busy_s, ours, ran_s, waited_s)


@errors.reading("/proc/PID/schedstat")
def parse_schedstat(text: str) -> tuple[float, float]:
    """Parse the seconds on a CPU and the seconds waiting for one (Documentation/scheduler/sched-stats.rst)."""
    ran, waited, _ = text.split()
    return int(ran) / 1e9, int(waited) / 1e9


def _family(scratch: str | None) -> Iterator[tuple[int, float]]:
    """Yield the pid and the CPU seconds of each process of the command."""
    ours, result = {os.getpid()}, []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            used_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
            result.append((int(folder.name), int(fields[1]), used_s))
            if scratch and scratch.encode() in (folder / "cmdline").read_bytes():
                ours.add(int(folder.name))
    for pid, parent, used_s in sorted(result):  # a child has in general a greater number than its parent
        if pid in ours or parent in ours:
            ours.add(pid)
            yield pid, used_s


def _qemu_tasks(pid: int) -> list[Path]:
    with suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_text().startswith("qemu-system"):
            return list(Path(f"/proc/{pid}/task").iterdir())
    return []


class HostLoad:
    """The host's load as columns for each row of a lab VM. `columns` covers the time since its previous call."""

    def __init__(self, scratch: str | None = None) -> None:
        self._scratch = scratch
        self._before = host_times(scratch)

    def columns(self) -> dict[str, Any]:
        """Return the host's load since the previous call; shares are 0 to 1.

        host_load1: load average. host_foreign_share: share of all CPU time that other programs took.
        host_waiting_share: share of their runnable time that QEMU's threads waited for a CPU (None if the kernel does
        not report it).
        """
        before, now = self._before, host_times(self._scratch)
        self._before = now
        return {"host_load1": load1(), **shares(before, now, os.cpu_count() or 1)}


def shares(before: HostTimes, now: HostTimes, cpus_count: int) -> dict[str, float | None]:
    """Compute host_foreign_share and host_waiting_share between two times."""
    capacity_s = max(now.at_s - before.at_s, 1e-3) * cpus_count
    ours_s = sum(used - before.ours_s.get(pid, 0.0) for pid, used in now.ours_s.items())
    foreign_s = max(0.0, now.busy_s - before.busy_s - ours_s)
    ran_s = sum(used - before.ran_s.get(task, 0.0) for task, used in now.ran_s.items())
    waited_s = sum(used - before.waited_s.get(task, 0.0) for task, used in now.waited_s.items())
    waiting = waited_s / (ran_s + waited_s) if ran_s + waited_s > 0 else None
    return {
        "host_foreign_share": round(min(1.0, foreign_s / capacity_s), 4),
        "host_waiting_share": None if waiting is None else round(waiting, 4),
    }


def host_doubts(columns: dict[str, Any]) -> list[str]:
    """Return a sentence for each share above its limit."""
    result = []
    if columns["host_foreign_share"] > FOREIGN_LIMIT:
        share = units.percent(columns["host_foreign_share"])
        result.append(f"other programs took {share} of the host's CPU time meanwhile")
    if (columns["host_waiting_share"] or 0.0) > WAITING_LIMIT:
        share = units.percent(columns["host_waiting_share"])
        result.append(
            f"the lab VM waited for a CPU of the host for {share} of the time in which it could run"
        )
    return result


def with_host_load(row: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    """Return the row with these columns, and their doubts appended to its own."""
    doubts = "; ".join(filter(None, [row.get("doubts"), *host_doubts(columns)])) or None
    return {**row, **columns, "doubts": doubts}
