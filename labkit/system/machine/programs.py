"""Programs of the machine: their paths and versions."""

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labkit.common import packages
from labkit.common.errors import LabkitError, Unsupported
from labkit.system import process
from labkit.system.machine.cpu_time import descendants, process_stats

# On Debian, ethtool and tc are in folders outside an ordinary user's PATH, and virtiofsd is outside everybody's.
_MORE_PATH = ["/usr/sbin", "/sbin", "/usr/libexec", "/usr/lib/qemu"]
# tshark and a browser need more than a second to print theirs, and several where other programs have the CPUs.
_PATIENCE_S = 15.0
_KILLED_S = 5.0  # a killed process ends at once, unless the kernel waits for a device in its name
_VERSION_FLAG = {"ip": "-V", "tc": "-V", "ping": "-V", "nginx": "-v"}


def program(name: str) -> str:
    """Return the path of a program, also from folders outside the PATH; return `name` if it is nowhere."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_MORE_PATH])
    return shutil.which(name, path=path) or name


def require_program(name: str) -> str:
    """Return the path of a program. Raises Unsupported, with the name of its package, if it is not installed."""
    path = program(name)
    if not os.path.isabs(path):
        raise Unsupported(packages.missing(name))
    return path


def versions(names: Iterable[str], deadline_s: float = _PATIENCE_S) -> dict[str, str | None]:
    """Ask all programs at once for their versions; None if a program is not installed, "?" if it prints none."""
    with asking_versions(names, deadline_s) as answers:
        return answers()


@contextmanager
def asking_versions(
    names: Iterable[str], deadline_s: float = _PATIENCE_S
) -> Iterator[Callable[[], dict[str, str | None]]]:
    """Start every program for its version, so that they run while the caller does something else.

    Yields a function that waits for them and returns the same as `versions`.
    """
    result: dict[str, str | None] = {}
    begun = time.monotonic()
    running: dict[str, process.Running] = {}
    with process.all_ended([]) as started:
        for name in names:
            result[name] = None
            try:
                running[name] = process.Running([program(name), _VERSION_FLAG.get(name, "--version")])
            except (LabkitError, OSError):
                continue
            started.append(running[name])

        def answers() -> dict[str, str | None]:
            process.wait(started, begun + deadline_s)
            for name, one in running.items():
                one.kill()
                result[name] = version_in(one.ended().stdout + one.ended().stderr) or "?"
            return result

        yield answers


def pids_by_namespace() -> Iterator[tuple[int, int, str]]:
    """Yield the network namespace (its inode), the PID and the name of every process of this PID namespace."""
    for pid, name in _living():
        with suppress(OSError):  # it has ended, or is another user's
            yield Path(f"/proc/{pid}/ns/net").stat().st_ino, pid, name


def _living() -> Iterator[tuple[int, str]]:
    """Yield the PID and the name of every process that is not a zombie."""
    return ((pid, name) for pid, name, fields in process_stats() if fields[0] not in "ZX")


def kill_descendants(pids: Iterable[int]) -> None:
    """Kill these descendants of this process, and theirs, and wait until they have ended.

    A PID that is no longer a descendant's is left alone.
    """
    doomed = {one for pid in pids for one in (pid, *descendants(pid))} & descendants(os.getpid())
    for pid in doomed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _KILLED_S
    while doomed & dict(_living()).keys() and time.monotonic() < deadline:
        time.sleep(0.001)


def version_in(text: str) -> str | None:
    """Return the first text that looks like a version: 6.1, 3.12.1, or a date as in iputils."""
    match = re.search(r"\d+(?:\.\d+)+|\b20\d{6}\b", text)
    return match[0] if match else None
