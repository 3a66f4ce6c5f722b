"""Programs that run to their end: deadlines, CPU time, error messages."""

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from labkit.common import packages
from labkit.common.errors import Failed, Unsupported
from labkit.common.safe_files import closed
from labkit.system.process.limits import exhausted

# How much of a program's output is read, so that a broken program cannot fill the memory.
MAX_BYTES = 64 << 20
# labkit parses numbers and messages, so programs must not write them in the user's language.
LOCALE = "C.UTF-8"

# setpriv(1) sets the parent-death signal before the program starts; a call after the start would be a race.
DIE_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"]


def python(*words: str) -> list[str]:
    """Return the command line that runs this Python with these arguments, without the current folder on its path.

    A random.py in the current folder could otherwise replace Python's module. PYTHONPATH keeps only absolute folders.
    """
    own = os.environ.get("PYTHONPATH", "")
    kept = os.pathsep.join(folder for folder in own.split(os.pathsep) if os.path.isabs(folder))
    return [*([] if kept == own else ["env", f"PYTHONPATH={kept}"]), sys.executable, "-P", *words]


@dataclass(frozen=True)
class Ended:
    """A program that has ended: its output, its return code, and the CPU seconds that it used.

    CPU seconds are user and system time of the program and of its children that it waited for.
    """

    argv: Sequence[str]
    returncode: int  # negative: the number of the signal that ended it
    stdout: str
    stderr: str
    cpu_s: float
    timed_out: bool = False

    def message(self) -> str:
        """Return the program's error message in one line."""
        lines = " ".join((self.stderr.strip() or self.stdout.strip()).split())
        if self.timed_out:
            how = "did not end in time and was killed"
        elif self.returncode < 0:
            names = {int(one): one.name for one in signal.Signals}  # without most real-time signals
            how = f"was ended by {names.get(-self.returncode, f'signal {-self.returncode}')}"
        else:
            how = f"ended with {self.returncode}"
        # the arguments before "--" only say where it ran; a last "--" is the program's own
        words = self.argv[:-1]
        name = self.argv[len(words) - words[::-1].index("--")] if "--" in words else self.argv[0]
        return f"{name} {how}" + (f": {lines[:300]}" if lines else "")


def parsed_environment() -> dict[str, str]:
    """Return this process's environment with LOCALE, for a program whose output labkit parses."""
    return {**os.environ, "LC_ALL": LOCALE}


class Running:
    """A started program. Its output goes to unnamed files, so that no pipe can fill up and no file remains."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        stops: signal.Signals = signal.SIGSTOP,
    ) -> None:
        self.argv = list(argv)
        self._stops = stops  # another signal if the program is a client of one that runs elsewhere
        self._out = tempfile.TemporaryFile()
        self._err = tempfile.TemporaryFile()
        try:
            with startable(self.argv):
                self._popen = subprocess.Popen(
                    self.argv,
                    stdin=stdin,
                    stdout=self._out,
                    stderr=self._err,
                    pass_fds=pass_fds,
                    env=parsed_environment(),
                )
        except (Unsupported, Failed):
            self._close_files()
            raise
        self.pid = self._popen.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._status: tuple[int, float] | None = None
        self._ended: Ended | None = None

    def _close_files(self) -> None:
        self._out.close()
        self._err.close()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the program ends (pidfd_open(2))."""
        return self._pidfd

    def signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.Signals(number))

    def hold(self) -> None:
        """Stop the program until `go`."""
        self.signal(self._stops)

    def held(self, deadline: float) -> bool:
        """Wait until it is stopped. Return False if it has ended, or is late (`deadline` is a time.monotonic())."""
        while time.monotonic() < deadline and not self.poll():
            if os.waitid(os.P_PIDFD, self._pidfd, os.WSTOPPED | os.WNOHANG | os.WNOWAIT):
                return True
            time.sleep(0.002)
        return False

    def ready(self, look: Callable[[], object], deadline: float, every_s: float = 0.002) -> bool:
        """Wait until `look` finds something. Return False if the program has ended before, or is late."""
        while not look():
            if self.poll() or time.monotonic() > deadline:
                return False
            time.sleep(every_s)
        return True

    def go(self) -> None:
        """Continue the program."""
        self.signal(signal.SIGCONT)

    def bind(self, cpu: int) -> None:
        """Bind all threads of the program to one CPU. Raises Failed if the program has ended or the CPU is gone."""
        try:
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
                    os.sched_setaffinity(int(thread), {cpu})
        except FileNotFoundError:
            raise Failed(f"{self.argv[0]} ended before it was bound to CPU {cpu}") from None
        except OSError as error:
            raise Failed(f"{self.argv[0]} cannot be bound to CPU {cpu}: {error.strerror}") from None

    def poll(self) -> bool:
        """Return whether the program has ended."""
        if self._status is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self._popen.returncode = os.waitstatus_to_exitcode(status)
                self._status = (self._popen.returncode, usage.ru_utime + usage.ru_stime)
        return self._status is not None

    def output_so_far(self) -> str:
        return content_of(self._out) if self._ended is None else self._ended.stdout

    def ended(self, timed_out: bool = False) -> Ended:
        """Return the outcome. It waits for the end without a limit, so call it after `wait` or `kill`."""
        if self._ended is None:
            wait([self], math.inf)
            assert self._status is not None
            self._ended = Ended(
                self.argv,
                self._status[0],
                content_of(self._out),
                content_of(self._err),
                self._status[1],
                timed_out,
            )
            os.close(self._pidfd)
            self._close_files()
        return self._ended

    def ended_within(self, patience_s: float) -> Ended:
        """Return the outcome; kill the program if it does not end within `patience_s` seconds."""
        late = bool(wait([self], time.monotonic() + patience_s))
        if late:
            self.kill()
        return self.ended(timed_out=late)

    def kill(self) -> None:
        """Kill the program, also if it is stopped."""
        self.signal(signal.SIGKILL)


@contextlib.contextmanager
def startable(argv: Sequence[str]) -> Iterator[None]:
    """Raise Unsupported, with one sentence, if a program cannot be started within the block.

    Raises Failed if a limit (open files, processes) is the reason.
    """
    try:
        yield
    except OSError as error:
        if sentence := exhausted(error, starting=True):
            raise Failed(sentence) from None
        there = not isinstance(error, FileNotFoundError)
        how = f"cannot be started ({error.strerror})" if there else "is not installed"
        raise Unsupported(packages.missing(argv[0], how)) from None


def content_of(file: IO[bytes]) -> str:
    """Return the content of a file from its beginning, up to MAX_BYTES."""
    size = min(os.fstat(file.fileno()).st_size, MAX_BYTES)
    return os.pread(file.fileno(), size, 0).decode(errors="replace")


def wait(programs: Sequence[Running], deadline: float) -> list[Running]:
    """Wait for all programs until `deadline` (time.monotonic()); return those that still run."""
    poll = select.poll()
    left = {program.fileno(): program for program in programs if not program.poll()}
    for descriptor in left:
        poll.register(descriptor, select.POLLIN)
    while left:
        rest = deadline - time.monotonic()
        if rest <= 0:
            break
        for descriptor, _event in poll.poll(None if math.isinf(rest) else rest * 1000):
            if left[descriptor].poll():
                poll.unregister(descriptor)
                del left[descriptor]
    return list(left.values())


def wait_for_any(programs: Sequence[Running]) -> Running:
    """Wait until one of the programs ends, and return it."""
    while True:
        for program in programs:
            if program.poll():
                return program
        _readable(*(program.fileno() for program in programs))


def run(argv: Sequence[str], timeout_s: float = 10.0, given: bytes = b"") -> Ended:
    """Run a program with `given` on its standard input to its end; kill it after `timeout_s`.

    Raises Unsupported if it is not installed.
    """
    with tempfile.TemporaryFile() as file:  # unnamed, so it leaves nothing behind
        file.write(given)
        file.seek(0)
        program = Running(argv, stdin=file if given else subprocess.DEVNULL)
    try:
        return program.ended_within(timeout_s)
    except BaseException:
        program.kill()
        program.ended()
        raise


def output(argv: Sequence[str], timeout_s: float = 10.0) -> str:
    """Run a program and return its output.

    Raises Failed with its error message if its exit code is not 0, Unsupported if it is not installed.
    """
    ended = run(argv, timeout_s)
    if ended.returncode != 0:
        raise Failed(ended.message())
    return ended.stdout


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the block on SIGINT, SIGTERM and SIGHUP as on an exception, so that what it made is removed.

    What is ignored (nohup) stays so. A second signal does not interrupt the removal: a closing terminal sends two.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ours = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def end(given: int, _frame: object) -> None:
        for number in ours:
            signal.signal(number, signal.SIG_IGN)
        if given == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + given)

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


@contextlib.contextmanager
def all_ended(programs: list[Running]) -> Iterator[list[Running]]:
    """Kill all programs of the list that still run when the block ends, in every case."""
    try:
        yield programs
    finally:
        for program in programs:
            program.kill()
        for program in programs:
            program.ended()


def raise_priority(pid: int = 0) -> bool:
    """Give this process (or `pid`) priority over its children and the load (SCHED_FIFO, not inherited).

    Returns False without the privilege. Without priority, a process that holds and releases 256 busy programs on two
    CPUs would wait for each in turn: a slice took 3.5 s.
    """
    try:
        os.sched_setscheduler(pid, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False
    return True


def interactive(
    argv: Sequence[str], environment: dict[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> int:
    """Run a program on this terminal until it ends; return its exit code. Call it from the main thread.

    It is killed if this process ends. Before an exception goes on, it has ended, and all that unshare(1) started.
    """
    with startable(DIE_WITH_US):
        program = subprocess.Popen([*DIE_WITH_US, *argv], env=environment, pass_fds=pass_fds)
    try:
        _wait_for_end_or_signal(program.pid)
        return program.wait()
    finally:
        try:
            if program.poll() is None:
                _kill_children(program.pid)
        finally:
            program.kill()
            program.wait()


def _kill_children(pid: int) -> None:
    """Kill what a program has started, and wait for the end. The program itself is stopped until somebody kills it."""
    with contextlib.suppress(OSError):  # without CONFIG_PROC_CHILDREN, or of a child that has just ended
        os.kill(pid, signal.SIGSTOP)  # unshare(1) would print how its child has ended
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with closed(os.pidfd_open(int(child))) as ends:
                signal.pidfd_send_signal(ends, signal.SIGKILL)
                _readable(ends)  # PID 1 of a namespace ends as its last process


def _wait_for_end_or_signal(pid: int) -> None:
    """Wait until a program has ended; handlers of signals run meanwhile.

    When two signals arrive, the kernel may give both to another thread (signal(7)). A waitpid(2) of the main thread
    then goes on, and no handler of Python's runs. A pipe wakes this thread, whichever gets them.
    """
    reads, writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    try:
        with closed(os.pidfd_open(pid)) as ends:
            while ends not in _readable(ends, reads):
                os.read(reads, 512)
    finally:
        signal.set_wakeup_fd(before)
        os.close(reads)
        os.close(writes)


def _readable(*descriptors: int) -> list[int]:
    """Wait until some of the descriptors are readable, and return these. select(2) takes none above 1023."""
    poll = select.poll()
    for one in descriptors:
        poll.register(one, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll()]


@contextlib.contextmanager
def streamed(argv: Sequence[str]) -> Iterator[IO[bytes]]:
    """Yield the output of a program as a file, to read while it runs; kill the program when the block ends.

    Raises Failed with its error message if its exit code is not 0 although all output was read.
    """
    with tempfile.TemporaryFile() as lines, startable(argv):
        popen = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=lines, env=parsed_environment()
        )
        assert popen.stdout is not None
        try:
            yield popen.stdout
            if not popen.stdout.read(1) and popen.wait() != 0:
                raise Failed(Ended(argv, popen.returncode, "", content_of(lines), 0.0).message())
        finally:
            popen.kill()
            popen.wait()
            popen.stdout.close()
