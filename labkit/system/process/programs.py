"""Programs that run to an end: deadlines, CPU time, their own words."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from labkit.common.errors import Failed, Unsupported

MOST_BYTES = 64 << 20  # of what a program prints: a broken one may fill the disk, but not the memory
# Numbers and messages are parsed: a program must not write them as the person's language has them.
LOCALE = "C.UTF-8"

# setpriv(1) sets the parent-death signal before the program starts, which no call after the start could do
# without a race.
DIE_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"]


def python(*words: str) -> list[str]:
    """The command line that runs this Python with these words, without the current folder on its path: a random.py
    there, which may be anybody's, is not Python's. PYTHONPATH keeps its absolute folders only."""
    own = os.environ.get("PYTHONPATH", "")
    kept = os.pathsep.join(folder for folder in own.split(os.pathsep) if os.path.isabs(folder))
    return [*([] if kept == own else ["env", f"PYTHONPATH={kept}"]), sys.executable, "-P", *words]


@dataclass(frozen=True)
class Ended:
    """A program that has ended: what it said, how it ended, and the CPU-seconds it took (user + system,
    itself and waited-for children)."""

    argv: Sequence[str]
    returncode: int  # negative: the signal that ended it
    stdout: str
    stderr: str
    cpu_s: float
    timed_out: bool = False

    def words(self) -> str:
        """The program's own words about what went wrong, in one line."""
        lines = " ".join((self.stderr.strip() or self.stdout.strip()).split())
        if self.timed_out:
            how = "did not end in time and was killed"
        elif self.returncode < 0:
            how = f"was ended by {signal.Signals(-self.returncode).name}"
        else:
            how = f"ended with {self.returncode}"
        # the words in front of "--" say where it ran
        name = self.argv[len(self.argv) - self.argv[::-1].index("--")] if "--" in self.argv else self.argv[0]
        return f"{name} {how}" + (f": {lines[:300]}" if lines else "")


def parsed_environment() -> dict[str, str]:
    """The environment of a program whose output is parsed: this one's, with LOCALE in the place of the person's."""
    return {**os.environ, "LC_ALL": LOCALE}


class Running:
    """A program that was started; its output goes to unnamed files, so that no pipe can fill and nothing is
    left behind."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        stops: signal.Signals = signal.SIGSTOP,
    ) -> None:
        self.argv = list(argv)
        self._stops = stops  # another one where the program stands for one that is elsewhere
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
        except Unsupported:
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
        """A descriptor that becomes readable when the program ends (pidfd_open(2))."""
        return self._pidfd

    def signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.Signals(number))

    def hold(self) -> None:
        """Stop it where it is, until `go`."""
        self.signal(self._stops)

    def held(self, deadline: float) -> bool:
        """Wait until it has stopped; False when it has ended, or not in time (time.monotonic())."""
        while time.monotonic() < deadline and not self.poll():
            if os.waitid(os.P_PIDFD, self._pidfd, os.WSTOPPED | os.WNOHANG | os.WNOWAIT):
                return True
            time.sleep(0.002)
        return False

    def go(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def poll(self) -> bool:
        """Whether it has ended."""
        if self._status is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self._popen.returncode = os.waitstatus_to_exitcode(status)
                self._status = (self._popen.returncode, usage.ru_utime + usage.ru_stime)
        return self._status is not None

    def lines(self) -> str:
        """Standard output up to now."""
        return content_of(self._out) if self._ended is None else self._ended.stdout

    def ended(self, timed_out: bool = False) -> Ended:
        """The outcome; waits for the end if it has not come, so call it after `wait` or after a kill."""
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
        """The outcome; it is killed when it does not end in time."""
        late = bool(wait([self], time.monotonic() + patience_s))
        if late:
            self.kill()
        return self.ended(timed_out=late)

    def kill(self) -> None:
        """End it at once, also when it is stopped."""
        self.signal(signal.SIGKILL)


class Outliving:
    """A program in a session of its own that does not die with us: its standard input ends when the last process does
    that has our end of it, and then it does its work."""

    def __init__(self, argv: Sequence[str]) -> None:
        quiet = subprocess.DEVNULL
        with startable(argv):
            self._popen = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
            )

    def fileno(self) -> int:
        """The descriptor of our end, to be passed on to those that it is to outlive."""
        assert self._popen.stdin is not None
        return self._popen.stdin.fileno()

    def release(self) -> None:
        """Let go of our end; those that it was passed on to have theirs."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def ended(self) -> None:
        """Let go, and wait until it has done its work."""
        self.release()
        self._popen.wait()


@contextlib.contextmanager
def startable(argv: Sequence[str]) -> Iterator[None]:
    """What goes wrong with the start of a program is raised as Unsupported, in one sentence."""
    try:
        yield
    except OSError as error:
        how = (
            "is not here" if isinstance(error, FileNotFoundError) else f"cannot be started ({error.strerror})"
        )
        raise Unsupported(
            f"the program {argv[0]} {how}: install it; packages.debian lists what labkit uses"
        ) from None


def content_of(file: IO[bytes]) -> str:
    """What a file holds, wherever it was read or written last; of one that is larger than MOST_BYTES the beginning."""
    size = min(os.fstat(file.fileno()).st_size, MOST_BYTES)
    return os.pread(file.fileno(), size, 0).decode(errors="replace")


def wait(programs: Sequence[Running], deadline: float) -> list[Running]:
    """Wait for all of them until `deadline` (time.monotonic()); returns those still running then."""
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


def first(programs: Sequence[Running]) -> Running:
    """The first of them to end; waits for it."""
    poll = select.poll()
    for program in programs:
        poll.register(program.fileno(), select.POLLIN)
    while True:
        for program in programs:
            if program.poll():
                return program
        poll.poll()


def run(argv: Sequence[str], timeout_s: float = 10.0) -> Ended:
    """Run a program to its end, killed after `timeout_s`. Raises Unsupported when it is not there."""
    program = Running(argv)
    try:
        return program.ended_within(timeout_s)
    except BaseException:
        program.kill()
        program.ended()
        raise


def output(argv: Sequence[str], timeout_s: float = 10.0) -> str:
    """What a program prints. Raises Failed with its words when it does not end with 0, Unsupported when it is
    not there."""
    ended = run(argv, timeout_s)
    if ended.returncode != 0:
        raise Failed(ended.words())
    return ended.stdout


@contextlib.contextmanager
def all_ended(programs: list[Running]) -> Iterator[list[Running]]:
    """Whatever happens inside, none of the programs in the list runs afterwards."""
    try:
        yield programs
    finally:
        for program in programs:
            program.kill()
        for program in programs:
            program.ended()


def ahead_of_load(pid: int = 0) -> bool:
    """Let this process, or the one with this number, run before those that it starts and before the load (SCHED_FIFO,
    not inherited); False without the privilege.

    Who holds and releases 256 busy programs on two CPUs would else wait for each in turn: a slice took 3.5 s.
    """
    try:
        os.sched_setscheduler(pid, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False
    return True


def interactive(
    argv: Sequence[str], environment: dict[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> int:
    """Run a program on this terminal until it ends, and with us; returns its exit code."""
    with startable(DIE_WITH_US):
        return subprocess.run(
            [*DIE_WITH_US, *argv], env=environment, pass_fds=pass_fds, check=False
        ).returncode


@contextlib.contextmanager
def streamed(argv: Sequence[str]) -> Iterator[IO[bytes]]:
    """What a program prints, to be read while it runs; afterwards it has ended, also when not all was read.

    Raises Failed with its words when it does not end with 0 although all was read.
    """
    with tempfile.TemporaryFile() as lines, startable(argv):
        popen = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=lines, env=parsed_environment()
        )
        assert popen.stdout is not None
        try:
            yield popen.stdout
            if not popen.stdout.read(1) and popen.wait() != 0:
                raise Failed(Ended(argv, popen.returncode, "", content_of(lines), 0.0).words())
        finally:
            popen.kill()
            popen.wait()
            popen.stdout.close()
