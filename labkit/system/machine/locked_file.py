"""Files of this user's own that one living process at a time holds by a lock (flock(2)). Journals are among them."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from labkit.common.errors import Unsupported
from labkit.common.safe_files import closed

POLL_S = 0.02
Step = TypeVar("Step", bound=msgspec.Struct)


def open_locked(path: Path, *, create: bool = True, patience_s: float = 0.0) -> int:
    """Open and lock a file, and return its descriptor. Whoever ends, however, frees the lock.

    Nobody else can open the file (mode 0600), because whoever can read a file can lock it. A file that others can open,
    as earlier versions of labkit left, is replaced. Raises BlockingIOError if another process holds it for the whole
    time, and OSError without the right to open it.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    deadline = time.monotonic() + patience_s
    while True:
        descriptor = os.open(path, flags, 0o600)
        try:
            state = os.fstat(descriptor)
            if state.st_uid != os.geteuid():
                raise PermissionError(1, "another user owns it", str(path))
            if state.st_mode & 0o077:
                _replace(path, descriptor)
            else:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:  # otherwise its owner has just removed it
                    return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise
            time.sleep(POLL_S)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _replace(path: Path, descriptor: int) -> None:
    """Put a file with the same content that only this user can open in the place of a file that others can."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with closed(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)) as own:
        os.write(own, os.pread(descriptor, os.fstat(descriptor).st_size, 0))
        os.replace(fresh, path)


@contextmanager
def opened_journal(path: Path, what: str, busy: str, patience_s: float) -> Iterator[int]:
    """Hold a journal for the block and yield its descriptor. Each of its lines is a step that undoes a change.

    Raises Unsupported without the right to open it, where `what` says which journal that is. It raises the sentence
    `busy` if another process holds the journal for the whole time.
    """
    try:
        descriptor = open_locked(path, patience_s=patience_s)
    except BlockingIOError:
        raise Unsupported(busy) from None
    except OSError as error:
        raise Unsupported(f"{path}{what} cannot be written ({error.strerror}): run as root") from None
    with closed(descriptor):
        yield descriptor


def note(descriptor: int, *steps: msgspec.Struct) -> None:
    """Write steps to a journal, in one piece; call this before their changes."""
    os.write(descriptor, b"".join(msgspec.json.encode(step) + b"\n" for step in steps))


def steps(descriptor: int, kind: type[Step]) -> list[Step]:
    """Return the steps in a journal, without invalid lines. Who did not finish a line has changed nothing yet."""
    result = []
    for line in os.pread(descriptor, os.fstat(descriptor).st_size, 0).splitlines(keepends=True):
        with suppress(msgspec.DecodeError, ValueError):
            result += [msgspec.json.decode(line, type=kind)] if line.endswith(b"\n") else []
    return result


def undo(descriptor: int, there: Sequence[Step], by: Callable[[Step], object]) -> dict[Step, str | None]:
    """Do these steps of a journal, last first. Return those that failed, with the system's words.

    They stay in the journal for the next process.
    """
    faults = {}
    for step in reversed(there):
        try:
            by(step)
        except OSError as error:
            faults[step] = error.strerror
    os.ftruncate(descriptor, 0)
    note(descriptor, *reversed(faults))
    return faults
