"""Limits of this process's user or shell (ulimit): open files and processes."""

import contextlib
import errno
import resource
import threading

from labkit.common.errors import BadInput

# A doctor has about 40 files open at once, and an experiment with one pair about as many.
MIN_OPEN_FILES = 64
MIN_PROCESSES = 48  # a doctor asks some twenty programs for their versions at once, while probes run
FEW_PROCESSES = 4096  # a lower limit is tried at the start

TOO_MANY_FILES = "too many open files: raise the limit with ulimit -n 1024"
TOO_MANY_PROCESSES = "too many processes of this user: raise the limit with ulimit -u 4096, or end others"
OPENING_ERRORS = {
    errno.EMFILE: TOO_MANY_FILES,
    errno.ENFILE: "too many open files on this machine: raise the sysctl fs.file-max",
}
STARTING_ERRORS = {  # fork(2), clone(2); other system calls use these numbers with other meanings
    errno.EAGAIN: TOO_MANY_PROCESSES,
    errno.ENOMEM: "the machine has no memory left for another process: end others",
}


def exhausted(error: BaseException, *, starting: bool = False) -> str | None:
    """Return the sentence about the limit that an error reports, or None if it reports no limit.

    `starting`: the error occurred while a process was being started.
    """
    if isinstance(error, OSError):
        return (OPENING_ERRORS | STARTING_ERRORS if starting else OPENING_ERRORS).get(error.errno or 0)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return TOO_MANY_PROCESSES  # pthread_create(3) fails with EAGAIN, which Python does not pass on
    return None


def raise_open_files() -> None:
    """Raise this process's limit of open files as far as it may.

    A namespace takes two descriptors and a program three: 128 pairs of four arms need several thousand.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check() -> None:
    """Raise BadInput if this process may open so few files, or start so few processes, that nothing would work."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and max(soft, hard) < MIN_OPEN_FILES:
        raise BadInput(TOO_MANY_FILES)
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit != resource.RLIM_INFINITY and limit < FEW_PROCESSES:
        _try_processes()


def _try_processes() -> None:
    """Start as many threads as labkit needs processes: both count (RLIMIT_NPROC), and threads start fast."""
    over = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(MIN_PROCESSES):
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        raise BadInput(TOO_MANY_PROCESSES) from None
    finally:
        over.set()
        for thread in started:
            thread.join()
