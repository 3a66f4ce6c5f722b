"""The CPU time that other programs on this machine used while labkit measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.system.machine.cpu_time import TICKS_PER_S

MAX_PROGRAMS = 8
MIN_SHARE = 0.005  # of the time of all CPUs


class Background:
    """The running processes at its creation; `report` returns what other programs did since then.

    This process and its children do not count. A process that began and ended in between is not seen; perf's samples
    show how much CPU time such processes took.
    """

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), {key: used for key, used, _, _ in _processes()}

    def report(self) -> list[dict[str, Any]]:
        """Return name and cpu_share (of all CPUs, since creation) of the busiest other programs, the busiest first."""
        capacity_s = max(time.monotonic() - self._began, 1e-3) * (os.cpu_count() or 1)
        now = list(_processes())
        ours = {os.getpid()}
        for (pid, _), _, parent, _ in sorted(now):  # a child has in general a greater number than its parent
            if parent in ours:
                ours.add(pid)
        shares: dict[str, float] = {}
        for key, used_s, _, name in now:
            if key[0] not in ours:
                shares[name] = shares.get(name, 0.0) + (used_s - self._before.get(key, 0.0)) / capacity_s
        most = sorted(shares.items(), key=lambda one: -one[1])[:MAX_PROGRAMS]
        return [{"name": name, "cpu_share": round(share, 4)} for name, share in most if share >= MIN_SHARE]


def _processes() -> Iterator[tuple[tuple[int, int], float, int, str]]:
    """Yield (pid and start time, CPU seconds so far, parent, name) for every visible process (/proc/PID/stat,
    proc(5)).

    Kernel threads are left out, because their work may belong to the experiment.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            head, _, rest = (folder / "stat").read_text().rpartition(")")
            fields = rest.split()
            pid, parent = int(folder.name), int(fields[1])
            if pid != 2 and parent != 2:
                used_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
                yield (pid, int(fields[19])), used_s, parent, head.partition("(")[2]
