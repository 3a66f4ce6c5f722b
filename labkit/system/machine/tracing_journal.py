"""What labkit has changed of this machine's tracers and how it was: the one thing that the kernel does not collect with
an experiment.

A journal says it before it is done. It is locked (flock(2)) as long as its owner lives; whoever finds it unlocked, the
guard that outlives an experiment, the next one to trace or the doctor, puts everything back as it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from labkit.common.errors import Failed, Unsupported

JOURNAL = Path("/run/labkit-tracing.jsonl")  # gone with the next boot, as all tracing is
PLACES = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
PERF_TOOLS_LOCK = Path("/var/tmp/.ftrace-lock")  # with the pid of the one of perf-tools that runs
GRACE_S = 5.0  # until the kernel has let go of what a killed process had open
BUSY = (errno.EBUSY, errno.EAGAIN)
ANOTHER = "another labkit traces on this machine: run again when that has ended"


class JournalStep(msgspec.Struct, frozen=True):
    """Write `text` into the file `path`; without a text, remove the folder `path`, or the lock of perf-tools."""

    path: str
    text: str | None = None


class Journal:
    """The journal, ours: what is noted is put back when its block ends, last first."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def note(self, path: Path, text: str | None) -> None:
        """What is to be done to put `path` back; to be called before it is changed."""
        os.write(self._descriptor, msgspec.json.encode(JournalStep(str(path), text)) + b"\n")


@contextmanager
def journal() -> Iterator[Journal]:
    """The machine's journal, after what is left of a dead one was put back. Raises Unsupported while another process of
    labkit's that lives has it, and without the right to write it; Failed when something could not be put back."""
    try:
        descriptor = _opened(create=True, patience_s=GRACE_S)
    except BlockingIOError:
        raise Unsupported(ANOTHER) from None
    except OSError as error:
        raise Unsupported(
            f"{JOURNAL}, which tells how tracers were before, cannot be written ({error.strerror}): run as root"
        ) from None
    try:
        _put_back(descriptor)
        yield Journal(descriptor)
    finally:
        try:
            _put_back(descriptor)
            JOURNAL.unlink()
        finally:
            os.close(descriptor)


def restore_leftovers(patience_s: float = 0.0) -> list[str]:
    """Put back what a dead process has left, and tell the files that it had changed; what one that lives has changed is
    its own. Raises OSError without the right, Failed when something cannot be put back."""
    try:
        descriptor = _opened(create=False, patience_s=patience_s)
    except (FileNotFoundError, BlockingIOError):
        return []
    try:
        changed = [step.path for step in _steps(descriptor)]
        _put_back(descriptor)
        JOURNAL.unlink()
        return changed
    finally:
        os.close(descriptor)


def is_held() -> bool:
    """Whether a process of labkit's that lives has the journal. Raises OSError without the right to know."""
    try:
        os.close(_opened(create=False, patience_s=0.0))
    except (FileNotFoundError, BlockingIOError) as error:
        return isinstance(error, BlockingIOError)
    return False


def _opened(*, create: bool, patience_s: float) -> int:
    """The journal, locked. Raises BlockingIOError when another one has it all the time."""
    deadline = time.monotonic() + patience_s
    while True:
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        descriptor = os.open(JOURNAL, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:  # else its owner has just removed it
                return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise
            time.sleep(0.02)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _steps(descriptor: int) -> list[JournalStep]:
    """What the journal says, but for lines that are no steps: nobody could ever follow them."""
    steps = []
    for line in os.pread(descriptor, os.fstat(descriptor).st_size, 0).splitlines(keepends=True):
        if line.endswith(
            b"\n"
        ):  # else its writer was killed in the midst of it, and had not yet changed anything
            with contextlib.suppress(msgspec.DecodeError, ValueError):
                steps.append(msgspec.json.decode(line, type=JournalStep))
    return [step for step in steps if _is_tracing(Path(step.path))]


def _is_tracing(path: Path) -> bool:
    """Whether nothing but a setting of the tracers can be meant: `..` or a link may lead elsewhere."""
    if path == PERF_TOOLS_LOCK:
        return True
    real = Path(os.path.realpath(path))
    return path == real and any(real.is_relative_to(place) and real != place for place in PLACES)


def _put_back(descriptor: int) -> None:
    """Do what the journal says, last first; what cannot be done stays in it, for whoever finds it next."""
    faults = {}
    for step in reversed(_steps(descriptor)):
        try:
            _undone(step)
        except OSError as error:
            faults[step] = error.strerror
    os.ftruncate(descriptor, 0)
    for step in reversed(faults):
        os.write(descriptor, msgspec.json.encode(step) + b"\n")
    if faults:
        words = ", ".join(f"{step.path} ({why})" for step, why in faults.items())
        raise Failed(f"tracing could not be put back as it was: {words}")


def _undone(step: JournalStep) -> None:
    deadline = time.monotonic() + GRACE_S
    while True:
        try:
            path = Path(step.path)
            if (
                path.exists()
            ):  # what is gone by itself, as the switch of the probes with the last one, is as it was
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
    """What has to be written to have a setting as it reads."""
    if name == "trace_clock":
        return text.partition("[")[2].partition("]")[0]
    if name.endswith("buffer_size_kb"):  # `7 (expanded: 1408)`: it is the latter with the first event
        return text.split()[-1].rstrip(")")
    if name.startswith("set_"):  # comments, commands, and modules behind the names
        lines = [line for line in text.splitlines() if line and not line.startswith(("#", "no pid"))]
        return "\n".join(line.split()[0] for line in lines if ":" not in line)
    return text.strip()


@contextmanager
def still_small(top: Path) -> Iterator[None]:
    """For an instance that comes and goes: before Linux 6.6 the buffer that all share, as long as it is small, is
    taken afterwards for one that has its size."""
    size = top / "buffer_size_kb"
    before = size.read_text()
    try:
        yield
    finally:
        if "(expanded: " in before and size.read_text() != before:
            size.write_text(writable(size.name, before))
