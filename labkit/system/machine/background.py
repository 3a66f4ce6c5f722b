"""The CPU time that other programs on this machine used while labkit measured.

A program that begins and ends between two samples is not seen, but the kernel adds its CPU time to that of the process
that waited for it (cutime and cstime, proc(5)). So the time of thousands of short programs is that of their parent.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.system.machine.cpu_time import TICKS_PER_S, process_stats, with_descendants

MAX_PROGRAMS = 8
MIN_SHARE = 0.005  # of the time of all CPUs
EVERY_S = 5.0  # between two samples: reading a thousand processes takes 30 ms
SHORTEST_S = 1.0  # over less time the kernel's steps of 10 ms are a large share
PF_KTHREAD = 0x00200000  # a flag of the kernel's threads (include/linux/sched.h)

Key = tuple[int, int]  # of a process: its number and its start time, because numbers are used again


@dataclass(frozen=True)
class Process:
    """A process: its parent's number, its name, and the CPU seconds of itself and of its children that ended."""

    parent: int
    name: str
    used_s: float
    children_s: float


class Background:
    """What other programs did since its creation. Call `sample` often.

    This process, its descendants and those of the processes with `scratch` in their command line do not count: another
    process may have booted the lab VM whose sockets are in that folder.
    """

    def __init__(self, scratch: str | None = None) -> None:
        self._scratch = scratch
        self._begun = self._at = time.monotonic()
        self._before = self._others()
        self._since_s = 0.0  # CPU seconds of others since the previous call of `share`
        self._most: dict[str, float] = {}  # the largest share of each program between two samples
        # the names of children that were seen, by the parent's name
        self._children: dict[str, Counter[str]] = {}

    def _others(self) -> dict[Key, Process]:
        there = dict(processes())
        ours = family(there, self._scratch)
        return {key: one for key, one in there.items() if key[0] not in ours}

    def sample(self, after_s: float = EVERY_S) -> None:
        """Note what other programs did since the last sample, if that was at least `after_s` seconds ago."""
        passed_s = time.monotonic() - self._at
        if passed_s < after_s:
            return
        now = self._others()
        names = {pid: one.name for (pid, _), one in now.items()}
        for one in now.values():
            if one.parent in names and one.name != names[one.parent]:
                self._children.setdefault(names[one.parent], Counter())[one.name] += 1
        total_s, by_name = used(self._before, now)
        self._before, self._at = now, time.monotonic()
        self._since_s += total_s
        for (name, of_children), used_s in by_name.items():
            name = self._of_children(name) if of_children else name
            share = min(1.0, used_s / (max(passed_s, SHORTEST_S) * (os.cpu_count() or 1)))
            self._most[name] = max(share, self._most.get(name, 0.0))

    def _of_children(self, parent: str) -> str:
        seen = self._children.get(parent)
        return f"{seen.most_common(1)[0][0] if seen else 'programs'} started by {parent}"

    def share(self) -> float:
        """Return the share of the time of all CPUs that other programs took since the previous call."""
        self.sample(0.0)
        capacity_s = max(self._at - self._begun, 1e-3) * (os.cpu_count() or 1)
        result = min(1.0, self._since_s / capacity_s)
        self._begun, self._since_s = self._at, 0.0
        return round(result, 4)

    def report(self, earlier: Iterable[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
        """Return name and cpu_share of the busiest other programs, the busiest first.

        The share is of all CPUs, between the two samples between which the program was busiest. earlier: the report of
        what this continues.
        """
        self.sample(SHORTEST_S if self._most else 0.0)
        merged = dict(self._most)
        for one in earlier:
            merged[one["name"]] = max(one["cpu_share"], merged.get(one["name"], 0.0))
        most = sorted(merged.items(), key=lambda one: -one[1])[:MAX_PROGRAMS]
        return [{"name": name, "cpu_share": round(share, 4)} for name, share in most if share >= MIN_SHARE]


def used(
    before: Mapping[Key, Process], now: Mapping[Key, Process]
) -> tuple[float, dict[tuple[str, bool], float]]:
    """Return the CPU seconds between two samples: of all, and by name of programs themselves (False) and of children
    that ended meanwhile (True; the parent's name)."""
    result: dict[tuple[str, bool], float] = {}
    grown_s = 0.0

    def add(name: str, of_children: bool, seconds: float) -> None:
        result[name, of_children] = result.get((name, of_children), 0.0) + max(0.0, seconds)

    unknown = Process(0, "", 0.0, 0.0)
    ended_s: dict[int, float] = {}  # by the number of the process that has their time now
    alive = {key[0] for key in now}
    parents = {key[0]: one.parent for key, one in before.items()}
    for key, one in before.items():
        if key not in now:  # its time was counted while it lived, and is now in its parent's
            at = one.parent
            while at in parents and at not in alive:
                at = parents[at]
            ended_s[at] = ended_s.get(at, 0.0) + one.used_s + one.children_s
    for key, one in now.items():
        was = before.get(key, unknown)
        grown_s += max(0.0, one.used_s - was.used_s)
        add(one.name, False, one.used_s - was.used_s)
        add(one.name, True, one.children_s - was.children_s - ended_s.get(key[0], 0.0))
    # A process whose parent ended first may leave its time to another one than expected: the sum is right even so.
    first_s, last_s = (sum(one.used_s + one.children_s for one in side.values()) for side in (before, now))
    total_s = max(grown_s, last_s - first_s)
    return total_s, {key: min(seconds, total_s) for key, seconds in result.items() if seconds > 0}


def family(there: Mapping[Key, Process], scratch: str | None = None) -> set[int]:
    """Return the numbers of the processes of this command: this one, those that have `scratch` in their command line,
    and all their descendants."""
    ours = {os.getpid()}
    if scratch:
        for pid, _ in there:
            with suppress(OSError):
                if scratch.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    ours.add(pid)
    return with_descendants(ours, ((pid, one.parent) for (pid, _), one in there.items()))


def processes() -> Iterator[tuple[Key, Process]]:
    """Yield every visible process (/proc/PID/stat, proc(5)).

    Kernel threads are left out, because their work may belong to the experiment.
    """
    for pid, name, fields in process_stats():
        if not int(fields[6]) & PF_KTHREAD:
            used_s, children_s = ((int(fields[at]) + int(fields[at + 1])) / TICKS_PER_S for at in (11, 13))
            yield (pid, int(fields[19])), Process(int(fields[1]), name, used_s, children_s)
