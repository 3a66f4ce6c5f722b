"""A journal of the changed tracer settings of this machine, which the kernel does not reset when an experiment ends.

A change is noted before it is made. The owner holds a lock (flock(2)) on the journal while it lives. Whoever finds it
unlocked restores all settings: the guard that outlives an experiment, the next tracing run, or the doctor.
"""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from labkit.common.errors import Failed
from labkit.common.safe_files import closed
from labkit.system.machine import locked_file

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
        locked_file.note(self._descriptor, JournalStep(str(path), text))


@contextmanager
def journal() -> Iterator[Journal]:
    """Lock the machine's journal for the block, after restoring what a dead process left.

    Raises Unsupported if another living labkit process holds it or it cannot be written, Failed if restoring failed.
    """
    what = ", the journal of tracer settings,"
    with locked_file.opened_journal(JOURNAL, what, ANOTHER, GRACE_S) as descriptor:
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
        descriptor = locked_file.open_locked(JOURNAL, create=False, patience_s=patience_s)
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
        os.close(locked_file.open_locked(JOURNAL, create=False))
    except (FileNotFoundError, BlockingIOError) as error:
        return isinstance(error, BlockingIOError)
    return False


def _steps(descriptor: int) -> list[JournalStep]:
    """Return the steps in the journal that are of tracers."""
    return [one for one in locked_file.steps(descriptor, JournalStep) if _is_tracing(Path(one.path))]


def _is_tracing(path: Path) -> bool:
    """Return whether the path is a tracer setting; `..` or a symbolic link could lead elsewhere."""
    if path == PERF_TOOLS_LOCK:
        return True
    real = Path(os.path.realpath(path))
    return path == real and any(real.is_relative_to(place) and real != place for place in PLACES)


def _put_back(descriptor: int) -> None:
    """Do the steps in the journal, last first; those that fail stay in it for the next process."""
    if faults := locked_file.undo(descriptor, _steps(descriptor), _undo):
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
