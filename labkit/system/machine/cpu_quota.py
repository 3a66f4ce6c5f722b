"""The CPU quota of a process: cpu.max of its cgroup and of those above it (cgroup v2), or cfs_quota_us (v1).

Children of this process are in the same cgroup, so the quota holds for the experiment and for QEMU as for this process.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.common import schema, units

LIMIT = 0.01  # the share of the time above which a row gets a doubt


def quota_cpus(process: int | str = "self") -> float | None:
    """Return how many CPUs' time the smallest quota allows; None without one."""
    allowed = []
    for folder in cgroups(process):
        with suppress(OSError, ValueError):
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota != "max" and int(quota) > 0:
                allowed.append(int(quota) / int(period))
    return min(allowed, default=None)


def throttled_s(process: int | str = "self") -> float:
    """Return for how many seconds, since the cgroups exist, a quota has kept runnable threads from running."""
    result = 0.0
    for folder in cgroups(process):
        with suppress(OSError, ValueError):
            pairs = (line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            values = {name: int(value) for name, value in pairs}
            # v2 counts microseconds, v1 nanoseconds (Documentation/scheduler/sched-bwc.rst).
            result = max(result, values.get("throttled_usec", 0) / 1e6, values.get("throttled_time", 0) / 1e9)
    return result


def throttled_share(process: int | str) -> float:
    """Return the share of periods, since the cgroups exist, in which a quota stopped threads of a process's cgroup."""
    shares = [0.0]
    for folder in cgroups(process):
        with suppress(OSError, ValueError, ZeroDivisionError, KeyError):
            values = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            shares.append(int(values["nr_throttled"]) / int(values["nr_periods"]))
    return max(shares)


def cgroups(process: int | str, controller: str = "cpu") -> Iterator[Path]:
    """Yield the cgroups of a process that have a controller (v1) or any (v2), and those above (proc(5), cgroups(7))."""
    mounts = {}
    # A mount point may have any bytes, and the source of a mount may be empty.
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        kind, *_, options = after.split(" ")
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            mounts[kind] = (before.split()[3], Path(before.split()[4]))
    for line in Path(f"/proc/{process}/cgroup").read_text(errors="surrogateescape").splitlines():
        number, controllers, path = line.split(":", 2)
        kind = "cgroup2" if number == "0" else "cgroup"
        if kind not in mounts or (kind == "cgroup" and controller not in controllers.split(",")):
            continue
        root, at = mounts[kind]
        own = at / path.removeprefix(root).lstrip("/")
        yield from (one for one in (own, *own.parents) if one == at or at in one.parents)


class Throttling:
    """What a quota took away, as a column for each row. `columns` covers the time since its previous call."""

    def __init__(self) -> None:
        self._at_s, self._before_s = time.monotonic(), throttled_s()

    def columns(self) -> dict[str, Any]:
        """Return throttled_s: the seconds that threads of this run were kept from the CPUs since the previous call, and
        throttled_share of the time that passed, at most 1.

        The kernel adds the time of every CPU that had threads to run, so a run on several CPUs may have lost less.
        """
        passed_s, now_s = time.monotonic() - self._at_s, throttled_s()
        took_s = now_s - self._before_s
        self._at_s, self._before_s = time.monotonic(), now_s
        share = min(took_s / max(passed_s, 1e-3), 1.0)
        return {"throttled_s": round(took_s, 4), "throttled_share": round(share, 4)}


def with_throttling(row: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    """Return the row with these columns, and a doubt if a quota took part of the time."""
    share = columns["throttled_share"]
    quota = f"a CPU quota (cgroup) stopped this run for {units.percent(share)} of the time"
    return schema.with_doubts({**row, **columns}, quota if share > LIMIT else None)
