"""The settings of programs that run in network namespaces: priority, scheduling policy, system call filter, cgroup.

Somebody may change them while a program runs (`renice`, `chrt`), or a wrapper may start it with others. The CPUs that a
program may use are left out, because labkit moves programs between CPUs.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from labkit.system.machine import settings
from labkit.system.machine.programs import pids_by_namespace
from labkit.system.machine.settings import Settings

DIGESTED = 1 << 20  # bytes of a program's file: reading all of a large one takes too long on an emulated CPU


def program_settings(namespaces: Mapping[int, str]) -> dict[str, Settings]:
    """Return the settings of the running programs in these network namespaces, by the name of the namespace.

    namespaces: their inodes and names. A setting's name begins with the program's. Programs with the same name in a
    namespace have their different values joined. A program that ends meanwhile is left out.
    """
    by_place: dict[str, dict[str, set[str]]] = {}
    here = settings.cgroups("self")
    for inode, pid, name in pids_by_namespace():
        if inode in namespaces:
            with suppress(OSError):
                for key, value in _program_settings(pid, here).items():
                    by_place.setdefault(namespaces[inode], {}).setdefault(f"{name} {key}", set()).add(value)
    return {
        place: {key: ", ".join(sorted(values)) for key, values in own.items()}
        for place, own in by_place.items()
    }


def _program_settings(pid: int, here: str) -> Settings:
    """Return the settings of a program. Its cgroups' limits are only of interest if it is not in ours (`here`)."""
    threads = [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
    result = {
        "nice": _values(threads, lambda thread: str(os.getpriority(os.PRIO_PROCESS, thread))),
        "scheduling policy": _values(threads, _policy),
        **settings.process_status(Path(f"/proc/{pid}/status"), ["Seccomp"]),
        "executable": _executable(Path(f"/proc/{pid}/exe")),
    }
    listed = settings.cgroups(pid)
    return result | (settings.cgroup_limits(listed) if listed != here else {})


def _values(threads: list[int], read: Callable[[int], str]) -> str:
    """Return the different values of the threads that still run."""
    values = set()
    for thread in threads:
        with suppress(ProcessLookupError):
            values.add(read(thread))
    return ", ".join(sorted(values))


def _policy(thread: int) -> str:
    number = os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK
    priority = os.sched_getparam(thread).sched_priority
    return f"{settings.POLICIES.get(number, number)}{f' {priority}' if priority else ''}"


def _executable(link: Path) -> str:
    """Return the path of a program's file with a digest of its beginning and its size."""
    state = link.stat()
    return f"{os.readlink(link)} digest {_digest(link, state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)}"


@functools.lru_cache(maxsize=64)
def _digest(link: Path, _device: int, _inode: int, _mtime_ns: int, size: int) -> str:
    with open(link, "rb") as file:
        return hashlib.sha256(b"%d:" % size + file.read(DIGESTED)).hexdigest()[:8]
