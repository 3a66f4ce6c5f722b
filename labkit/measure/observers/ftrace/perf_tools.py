"""kprobe: the calls of one kernel function by process, and the values that it returns, as kprobe of perf-tools records
them (Brendan Gregg's, Debian package perf-tools-unstable).

kprobe traces in the folder of tracefs that all share. It ends by SIGINT to its process group, so that it undoes its
changes. labkit restores whatever it leaves (`session.exclusive_tracefs`). The kernel counts every event, and its buffer
keeps the last ones: the count is exact, and processes and values are those of the events that were kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.common import errors
from labkit.common.errors import Failed, Unsupported
from labkit.measure import topologies
from labkit.measure.observers.base import ArmedObserver, Observation, ObservedLoad, Observer, own_parameters
from labkit.measure.observers.ftrace import kernel_functions, session
from labkit.measure.observers.parameters import PROBED, RETURN, KprobeParameters
from labkit.system import machine, process
from labkit.system.machine import tracing_journal

PROBE = "labkit_probe"  # its name in tracefs; kprobe gives it to a shell, so it is never a parameter
ENABLED = "events/kprobes/enable"  # reads "0" until kprobe traces
ARMING_S = 120.0  # an emulated CPU is slow
GRACE_S = 60.0  # to print what was buffered, and to undo
AGAIN_S = 30.0  # a signal that comes between two of its commands does not end it
LONGEST_S = 100_000  # kprobe records into the buffer only if it has a duration
MAX_VALUES = 20


class Kprobe:
    """kprobe, armed."""

    def __init__(self, program: process.Running, top: Path, function: str) -> None:
        self._program, self._top, self._function = program, top, function

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Record until the block ends."""
        (self._top / "trace").write_text("")
        yield
        (self._top / "tracing_on").write_text("0")

    def report(self) -> Observation:
        """Return the number of calls (or returns), also by process, and the returned values, most frequent first."""
        self.end()
        ended = self._program.ended()
        if ended.returncode != 0:
            raise Failed(ended.message())
        return observation(ended.stdout, self._function)

    def end(self) -> None:
        """End kprobe and the programs that it started."""
        deadline = time.monotonic() + GRACE_S
        while not self._program.poll():
            late = time.monotonic() > deadline
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._program.pid, signal.SIGKILL if late else signal.SIGINT)
            process.wait([self._program], time.monotonic() + AGAIN_S)
        with contextlib.suppress(OSError):
            if tracing_journal.PERF_TOOLS_LOCK.read_text().strip() == str(self._program.pid):
                tracing_journal.PERF_TOOLS_LOCK.unlink()  # it was killed before it could remove its lock


@errors.reading("the output of kprobe")
def observation(text: str, function: str) -> Observation:
    """Return what kprobe's output (`trace` of tracefs, with its header) says. Raises Failed if it has no header."""
    header = re.search(r"entries-in-buffer/entries-written: (\d+)/(\d+)", text)
    if header is None:
        raise ValueError("the header entries-in-buffer/entries-written is missing")
    kept, written = int(header[1]), int(header[2])
    # `  iperf3-412   [001] d..1.  77.123456: labkit_probe: (udp_sendmsg+0x0/0xa80)`, with ` value=512` behind a return
    events = re.findall(rf"^ *(.+)-\d+ +\[\d+\].*: {PROBE}: \(.*\)(?: value=(-?\d+))?$", text, re.MULTILINE)
    values = Counter(_signed(value) for _, value in events if value)
    observed = {
        "function": function,
        "calls_count": written,
        "kept_count": kept,
        "processes": dict(Counter(name for name, _ in events).most_common(MAX_VALUES)),
        "values": dict(values.most_common(MAX_VALUES)),
    }
    doubts = [] if written else [f"{function} was not called while kprobe recorded"]
    return Observation(observed, doubts=doubts)


@contextmanager
def kprobe(probe: str) -> Iterator[ArmedObserver]:
    """Arm kprobe for a function, or for its returns (`NAME:return`). It has ended when the block ends.

    Raises Unsupported without kprobe, or where nothing can be traced; BadInput for a function that cannot be traced.
    """
    PROBED.check("probe", probe)
    [[function, *_]] = kernel_functions.resolved([KprobeParameters(probe=probe).function]).values()
    returns = probe.endswith(RETURN)
    text = f"r:{PROBE} {function} value=$retval:s64" if returns else f"p:{PROBE} {function}"
    program = machine.require_program("kprobe-perf")
    with session.exclusive_tracefs() as top:
        running = process.Running(["setsid", program, "-H", "-d", str(LONGEST_S), text])  # leads its group
        tool = Kprobe(running, top, probe)
        try:
            wait_until_armed(running, top)
            yield tool
        finally:
            tool.end()
            running.ended()


def _signed(value: str) -> str:
    """Return a returned value as text. The register of an `int` has 32 bits: -11 is recorded as 4294967285.

    So a function that really returns a number from 2^31 to 2^32 - 1 seems to return a negative one.
    """
    number = int(value)
    return str(number - 2**32 if 2**31 <= number < 2**32 else number)


def wait_until_armed(program: process.Running, top: Path) -> None:
    """Wait until it traces. Raises Failed if it ends before, or does not within ARMING_S."""
    deadline = time.monotonic() + ARMING_S
    while not program.poll():
        with contextlib.suppress(OSError):
            if (top / ENABLED).read_text().strip() != "0":
                return
        if time.monotonic() > deadline:
            raise Failed(f"{' '.join(program.argv)} does not trace after {ARMING_S:g} s")
        time.sleep(0.05)
    raise Failed(program.ended().message())


def _check(_parameters: ObservedLoad) -> None:
    machine.require_program("kprobe-perf")
    with session.exclusive_tracefs() as top:
        if not (top / "kprobe_events").exists():
            raise Unsupported(f"this kernel has no probes (CONFIG_KPROBE_EVENTS): {session.OTHERWISE}")


def _check_built(parameters: ObservedLoad) -> None:
    kernel_functions.resolved([own_parameters(parameters, KprobeParameters).function])


def _armed(
    parameters: ObservedLoad, _topology: topologies.Topology, _stem: Path
) -> contextlib.AbstractContextManager[ArmedObserver]:
    return kprobe(own_parameters(parameters, KprobeParameters).probe)


KPROBE = Observer(_check, _armed, _check_built, parameters=KprobeParameters, traces=True, disturbs=True)
