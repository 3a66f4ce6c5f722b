"""Programs of perf-tools (Brendan Gregg's, Debian package perf-tools-unstable) as observers; their output is kept.

kprobe (the calls of a kernel function by process, and the values that it returns), funcslower (the single calls that
take longer than a limit) and tpoint (the events of a tracepoint). docs/method/why.md says why no others.

They trace in the folder of tracefs that all share. Each ends by SIGINT to its process group, so that it undoes its
changes. labkit restores whatever it leaves (`session.exclusive_tracefs`). The kernel counts every event, and its buffer
keeps the last ones: the count is exact, and the output has the events that were kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from labkit.common import errors, run_folder
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure.observers.base import ArmedObserver, Observation, Observer
from labkit.measure.observers.ftrace import kernel_functions, session
from labkit.measure.observers.parameters import PROBED, RETURN, OwnParameters, own
from labkit.system import machine, process
from labkit.system.machine import tracing_journal

PROBE = "labkit_probe"  # its name in tracefs; kprobe gives it to a shell, so it is never a parameter
ARMING_S = 120.0  # an emulated CPU is slow
GRACE_S = 60.0  # to print what was buffered, and to undo
AGAIN_S = 30.0  # a signal that comes between two of its commands does not end it
LONGEST_S = "100000"  # they record into the buffer only if they have a duration
MAX_VALUES = 20
# `  iperf3-412   [001] d..1.  77.123456: labkit_probe: (udp_sendmsg+0x0/0xa80)`, with ` value=512` behind a return
EVENT = re.compile(r"^ *(.+)-\d+ +\[\d+\].*?: (\w+): .*?(?: value=(-?\d+))?$", re.MULTILINE)
# ` 77.123456 |   1) # 1234.567 us |  } /* ip_rcv */`; it prints nothing that it buffered where it has to name processes
SLOW = re.compile(r"^ *[\d.]+ +\| +(\d+)\)\D*([\d.]+) us +\|", re.MULTILINE)


@dataclass(frozen=True)
class Tool:
    """One of the programs.

    `asked`: returns what it watches (a function or a tracepoint) and its arguments; raises BadInput for what the kernel
    lacks. `read`: returns what the output says. `needs`: a file of tracefs.
    """

    name: str
    asked: Callable[[OwnParameters], tuple[str, list[str]]]
    read: Callable[[str, str], Observation]
    needs: str = "trace"

    def check(self) -> None:
        """Raise Unsupported without perf-tools, or on a kernel that cannot do it."""
        machine.require_program("kprobe-perf")
        with session.exclusive_tracefs() as top:
            if not (top / self.needs).exists():
                raise Unsupported(f"this kernel has no {top / self.needs}: {session.OTHERWISE}")

    @contextmanager
    def armed(self, parameters: OwnParameters, text: Path | None = None) -> Iterator[ArmedObserver]:
        """Arm it; `text`: the file for its output. It has ended when the block ends. Raises as `check` and `asked`."""
        what, words = self.asked(parameters)
        path = Path(machine.require_program("kprobe-perf")).with_name(f"{self.name}-perf")
        with session.exclusive_tracefs() as top:
            program = process.Running(["setsid", str(path), "-d", LONGEST_S, *words])  # leads its group

            @contextmanager
            def counting() -> Iterator[None]:
                (top / "trace").write_text("")
                yield
                (top / "tracing_on").write_text("0")

            def report() -> Observation:
                _end(program)
                ended = program.ended()
                if ended.returncode != 0:
                    raise Failed(ended.message())
                if text is not None:
                    run_folder.write(text, ended.stdout.encode())
                return replace(self.read(ended.stdout, what), artefact=text)

            try:
                wait_until_armed(program)
                yield ArmedObserver(report, counting)
            finally:
                _end(program)
                program.ended()


def _end(program: process.Running) -> None:
    """End the program and those that it started."""
    deadline = time.monotonic() + GRACE_S
    while not program.poll():
        late = time.monotonic() > deadline
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL if late else signal.SIGINT)
        process.wait([program], time.monotonic() + AGAIN_S)
    with contextlib.suppress(OSError):
        if tracing_journal.PERF_TOOLS_LOCK.read_text().strip() == str(program.pid):
            tracing_journal.PERF_TOOLS_LOCK.unlink()  # it was killed before it could remove its lock


@errors.reading("the output of perf-tools")
def events(text: str, what: str) -> Observation:
    """Return what an output of events (`trace` of tracefs, with its header) says: the number of calls, also by process,
    and the returned values, most frequent first. Raises Failed if it has no header."""
    header = re.search(r"entries-in-buffer/entries-written: (\d+)/(\d+)", text)
    if header is None:
        raise ValueError("the header entries-in-buffer/entries-written is missing")
    found = EVENT.findall(text)
    return _observation(
        what, int(header[2]), int(header[1]), (name for name, *_ in found),
        values=dict(Counter(_signed(value) for *_, value in found if value).most_common(MAX_VALUES)),
    )  # fmt: skip


def slow_calls(text: str, what: str) -> Observation:
    """Return what funcslower's output says: the number of slow calls, also by CPU, and the longest in seconds."""
    found = SLOW.findall(text)
    longest_s = max((float(each) / 1e6 for _, each in found), default=None)
    cpus = dict(Counter(cpu for cpu, _ in found))
    return _observation(what, len(found), len(found), (), longest_s=longest_s, cpus=cpus)


def _observation(what: str, calls: int, kept: int, names: Iterable[str], **more: object) -> Observation:
    observed = {
        "function": what,
        "calls_count": calls,
        "kept_count": kept,
        "processes": dict(Counter(names).most_common(MAX_VALUES)),
        **more,
    }
    return Observation(observed, doubts=[] if calls else [f"{what}: nothing was recorded"])


def _signed(value: str) -> str:
    """Return a returned value as text. The register of an `int` has 32 bits: -11 is recorded as 4294967285.

    So a function that really returns a number from 2^31 to 2^32 - 1 seems to return a negative one.
    """
    number = int(value)
    return str(number - 2**32 if 2**31 <= number < 2**32 else number)


def wait_until_armed(program: process.Running) -> None:
    """Wait until it traces, which is when it sleeps. Raises Failed if it ends before, or does not within ARMING_S."""
    deadline = time.monotonic() + ARMING_S
    while not program.poll():
        for pid in machine.descendants(program.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                    return
        if time.monotonic() > deadline:
            raise Failed(f"{' '.join(program.argv)} does not trace after {ARMING_S:g} s")
        time.sleep(0.05)
    raise Failed(program.ended().message())


def _traceable(function: str) -> str:
    """Return the name of a function by which it is traced. Raises BadInput for one that cannot be traced."""
    [[name, *_]] = kernel_functions.resolved([function]).values()
    return name


def _probe(given: OwnParameters) -> tuple[str, list[str]]:
    PROBED.check("probe", given.probe)
    function, returns = _traceable(given.probe.removesuffix(RETURN)), given.probe.endswith(RETURN)
    text = f"r:{PROBE} {function} value=$retval:s64" if returns else f"p:{PROBE} {function}"
    return given.probe, ["-H", text]


def _tracepoint(given: OwnParameters) -> tuple[str, list[str]]:
    event = given.tracepoint
    if not (session.place() / "events" / event.replace(":", "/") / "enable").exists():
        raise BadInput(f"tracepoint={event}: this kernel has no such tracepoint; `tpoint-perf -l` lists them")
    return event, ["-H", event]


def _slow(given: OwnParameters) -> tuple[str, list[str]]:
    return given.slow_function, ["-Ht", _traceable(given.slow_function), str(round(given.slow_s * 1e6))]


TOOLS = {
    "kprobe": Tool("kprobe", _probe, events, needs="kprobe_events"),
    "tpoint": Tool("tpoint", _tracepoint, events),
    "funcslower": Tool("funcslower", _slow, slow_calls, needs="tracing_thresh"),
}


def _observer(name: str) -> Observer:
    tool = TOOLS[name]
    return Observer(
        lambda given, _topology, stem: tool.armed(own(given), stem.with_name(f"{stem.name}.txt")),
        lambda _parameters: tool.check(),
        lambda parameters: tool.asked(own(parameters)),
        traces=True,
        disturbs=True,
    )


KPROBE, FUNCSLOWER, TPOINT = map(_observer, ("kprobe", "funcslower", "tpoint"))
