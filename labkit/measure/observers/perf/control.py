"""What perf_stat and perf_record share: the program, its scope, and the control descriptor that starts and stops
counting.

`--control fd` needs perf 5.12 (tried with 6.1).
"""

import contextlib
import os
import select
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labkit.common.errors import Failed, Unsupported
from labkit.system import machine, process

ANSWER_S = 60.0  # until perf answers: it opens an event on every CPU, and may read all symbols
END_S = 60.0  # until perf has written its data
# The kernel shows addresses only to users who may profile it (kernel.kptr_restrict, Documentation/admin-guide/sysctl/
# kernel.rst).
SHOW_SYMBOLS = "run as root, or have root set: sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=1"


@dataclass(frozen=True)
class Scope:
    """What perf watches: the whole machine, or these processes."""

    pids: tuple[int, ...] = ()

    def argv(self) -> list[str]:
        """Return perf's arguments, to follow the events."""
        return ["-p", ",".join(map(str, self.pids))] if self.pids else ["-a"]

    def __str__(self) -> str:
        return f"processes {', '.join(map(str, self.pids))}" if self.pids else "whole machine"


WHOLE_MACHINE = Scope()


def program() -> str:
    """Return the path of perf. Raises Unsupported, with its package, if it is not installed."""
    return machine.require_program("perf")


def refusal(ended: process.Ended) -> Failed | Unsupported:
    """Return the error for perf's failure to open an event, from its message."""
    words = ended.stderr
    if ended.timed_out or ended.returncode < 0:
        return Failed(ended.message())
    paranoid = _sysctl("perf_event_paranoid")
    if any(one in words for one in ("limited", "Permission", "permission", "privilege", "not permitted")):
        return Unsupported(
            f"this user may not watch the whole machine (kernel.perf_event_paranoid is {paranoid}):"
            " run as root, or have root set sysctl kernel.perf_event_paranoid=-1"
        )
    return Unsupported(f"perf cannot open any event here: {ended.message()}")


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys/kernel", name).read_text().strip()
    except OSError:
        return "unknown"


def has_symbols(kallsyms: Path = Path("/proc/kallsyms")) -> bool:
    """Return whether the kernel shows the addresses of its functions (kernel.kptr_restrict, CONFIG_KALLSYMS)."""
    try:
        with open(kallsyms) as file:
            return any(int(line.split(maxsplit=1)[0], 16) for line, _ in zip(file, range(1000), strict=False))
    except OSError:
        return False


class Controlled:
    """A running perf that counts on command."""

    def __init__(self, running: process.Running, control: int, ack: int) -> None:
        self._running, self._control, self._ack = running, control, ack

    def request(self, word: str) -> None:
        """Send a command and wait until perf has done it. Raises Failed or Unsupported with its message if it
        ended."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._control, f"{word}\n".encode())
        poll = select.poll()
        poll.register(self._ack, select.POLLIN)
        poll.register(self._running, select.POLLIN)
        ready = dict(poll.poll(ANSWER_S * 1000))
        if self._ack not in ready:
            raise self._silent(word)
        os.read(self._ack, 64)

    def _silent(self, word: str) -> Failed | Unsupported:
        if not self._running.poll():
            return Failed(f"perf did not answer {word!r} within {ANSWER_S:g} s")
        ended = self._running.ended()
        return refusal(ended) if "Error" in ended.stderr else Failed(ended.message())

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count until the block ends."""
        self.request("enable")
        try:
            yield
        finally:
            self.request("disable")

    def end(self) -> process.Ended:
        """End it like Ctrl-C, so that it writes its data. Raises Failed with its message."""
        self._running.signal(signal.SIGINT)
        ended = self._running.ended_within(END_S)
        if ended.timed_out or ended.returncode not in (0, -signal.SIGINT):
            raise Failed(ended.message())
        return ended


@contextmanager
def controlled(words: Sequence[str], before: Sequence[str] = ()) -> Iterator[Controlled]:
    """Start perf with these arguments (`stat` or `record` first), not yet counting; it ends with the block and this
    process. before: the words of a program that becomes perf."""
    control_end, control = os.pipe2(os.O_CLOEXEC)
    ack, ack_end = os.pipe2(os.O_CLOEXEC)
    command, *rest = words
    argv = [*before, program(), command, "--delay=-1", f"--control=fd:{control_end},{ack_end}", *rest]
    with contextlib.ExitStack() as stack:
        for one in (control, ack):
            stack.callback(os.close, one)
        try:
            running = process.Running([*process.DIE_WITH_US, *argv], pass_fds=(control_end, ack_end))
        finally:
            os.close(control_end)
            os.close(ack_end)
        stack.enter_context(process.all_ended([running]))
        process.raise_priority(running.pid)  # otherwise it may react only after the load
        made = Controlled(running, control, ack)
        made.request("ping")
        yield made
