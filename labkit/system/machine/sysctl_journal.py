"""Sysctls of the whole machine that an arm changes while it is measured, restored in every case.

The old value is written to a journal before the sysctl is changed. The owner holds a lock (flock(2)) on the journal
while it lives. Whoever finds the journal unlocked restores the old values: the guard that outlives an experiment, the
next experiment, or the doctor.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from labkit.common.errors import Failed, Unsupported
from labkit.system import netlink
from labkit.system.machine import locked_file

JOURNAL = Path("/run/labkit-sysctl.jsonl")
ROOT = Path("/proc/sys")
# Only settings of the network and the scheduler may be changed, and none that names a program or a file. Two would also
# change settings of interfaces, or remove addresses and routes, which nothing would restore.
ALLOWED = (
    r"(?!net\.ipv[46]\.(ip_forward|conf\..*\.(forwarding|disable_ipv6))$)net\.[a-z0-9_-]+(\.[A-Za-z0-9_-]+)+"
    r"|kernel\.(sched_[a-z_]+|numa_balancing|timer_migration)"
)
GRACE_S = 5.0


class OldValue(msgspec.Struct, frozen=True):
    """A sysctl and its old value."""

    name: str
    value: str


def path_of(name: str) -> Path:
    """Return the file of a sysctl, as the caller's network namespace sees it."""
    return ROOT.joinpath(*name.split("."))


@contextmanager
def changed(settings: Mapping[str, str], netns: int | None) -> Iterator[dict[str, tuple[str, str]]]:
    """Set sysctls of the machine for the block; yield (value before, value after) by name.

    `netns` is the machine's network namespace (a file descriptor). Raises Unsupported without root, for a sysctl that
    the kernel lacks, and while another labkit process changes sysctls.
    """
    if netns is None:
        raise Unsupported("only root outside a user namespace can change sysctls of the machine")
    with _lock() as descriptor:
        _put_back(descriptor, netns)
        try:
            with netlink.inside(netns):
                before = {name: _read(name) for name in settings}
                locked_file.note(descriptor, *(OldValue(name, value) for name, value in before.items()))
                for name, value in settings.items():
                    _write(name, value)
                after = {name: _read(name) for name in settings}
            yield {name: (before[name], after[name]) for name in settings}
        finally:
            _put_back(descriptor, netns)


def restore_leftovers() -> list[str]:
    """Restore what a dead process left, in the caller's network namespace; return the names of the sysctls.

    Raises Failed for what cannot be restored.
    """
    if not JOURNAL.exists():
        return []
    try:
        with _lock() as descriptor:
            return _put_back(descriptor, None)
    except Unsupported:  # a living process holds the journal, or this user may not open it
        return []


def _lock() -> contextlib.AbstractContextManager[int]:
    busy = "another labkit process is changing sysctls of this machine: run again later"
    return locked_file.opened_journal(JOURNAL, "", busy, GRACE_S)


def _put_back(descriptor: int, netns: int | None) -> list[str]:
    """Restore the values in the journal, last first; return the names.

    Raises Failed, with their names, for those that cannot be restored. They stay in the journal for the next process.
    """
    there = [old for old in locked_file.steps(descriptor, OldValue) if re.fullmatch(ALLOWED, old.name)]
    with netlink.inside(netns) if netns is not None else contextlib.nullcontext():
        faults = locked_file.undo(descriptor, there, lambda old: path_of(old.name).write_text(old.value))
    if faults:
        text = ", ".join(f"{old.name}={old.value} ({why})" for old, why in faults.items())
        raise Failed(f"sysctls of the machine could not be restored: {text}: set them by hand")
    return [old.name for old in reversed(there)]


def _read(name: str) -> str:
    try:
        return " ".join(path_of(name).read_text().split())
    except OSError as error:
        raise Unsupported(f"this machine has no sysctl {name} ({error.strerror})") from None


def _write(name: str, value: str) -> None:
    try:
        path_of(name).write_text(value)
    except PermissionError:
        raise Unsupported(f"only root outside a user namespace can change sysctl {name}") from None
    except OSError as error:
        raise Failed(f"the kernel refuses sysctl {name}={value} ({error.strerror})") from None
