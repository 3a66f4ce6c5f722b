"""A forked copy of this process that does one task: no start of another Python, and no shared GIL."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterable

from labkit.common.errors import Failed

PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


class Forked:
    """A copy of this process that runs `work` with its end of a socket pair, and then ends.

    It dies with its parent and ignores Ctrl-C. It keeps only standard error and the descriptors in `keep`. The calling
    process must have one thread (fork(2)): a lock that another thread holds would stay locked in the copy.
    """

    def __init__(self, work: Callable[[socket.socket], None], keep: Iterable[int] = ()) -> None:
        self._ours, theirs = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become(work, theirs, keep, parent)
        theirs.close()
        self._ended: int | None = None
        self._buffer = bytearray()

    def send(self, line: bytes) -> None:
        """Send it a line. Raises Failed if it has ended."""
        try:
            self._ours.sendall(line + b"\n")
        except OSError:
            raise Failed(self._how()) from None

    def receive(self, timeout_s: float) -> bytes:
        """Return the next line that it writes. Raises Failed if it has ended; if it is silent for `timeout_s`,
        kills it first."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            self._ours.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                part = self._ours.recv(1 << 16)
            except TimeoutError:
                self.kill()
                raise Failed(f"did not answer within {timeout_s:g} s and was killed") from None
            except ConnectionError:
                part = b""
            if not part:
                raise Failed(self._how())
            self._buffer += part
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line

    def _how(self) -> str:
        """Close the connection, wait for the end, and return how it ended, in words."""
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        self._wait()
        assert self._ended is not None
        return f"was killed by signal {-self._ended}" if self._ended < 0 else f"ended with {self._ended}"

    def poll(self) -> str | None:
        """Return how it ended, in words, or None while it runs."""
        if (
            self._ended is None
            and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        ):
            return None
        return self._how()

    def stop(self, timeout_s: float) -> bytes:
        """Close our side of the connection, which stops it; return what it wrote until it ended.

        Raises Failed if it was killed or did not end in time (it is killed then).
        """
        self._ours.shutdown(socket.SHUT_WR)
        self._ours.settimeout(timeout_s)
        lines = bytearray()
        try:
            while part := self._ours.recv(1 << 16):
                lines += part
        except TimeoutError:
            self.kill()
            raise Failed(f"did not end within {timeout_s:g} s and was killed") from None
        except ConnectionError:  # it was killed before it read the end of its input
            pass
        self._wait()
        assert self._ended is not None
        if self._ended:
            raise Failed(self._how())
        return bytes(lines)

    def _wait(self) -> None:
        """Wait for its end; a copy that has closed its connection has nothing left to do."""
        if self._ended is None:
            self._ours.close()
            self._ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        """Kill it."""
        if self._ended is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()


def _become(
    work: Callable[[socket.socket], None], theirs: socket.socket, keep: Iterable[int], parent: int
) -> None:
    """Run the copy. It never returns into the parent's code."""
    code = 70  # EX_SOFTWARE
    try:
        gc.freeze()  # finalizing an object of the parent here could close a descriptor that the copy uses
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            _let_go({2, theirs.fileno(), *keep})
            work(theirs)
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _let_go(keep: set[int]) -> None:
    """Close all descriptors but these: a pipe that the copy holds would not end when the parent closes it."""
    first = 0
    for number in sorted(keep):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
