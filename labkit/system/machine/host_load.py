"""How long a lab VM waited for a CPU of its host.

The guest cannot see this, because an emulated CPU that waits for a real one reports no steal.
"""

import os
from typing import Any

from labkit.common import schema, units
from labkit.system.machine.background import family, processes
from labkit.system.machine.cpu_time import thread_times

# Above this share a row gets a doubt. Two emulated CPUs on two real ones make each other wait for a few per cent.
WAITING_LIMIT = 0.10

Times = dict[str, tuple[float, float]]


def qemu_times(scratch: str | None = None) -> Times:
    """Return the seconds on a CPU and waiting for one of each thread of QEMU that belongs to this command (`family`).

    Empty if the kernel has no schedstat.
    """
    there = dict(processes())
    ours = family(there, scratch)
    qemu = [pid for (pid, _), one in there.items() if pid in ours and one.name.startswith("qemu-system")]
    return {task: (ran / 1e9, waited / 1e9) for task, (ran, waited) in thread_times(qemu).items()}


class HostLoad:
    """The host's load as columns for each row of a lab VM. `columns` covers the time since its previous call."""

    def __init__(self, scratch: str | None = None) -> None:
        self._scratch = scratch
        self._before = qemu_times(scratch)

    def columns(self) -> dict[str, Any]:
        """Return host_load1 (load average) and host_waiting_share: the share (0 to 1) of their runnable time that
        QEMU's threads waited for a CPU since the previous call (None if the kernel does not report it)."""
        before, self._before = self._before, qemu_times(self._scratch)
        return {"host_load1": os.getloadavg()[0], "host_waiting_share": waiting_share(before, self._before)}


def waiting_share(before: Times, now: Times) -> float | None:
    """Compute host_waiting_share between two times."""
    ran_s, waited_s = (sum(now[task][at] - before.get(task, (0.0, 0.0))[at] for task in now) for at in (0, 1))
    return round(waited_s / (ran_s + waited_s), 4) if ran_s + waited_s > 0 else None


def with_host_load(row: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    """Return the row with these columns, and a doubt if the lab VM waited long."""
    share = columns["host_waiting_share"] or 0.0
    waited = f"the lab VM waited for a CPU of the host for {units.percent(share)} of the time in which it could run"
    return schema.with_doubts({**row, **columns}, waited if share > WAITING_LIMIT else None)
