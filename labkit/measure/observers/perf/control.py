"""What perf_stat and perf_record share: the program, its scope, and a control descriptor by which it begins and stops
to count (`--control fd`, perf 5.12; tried with 6.1)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.system import machine, process

ANSWER_S = 60.0  # until perf answers: it opens an event on every CPU, and may have to read every symbol
END_S = 60.0  # until it has written what it has
PACKAGE = "linux-perf"
# The kernel shows addresses to who may profile it (kernel.kptr_restrict, Documentation/admin-guide/sysctl/kernel.rst).
SHOW_SYMBOLS = "run as root, or have root set: sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=1"


@dataclass(frozen=True)
class Scope:
    """What is watched: the whole machine, or of it these CPUs, these processes, this cgroup (a path below the cgroup
    file system)."""

    cpus: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    cgroup: str | None = None

    def argv(self) -> list[str]:
        """The words for perf; to follow the events."""
        if self.pids:
            return ["-p", ",".join(map(str, self.pids))]
        words = ["-C", ",".join(map(str, self.cpus))] if self.cpus else ["-a"]
        return [*words, "-G", self.cgroup] if self.cgroup else words

    def __str__(self) -> str:
        if self.pids:
            return f"processes {', '.join(map(str, self.pids))}"
        cpus = f"CPUs {', '.join(map(str, self.cpus))}" if self.cpus else "whole machine"
        return f"{cpus}, cgroup {self.cgroup}" if self.cgroup else cpus


WHOLE_MACHINE = Scope()


def check_cpus(scope: Scope) -> None:
    """Raise BadInput for CPUs that are not there, of which perf says only that it cannot count."""
    absent = [cpu for cpu in scope.cpus if not Path(f"/sys/devices/system/cpu/cpu{cpu}").exists()]
    if absent:
        raise BadInput(f"there is no CPU {', '.join(map(str, absent))} here: there are {os.cpu_count()}")


def program() -> str:
    """The path of perf. Raises Unsupported, naming Debian's package, where there is none."""
    return machine.needed("perf", PACKAGE)


def refusal(ended: process.Ended) -> Failed | Unsupported:
    """What it means that perf could not open an event, by its own words."""
    words = ended.stderr
    if ended.timed_out or ended.returncode < 0:
        return Failed(ended.words())
    paranoid = _sysctl("perf_event_paranoid")
    if any(one in words for one in ("limited", "Permission", "permission", "privilege", "not permitted")):
        return Unsupported(
            f"this user may not watch the whole machine (kernel.perf_event_paranoid is {paranoid}):"
            " run as root, or have root set sysctl kernel.perf_event_paranoid=-1"
        )
    return Unsupported(f"perf can open no event here: {ended.words()}")


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys/kernel", name).read_text().strip()
    except OSError:
        return "unknown"


def has_symbols(kallsyms: Path = Path("/proc/kallsyms")) -> bool:
    """Whether the kernel tells the addresses of its functions (kernel.kptr_restrict, CONFIG_KALLSYMS)."""
    try:
        with open(kallsyms) as file:
            return any(int(line.split(maxsplit=1)[0], 16) for line, _ in zip(file, range(1000), strict=False))
    except OSError:
        return False


class Controlled:
    """perf as it waits to be told when to count."""

    def __init__(self, running: process.Running, tell: int, hear: int) -> None:
        self._running, self._tell, self._hear = running, tell, hear

    def say(self, word: str) -> None:
        """Tell it a word and wait until it has done it. Raises Failed or Unsupported with its words when it ended."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._tell, f"{word}\n".encode())
        poll = select.poll()
        poll.register(self._hear, select.POLLIN)
        poll.register(self._running, select.POLLIN)
        ready = dict(poll.poll(ANSWER_S * 1000))
        if self._hear not in ready:
            raise self._silent(word)
        os.read(self._hear, 64)

    def _silent(self, word: str) -> Failed | Unsupported:
        if not self._running.poll():
            return Failed(f"perf did not answer to {word!r} within {ANSWER_S:g} s")
        ended = self._running.ended()
        return refusal(ended) if "Error" in ended.stderr else Failed(ended.words())

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count until the block ends."""
        self.say("enable")
        try:
            yield
        finally:
            self.say("disable")

    def end(self) -> process.Ended:
        """End it as Ctrl-C does, upon which it writes what it has. Raises Failed with its words when it could not."""
        self._running.signal(signal.SIGINT)
        ended = self._running.ended_within(END_S)
        if ended.timed_out or ended.returncode not in (0, -signal.SIGINT):
            raise Failed(ended.words())
        return ended


@contextmanager
def controlled(words: Sequence[str]) -> Iterator[Controlled]:
    """perf with these words (`stat` or `record` first), ready and not counting; it ends with the block, and with us."""
    hears, tell = os.pipe2(os.O_CLOEXEC)
    hear, answers = os.pipe2(os.O_CLOEXEC)
    command, *rest = words
    argv = [program(), command, "--delay=-1", f"--control=fd:{hears},{answers}", *rest]
    with contextlib.ExitStack() as stack:
        for one in (tell, hear):
            stack.callback(os.close, one)
        try:
            running = process.Running([*process.DIE_WITH_US, *argv], pass_fds=(hears, answers))
        finally:
            os.close(hears)
            os.close(answers)
        stack.enter_context(process.all_ended([running]))
        process.ahead_of_load(running.pid)  # else it may hear only when the load is over
        made = Controlled(running, tell, hear)
        made.say("ping")
        yield made
