"""A journal of the changed tracer settings of this machine, which the kernel does not reset when an experiment ends.

A change is noted before it is made. The owner holds a lock (flock(2)) on the journal while it lives. Whoever finds it
unlocked restores all settings: the guard that outlives an experiment, the next tracing run, or the doctor.
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from labkit.common.errors import Failed, Unsupported
from labkit.common.safe_files import closed
from labkit.system.machine.locked_file import open_locked

JOURNAL = Path("/run/labkit-tracing.jsonl")  # a reboot resets tracing and removes this file
PLACES = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
PERF_TOOLS_LOCK = Path("/var/tmp/.ftrace-lock")  # holds the pid of a running perf-tools script
GRACE_S = 5.0  # until the kernel has released the files of a killed process
BUSY = (errno.EBUSY, errno.EAGAIN)
ANOTHER = "another labkit process is tracing on this machine: run again when it has ended"


class JournalStep(msgspec.Struct, frozen=True):
    """One step of restoring: write `text` into the file `path`; if it is None, remove the folder or perf-tools lock
    `path`."""

    path: str
    text: str | None = None


class Journal:
    """The open journal of this process. When its block ends, the noted steps are done, last first."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def note(self, path: Path, text: str | None) -> None:
        """Note how to restore `path`; call this before changing it."""
        os.write(self._descriptor, msgspec.json.encode(JournalStep(str(path), text)) + b"\n")


@contextmanager
def journal() -> Iterator[Journal]:
    """Lock the machine's journal for the block, after restoring what a dead process left.

    Raises Unsupported if another living labkit process holds it or it cannot be written, Failed if restoring failed.
    """
    try:
        descriptor = open_locked(JOURNAL, patience_s=GRACE_S)
    except BlockingIOError:
        raise Unsupported(ANOTHER) from None
    except OSError as error:
        raise Unsupported(
            f"{JOURNAL}, the journal of tracer settings, cannot be written ({error.strerror}): run as root"
        ) from None
    with closed(descriptor):
        try:
            _put_back(descriptor)
            yield Journal(descriptor)
        finally:
            _put_back(descriptor)
            JOURNAL.unlink()


def restore_leftovers(patience_s: float = 0.0) -> list[str]:
    """Restore what a dead process left and return the files that it had changed; changes of a living process stay.

    Raises OSError without the right, Failed if something cannot be restored.
    """
    try:
        descriptor = open_locked(JOURNAL, create=False, patience_s=patience_s)
    except (FileNotFoundError, BlockingIOError):
        return []
    with closed(descriptor):
        changed = [step.path for step in _steps(descriptor)]
        _put_back(descriptor)
        JOURNAL.unlink()
        return changed


def is_held() -> bool:
    """Return whether a living labkit process holds the journal. Raises OSError without the right to open it."""
    try:
        os.close(open_locked(JOURNAL, create=False))
    except (FileNotFoundError, BlockingIOError) as error:
        return isinstance(error, BlockingIOError)
    return False


def _steps(descriptor: int) -> list[JournalStep]:
    """Return the steps in the journal; invalid lines are ignored."""
    steps = []
    for line in os.pread(descriptor, os.fstat(descriptor).st_size, 0).splitlines(keepends=True):
        if line.endswith(b"\n"):  # an incomplete line: its writer was killed before it changed anything
            with contextlib.suppress(msgspec.DecodeError, ValueError):
                steps.append(msgspec.json.decode(line, type=JournalStep))
    return [step for step in steps if _is_tracing(Path(step.path))]


def _is_tracing(path: Path) -> bool:
    """Return whether the path is a tracer setting; `..` or a symbolic link could lead elsewhere."""
    if path == PERF_TOOLS_LOCK:
        return True
    real = Path(os.path.realpath(path))
    return path == real and any(real.is_relative_to(place) and real != place for place in PLACES)


def _put_back(descriptor: int) -> None:
    """Do the steps in the journal, last first; those that fail stay in it for the next process."""
    faults = {}
    for step in reversed(_steps(descriptor)):
        try:
            _undo(step)
        except OSError as error:
            faults[step] = error.strerror
    os.ftruncate(descriptor, 0)
    for step in reversed(faults):
        os.write(descriptor, msgspec.json.encode(step) + b"\n")
    if faults:
        text = ", ".join(f"{step.path} ({why})" for step, why in faults.items())
        raise Failed(f"tracer settings could not be restored: {text}")


def _undo(step: JournalStep) -> None:
    deadline = time.monotonic() + GRACE_S
    while True:
        try:
            path = Path(step.path)
            # a file that is gone needs no restoring, like the switch of the probes after the last probe
            if path.exists():
                if step.text is not None:
                    path.write_text(step.text)
                elif path.is_dir():
                    path.rmdir()
                else:
                    path.unlink()
            return
        except OSError as error:
            if error.errno not in BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def writable(name: str, text: str) -> str:
    """Convert the text that a setting shows into the text that sets it."""
    if name == "trace_clock":
        return text.partition("[")[2].partition("]")[0]
    if name.endswith("buffer_size_kb"):  # `7 (expanded: 1408)`: the latter is the size after the first event
        return text.split()[-1].rstrip(")")
    if name.startswith("set_"):  # drop comments, commands, and module names after function names
        lines = [line for line in text.splitlines() if line and not line.startswith(("#", "no pid"))]
        return "\n".join(line.split()[0] for line in lines if ":" not in line)
    return text.strip()


@contextmanager
def still_small(top: Path) -> Iterator[None]:
    """Keep the shared trace buffer small while an instance is created and removed.

    Before Linux 6.6, an unexpanded shared buffer is treated as expanded afterwards; then its size is set again.
    """
    size = top / "buffer_size_kb"
    before = size.read_text()
    try:
        yield
    finally:
        if "(expanded: " in before and size.read_text() != before:
            size.write_text(writable(size.name, before))
