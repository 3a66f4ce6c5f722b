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
EVERY_S = 5.0  # between two samples: reading a thousand processes takes 30 ms
SHORTEST_S = 1.0  # over less time the kernel's steps of 10 ms are a large share


class Background:
    """The running processes at its creation, and what other programs did since then.

    `root_pid` and its descendants do not count; None: this process. `sample` sees processes before they end, so call it
    often. One that began and ended between two samples is not seen; perf's samples show how much CPU time such
    processes took.
    """

    def __init__(self, root_pid: int | None = None) -> None:
        self._root_pid = os.getpid() if root_pid is None else root_pid
        self._began, self._before = time.monotonic(), {key: used for key, used, _, _ in _processes()}
        self._most: dict[str, float] = {}  # the largest share of each program between two samples

    def sample(self, after_s: float = EVERY_S) -> None:
        """Note what other programs did since the last sample, if that was at least `after_s` seconds ago."""
        passed_s = time.monotonic() - self._began
        if passed_s < after_s:
            return
        now = list(_processes())
        children: dict[int, list[int]] = {}
        for (pid, _), _, parent, _ in now:
            children.setdefault(parent, []).append(pid)
        ours, left = {self._root_pid}, [self._root_pid]
        while left:
            ours.update(own := children.get(left.pop(), []))
            left += own
        shares: dict[str, float] = {}
        for key, used_s, _, name in now:
            if key[0] not in ours:
                used_s -= self._before.get(key, 0.0)
                shares[name] = shares.get(name, 0.0) + used_s / (passed_s * (os.cpu_count() or 1))
        self._began, self._before = time.monotonic(), {key: used for key, used, _, _ in now}
        for name, share in shares.items():
            self._most[name] = max(share, self._most.get(name, 0.0))

    def report(self) -> list[dict[str, Any]]:
        """Return name and cpu_share of the busiest other programs, the busiest first.

        The share is of all CPUs, between the two samples between which the program was busiest.
        """
        self.sample(SHORTEST_S if self._most else 0.0)
        most = sorted(self._most.items(), key=lambda one: -one[1])[:MAX_PROGRAMS]
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
