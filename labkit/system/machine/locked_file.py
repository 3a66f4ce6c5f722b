"""A file of this user's own that one living process at a time holds by a lock (flock(2))."""

import fcntl
import os
import time
from pathlib import Path

from labkit.common.safe_files import closed

POLL_S = 0.02


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
