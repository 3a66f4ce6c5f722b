"""function_times with BPF, for kernels with probes but without function_graph: bpftrace(8), 0.17 or later.

bpftrace records the entry and return of each call and counts in the kernel. Its bins are powers of two; p50, p90 and
p99 are interpolated within them. A task can have one call of a function at a time: if a function is entered again, by
recursion or an interrupt, the outer call is not counted. Calls that did not fit into the kernel's maps are unknown,
because bpftrace does not count them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from labkit.common import errors
from labkit.common.errors import Failed, Unsupported
from labkit.measure.observers.base import ArmedObserver, Observation
from labkit.measure.observers.ftrace.histogram import Collected, Powers
from labkit.system import machine, process

ARMING_S = 60.0  # an emulated CPU needs 10
ARMED = "armed"


@contextmanager
def bpf_times(traced: Mapping[str, Sequence[str]]) -> Iterator[ArmedObserver]:
    """Arm the times of functions before the traffic; `traced` gives the kernel's names of each.

    It counts the calls that end within `counting`, and reports in the form of function_times, with the tracer `bpf`.
    The kernel detaches everything when bpftrace ends. Raises Unsupported without bpftrace or if it cannot attach.
    """
    window_s = 0.0

    @contextmanager
    def counting() -> Iterator[None]:
        nonlocal window_s
        _rename(f"{mark}1")
        begun = time.monotonic()
        try:
            yield
        finally:
            window_s = time.monotonic() - begun
            _rename(f"{mark}0")

    def report() -> Observation:
        program.signal(signal.SIGINT)  # it detaches, prints its counts and ends
        ended = program.ended_within(ARMING_S)
        if ended.returncode != 0:
            raise Failed(ended.message())
        observed = {"tracer": "bpf", "functions": parse(ended.stdout, list(traced)), "overrun_count": None}
        return Observation({**observed, "window_s": window_s})

    mark = f"lk{os.urandom(4).hex()}-"
    argv = [machine.require_program("bpftrace"), "-f", "json", "-e", script(traced, mark)]
    program = process.Running(argv)
    with process.all_ended([program]):
        if not program.ready(lambda: ARMED in program.output_so_far(), time.monotonic() + ARMING_S, 0.02):
            program.kill()
            raise Unsupported(
                f"functions cannot be timed by BPF: {reason(program.ended(timed_out=not program.poll()))}"
            )
        yield ArmedObserver(report, counting)


def reason(ended: process.Ended) -> str:
    """Return in words why bpftrace did not attach: its last error, without its warnings and the program that it
    quotes."""
    if "kprobe_events): No such file" in ended.stderr:
        return "this kernel has no kprobe events"
    lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR: ")]
    return f"bpftrace: {lines[-1].removeprefix('ERROR: ')}" if lines else ended.message()


def check() -> None:
    """Raise Unsupported, with one sentence, if bpftrace cannot attach; it is tried."""
    with bpf_times({"ip_rcv": ["ip_rcv"]}):
        pass


def script(traced: Mapping[str, Sequence[str]], mark: str) -> str:
    """Return the bpftrace program.

    It counts from the moment when this process is named `mark`1 until it is named `mark`0. A tracepoint sees the names
    in order; a signal to bpftrace would not be ordered with the calls.
    """
    lines = [f'BEGIN {{ @on = 0; printf("{ARMED}\\n"); }}']
    for on in (0, 1):
        lines.append(f'tracepoint:task:task_rename /args->newcomm == "{mark}{on}"/ {{ @on = {on}; }}')
    for number, one in [(number, one) for number, all_of in enumerate(traced.values()) for one in all_of]:
        # Idle tasks, one per CPU, all have the number 0.
        key, begun = f"[{number}, cpu, comm]", f"@s{number}[tid, (tid == 0 ? cpu : 0)]"
        lines.append(f"kprobe:{one} {{ {begun} = nsecs; }}")
        count = f"$d = nsecs - {begun}; @h{key} = hist($d); @t{key} = stats($d); @m{key} = max($d);"
        lines.append(f"kretprobe:{one} /{begun}/ {{ if (@on) {{ {count} }} delete({begun}); }}")
    clears = "".join(f"clear(@s{number}); " for number in range(len(traced)))
    return "\n".join([*lines, f"END {{ clear(@on); {clears}}}"])


@errors.reading("the output of bpftrace")
def parse(text: str, names: Sequence[str]) -> dict[str, Any]:
    """Parse bpftrace's JSON lines into the form of a row. Raises Failed for invalid lines."""
    maps: dict[str, dict[str, Any]] = {"@h": {}, "@t": {}, "@m": {}}
    for line in filter(None, text.splitlines()):
        try:
            report = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise Failed(f"bpftrace printed invalid JSON ({error}): {line[:80]!r}") from None
        if report["type"] in ("hist", "stats", "map"):
            maps |= report["data"]
    result = Collected(names, Powers)
    for key, stats in maps["@t"].items():
        number, cpu, comm = key.split(",", 2)
        bins = {one["min"]: one["count"] for one in maps["@h"][key]}
        for part in result.parts(names[int(number)], cpu, comm):
            part.merge(stats["count"], stats["total"], maps["@m"][key], bins)
    return result.report()


def _rename(name: str) -> None:
    """Rename the main thread and restore its name: the tracepoint sees both."""
    path = Path("/proc/self/comm")
    before = path.read_text()
    path.write_text(name)
    path.write_text(before.strip())
