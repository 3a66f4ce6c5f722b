"""Conversations with another process: lines in both directions, deadlines, and how the process ended.

A program that is started (`Conversation`), a copy of this process (`Forked`), a program that outlives this process
(`Companion`), and a program that is only fed and read (`Piped`).
"""

import contextlib
import gc
import json
import math
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Protocol

from labkit.common import errors
from labkit.common.errors import Failed, error_by_name
from labkit.system import libc
from labkit.system.process.programs import DIE_WITH_US, Ended, content_of, parsed_environment, startable

PR_SET_PDEATHSIG = 1  # linux/prctl.h

# The message of unshare (2.38) when its child was killed: it cannot end itself with the same signal.
_CHILD_KILLED = "unshare: sigprocmask unblock failed: Invalid argument"
_NO_PRIVILEGE = (
    "is not permitted to create a namespace: run labkit as root, or allow user namespaces (as root: sysctl"
    " kernel.unprivileged_userns_clone=1, or kernel.apparmor_restrict_unprivileged_userns=0)"
)
# What unshare writes if the kernel refuses a namespace, and what it means (namespaces(7), user_namespaces(7)).
_NO_NAMESPACE = {
    "unshare: unshare failed: No space left on device": (
        "cannot create a namespace, because their number is limited: as root, raise the sysctls"
        " user.max_user_namespaces and user.max_net_namespaces"
    ),
    "unshare: unshare failed: Operation not permitted": _NO_PRIVILEGE,
    "unshare: write failed /proc/self/uid_map: Operation not permitted": _NO_PRIVILEGE,
    "unshare: unshare failed: Invalid argument": "cannot create a namespace: this kernel lacks one kind of them",
}

LONGEST_LINE = 128 << 20  # bytes


class HasFileno(Protocol):
    """A pipe, a socket, or another object with a descriptor to wait for."""

    def fileno(self) -> int:
        """Return the descriptor."""


class LineBuffer:
    """Splits received data into lines."""

    def __init__(self) -> None:
        self.rest = bytearray()  # what has been received of the next lines
        self._searched = 0

    def add(self, data: bytes) -> None:
        self.rest += data

    def take(self) -> bytes | None:
        """Return the next line without its end, or None if it is not complete yet. Raises Failed if it is longer than
        LONGEST_LINE."""
        end = self.rest.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self.rest)
            if self._searched > LONGEST_LINE:
                raise Failed(f"the experiment's process wrote a line longer than {LONGEST_LINE >> 20} MiB")
            return None
        line, self._searched = bytes(self.rest[:end]), 0
        del self.rest[: end + 1]
        return line


class Lines(LineBuffer):
    """The lines that come from a pipe or a socket. An empty one is a beat: it only says that the other end lives."""

    def __init__(self, source: HasFileno) -> None:
        super().__init__()
        self._source = source

    def read(self, timeout_s: float = math.inf) -> bool:
        """Wait for data and add it; return False if there will be no more. Raises TimeoutError."""
        poll = select.poll()
        try:
            poll.register(self._source, select.POLLIN)
            ready = poll.poll(None if math.isinf(timeout_s) else max(0.0, timeout_s * 1000))
            data = os.read(self._source.fileno(), 1 << 16) if ready else b""
        # The other end was killed before it had read everything, or another thread has closed this one.
        except (OSError, ValueError):
            return False
        if not ready:
            raise TimeoutError
        self.add(data)
        return bool(data)

    def receive(self, timeout_s: float = math.inf) -> bytes | None:
        """Return the next line, or None if there are no more. Raises TimeoutError if it is not complete in time."""
        deadline = time.monotonic() + timeout_s
        while (line := self.take()) is None:
            if not self.read(deadline - time.monotonic()):
                return None
        return line

    def until_end(self, silence_s: float = math.inf) -> Iterator[bytes]:
        """Yield the lines until there are no more, without beats. Raises TimeoutError if nothing comes for
        `silence_s` seconds."""
        while True:
            while (line := self.take()) is not None:
                if line.strip():
                    yield line
            if not self.read(silence_s):
                return


def how_ended(returncode: int, last_words: str = "") -> str:
    """Return how a process ended, in words, with the last line of what it wrote on standard error."""
    how = f"was killed by signal {-returncode}" if returncode < 0 else f"ended with {returncode}"
    return ": ".join([how, *last_words.strip().splitlines()[-1:]])


class Conversing(Protocol):
    """A conversation with a labkit process on some host, in JSON lines."""

    def send(self, line: bytes) -> None:
        """Send one more line. A process that has ended ignores it, and `lines` ends."""

    def lines(self) -> Iterator[bytes]:
        """Yield its answers as they come, until it ends. A later call continues with the next answer."""

    def end_reason(self) -> str:
        """Say how it ended without an answer; the text follows "the experiment's process"."""

    def end(self) -> None:
        """End the process now if it still runs."""


class _Program:
    """A started program with pipes to its standard input and output; the kernel kills it when this process ends."""

    def __init__(self, argv: Sequence[str], pass_fds: Sequence[int] = ()) -> None:
        self._argv, self._stderr = list(argv), tempfile.TemporaryFile()
        with startable(argv):
            self._popen = subprocess.Popen(
                [*DIE_WITH_US, *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                pass_fds=pass_fds,
                env=parsed_environment(),
            )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._stdin, self._stdout = self._popen.stdin, self._popen.stdout

    def end(self) -> None:
        """End the program now if it still runs."""
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._stdin, self._stdout, self._stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Conversation(_Program):
    """A program that receives lines on standard input and answers in lines; the kernel kills it when this process ends.

    `request` is its first line; with None the caller sends it.
    """

    def __init__(self, argv: Sequence[str], request: bytes | None, pass_fds: Sequence[int] = ()) -> None:
        super().__init__(argv, pass_fds)
        self._silent_s: float | None = None
        self._lines = Lines(self._stdout)
        if request is not None:
            self.send(request)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the program answers or ends."""
        return self._stdout.fileno()

    def send(self, line: bytes) -> None:
        """Send one more line. A process that has ended ignores it, and `lines` ends."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(line + b"\n")
            self._stdin.flush()

    def lines(self, silence_s: float = math.inf) -> Iterator[bytes]:
        """Yield its answers as they come, until it closes its output or is silent for `silence_s` seconds.

        Raises Failed for a line longer than LONGEST_LINE.
        """
        try:
            yield from self._lines.until_end(silence_s)
        except TimeoutError:
            self._silent_s = silence_s

    def end_reason(self) -> str:
        """Say how it ended, with the last line that it wrote on standard error."""
        if self._silent_s is not None:
            return f"was silent for {self._silent_s:g} s"
        returncode = self._popen.wait()
        words = content_of(self._stderr)
        last = "".join(words.strip().splitlines()[-1:])
        if last == _CHILD_KILLED:
            return how_ended(-signal.SIGKILL)
        if known := _NO_NAMESPACE.get(last):
            return known
        # A shell and unshare report a signal as 128 + its number.
        return how_ended(128 - returncode if 128 < returncode < 193 else returncode, words)


class Companion:
    """A program beside this process that outlives it, in its own session: neither Ctrl-C nor our death ends it.

    It may answer lines with lines (`CompanionClient`). Its standard input ends when the last process ends that holds
    the other end of the connection; then it does its last work and ends. `stderr`: where its errors go.
    """

    def __init__(self, argv: Sequence[str], stderr: int | None = subprocess.DEVNULL) -> None:
        self._ours, theirs = socket.socketpair()
        with startable(argv), theirs:
            self._popen = subprocess.Popen(
                argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=stderr, start_new_session=True
            )

    def fileno(self) -> int:
        """Return the descriptor of this end, to pass on to the processes that the program must outlive."""
        return self._ours.fileno()

    @property
    def pid(self) -> int:
        """The program's process."""
        return self._popen.pid

    def release(self) -> None:
        """Close this end. A process that received a copy of it keeps the copy open."""
        self._ours.close()

    def ended(self, patience_s: float | None = None) -> None:
        """Close this end and wait until the program has done its last work; kill it after `patience_s` seconds."""
        self.release()
        try:
            self._popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


class CompanionClient:
    """The connection to a companion, in the process that talks with it. `name` is the companion's in messages."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._name = name
        self._lines = Lines(self._socket)

    def ask(self, request: dict[str, Any], patience_s: float) -> Any:
        """Send a request; return the `ok` of the answer. Raises the error that the companion names (`error`, `kind`),
        and Failed when it has ended or does not answer in time."""
        line = None
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._lines.receive(patience_s)
        except TimeoutError:
            raise Failed(f"{self._name} did not answer within {patience_s:g} s") from None
        except OSError:
            pass
        if line is None:
            raise Failed(f"{self._name} has ended")
        with errors.reading(f"the answer of {self._name}"):
            answer = json.loads(line)
            if "error" in answer:
                raise error_by_name(answer["kind"], answer["error"])
            result = answer["ok"]
        return result

    def close(self) -> None:
        """Close this end of the connection."""
        self._socket.close()


class Forked:
    """A copy of this process that runs `work` with its end of a socket pair, and then ends.

    It dies with its parent and ignores Ctrl-C. It keeps only standard error and the descriptors in `keep`. `stderr`: a
    file for what it writes on standard error; the last line then says how it ended. The calling process must have one
    thread (fork(2)): a lock that another thread holds would stay locked in the copy.
    """

    def __init__(
        self, work: Callable[[socket.socket], None], keep: Iterable[int] = (), stderr: IO[bytes] | None = None
    ) -> None:
        self._stderr = stderr
        self._ours, theirs = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            if stderr is not None:
                os.dup2(stderr.fileno(), 2)
            _become(work, theirs, keep, parent)
        theirs.close()
        self._ended: int | None = None
        self.answers = Lines(self._ours)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when it answers or ends; writing to it gives it input."""
        return self._ours.fileno()

    def send(self, line: bytes) -> None:
        """Send it a line. Raises Failed if it has ended."""
        try:
            self._ours.sendall(line + b"\n")
        except OSError:
            raise Failed(self._how()) from None

    def receive(self, timeout_s: float) -> bytes:
        """Return the next line that it writes. Raises Failed if it has ended; if it is silent for `timeout_s`,
        kills it first."""
        try:
            line = self.answers.receive(timeout_s)
        except TimeoutError:
            self.kill()
            raise Failed(f"did not answer within {timeout_s:g} s and was killed") from None
        if line is None:
            raise Failed(self._how())
        return line

    def _how(self) -> str:
        """Close the connection, wait for the end, and return how it ended, in words."""
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        self._wait()
        assert self._ended is not None
        return how_ended(self._ended, content_of(self._stderr) if self._stderr else "")

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
        try:
            while self.answers.read(timeout_s):
                pass
        except TimeoutError:
            self.kill()
            raise Failed(f"did not end within {timeout_s:g} s and was killed") from None
        self._wait()
        if self._ended:
            raise Failed(self._how())
        return bytes(self.answers.rest)

    def _wait(self) -> None:
        """Wait for its end; a copy that has closed its connection has nothing left to do."""
        if self._ended is None:
            self._ours.close()
            self._ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
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
        libc.call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() in (parent, 0):  # 0: the parent is in another PID namespace
            _let_go({2, theirs.fileno(), *keep})
            work(theirs)
            code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else code
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


class Piped(_Program):
    """A program that is fed and read through pipes, which never block this process.

    Raises Unsupported where it cannot be started.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__(argv)
        self.stdin, self.stdout = self._stdin.fileno(), self._stdout.fileno()
        os.set_blocking(self.stdin, False)
        os.set_blocking(self.stdout, False)

    def feed(self, data: bytes | memoryview) -> int:
        """Write as much as the pipe takes now; returns how many bytes. A program that has ended takes none."""
        try:
            return os.write(self.stdin, data)
        except (BlockingIOError, BrokenPipeError):
            return 0

    def received(self) -> bytes | None:
        """Return what it has written since the last call; None if it has closed its output."""
        try:
            return os.read(self.stdout, 1 << 16) or None
        except BlockingIOError:
            return b""

    def kill(self) -> str:
        """End it; returns how it ended, with its error message."""
        self._popen.kill()
        text = Ended(self._argv, self._popen.wait(), "", content_of(self._stderr), 0.0).message()
        self.end()
        return text
