"""Try tracefs and its tracers.

Tracers are armed in an own instance (Documentation/trace/ftrace.rst, "Instances"), never in the shared one, which
others may use. The instance is removed in every case; after SIGKILL the next run removes it.
"""

import contextlib
import errno
import fcntl
import functools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.common.errors import LabkitError
from labkit.common.safe_files import closed
from labkit.measure.capabilities import perf
from labkit.measure.capabilities.base import AS_ROOT, Capability, NotTried, attempt, kernel_with, refused
from labkit.system import libc, machine
from labkit.system.machine import sysctl_journal, tracing_journal

# These numbers are the same on all architectures (asm-generic/unistd.h).
FSOPEN, FSCONFIG, FSMOUNT = 430, 431, 432
CLOEXEC, CMD_CREATE = 1, 6  # linux/mount.h
OURS = "labkit-doctor-"


def tracers(*, alone: bool = False) -> list[Capability]:
    """Try tracefs, tracepoints, function, function_graph and kprobe.

    Unless the kernel is discarded (`alone`), tracers are armed in an own instance only.
    """
    lost = "no tracer and no tracepoint can be used"
    with contextlib.ExitStack() as stack:
        folder: Path | None = None

        def find() -> str | None:
            nonlocal folder
            folder = stack.enter_context(tracefs())
            return _restore_leftovers()

        result = [attempt("tracers", "tracefs", find, lost, lambda number: _remedy(number, "TRACING"))]
        for name, probe, lost, option in (
            ("tracepoints", _tracepoint, "softirqs, queues and drops cannot be followed by tracepoints", "FTRACE"),
            ("function", _function, "kernel functions cannot be counted or followed by ftrace", "FUNCTION_TRACER"),
            ("function_graph", functools.partial(_function_graph, alone),
             "durations and callees of kernel functions are unknown", "FUNCTION_GRAPH_TRACER"),
        ):  # fmt: skip
            remedy = functools.partial(_remedy, option=option)
            result.append(attempt("tracers", name, functools.partial(probe, folder), lost, remedy))
    return [*result, perf.kprobe()]


def _restore_leftovers() -> str | None:
    """Restore tracer settings that a killed run left changed, where that is allowed; return what was restored."""
    try:
        changed = [*tracing_journal.restore_leftovers(), *sysctl_journal.restore_leftovers()]
    except (OSError, LabkitError) as error:
        raise NotTried(f"a killed labkit run left tracing on ({error})", AS_ROOT) from None
    return (
        f"a killed labkit run had left settings changed; restored: {', '.join(changed)}" if changed else None
    )


def _remedy(number: int, option: str) -> str:
    if number in (errno.EPERM, errno.EACCES) and not machine.is_root():
        return AS_ROOT
    return kernel_with(option)


@contextmanager
def tracefs() -> Iterator[Path]:
    """Yield the folder of tracefs: where it is mounted, else a detached mount that ends with this process. Raises
    OSError."""
    for place in tracing_journal.PLACES:
        with contextlib.suppress(OSError):
            if (place / "available_tracers").exists():
                os.close(os.open(place / "available_tracers", os.O_RDONLY))
                yield place
                return
    with closed(_detached_mount(b"tracefs")) as descriptor:
        yield Path(f"/proc/self/fd/{descriptor}")


def _detached_mount(kind: bytes) -> int:
    """Mount a file system without a mount point (fsopen(2), fsmount(2))."""
    with closed(libc.call("syscall", FSOPEN, kind, CLOEXEC)) as context:
        libc.call("syscall", FSCONFIG, context, CMD_CREATE, None, None, 0)
        return libc.call("syscall", FSMOUNT, context, CLOEXEC, 0)


@contextmanager
def instance(folder: Path) -> Iterator[Path]:
    """Create a trace instance, locked until it is removed. Raises OSError."""
    path = folder / "instances" / f"{OURS}{secrets.token_hex(4)}"
    with tracing_journal.still_small(folder), contextlib.ExitStack() as own:
        # Otherwise another process could take a new, still unlocked instance for a leftover.
        with _lock(folder / "instances", wait=True):
            _remove_leftovers(folder)
            path.mkdir()
            own.enter_context(_lock(path, wait=False))
            # the last to come is the first to go: it is removed while it is locked
            own.callback(_remove, path)
        yield path


@contextmanager
def _lock(folder: Path, *, wait: bool) -> Iterator[None]:
    """Hold flock(2) on a folder for the block. Raises BlockingIOError if `wait` is False and it is locked."""
    with closed(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as holder:
        fcntl.flock(holder, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        (path / "current_tracer").write_text("nop")
    path.rmdir()


def _remove_leftovers(folder: Path) -> None:
    for path in (folder / "instances").glob(f"{OURS}*"):
        with contextlib.suppress(OSError), _lock(path, wait=False):
            _remove(path)


def _require_tracefs(folder: Path | None) -> Path:
    if folder is None:
        raise refused(errno.EACCES, "tracefs cannot be read")
    return folder


def _tracepoint(folder: Path | None) -> None:
    number = _require_tracefs(folder) / "events/net/netif_receive_skb/id"
    perf.tracepoint(int(number.read_text()))


def _function(folder: Path | None) -> None:
    place = _require_tracefs(folder)
    _arm_one_function(place, "function")
    with instance(place) as own:
        _arm(place, own, "function")


def _function_graph(alone: bool, folder: Path | None) -> None:
    place = _require_tracefs(folder)
    _arm_one_function(place, "function_graph")
    if alone:
        _arm(place, place, "function_graph")
        (place / "current_tracer").write_text("nop")
        return
    with instance(place) as own:
        try:
            _arm(place, own, "function_graph")
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # Before Linux 6.11 this tracer is not allowed in instances.
            _arm(place, own, "function")
            text = "listed, and the function tracer works; not tried, because this kernel supports it in no instance"
            raise NotTried(text, "when nobody else traces, try: perf ftrace -G ip_rcv") from None


def _arm_one_function(folder: Path, tracer: str) -> None:
    if tracer not in (folder / "available_tracers").read_text().split():
        raise refused(errno.ENOENT, "this kernel does not have it")


def _arm(place: Path, own: Path, tracer: str) -> None:
    """Arm a tracer for one function only: arming all rewrites ten thousands of places in the kernel."""
    try:
        with open(place / "available_filter_functions") as file:
            function = file.readline().split()[0]
        (own / "set_ftrace_filter").write_text(function)
        (own / "current_tracer").write_text(tracer)
    except PermissionError as error:
        raise refused(error.errno or 0, "the kernel lists it but forbids arming it") from None
