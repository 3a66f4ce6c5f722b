"""perf record: where the CPUs spend their time during the traffic, as folded stacks (perf-record(1), 6.1).

Stacks cover the kernel, and programs as far as they keep frame pointers. The event is cycles if the machine counts
them, else the kernel's clock (cpu-clock). cpu-clock cannot interrupt code that runs with interrupts off; its samples
accumulate where interrupts are enabled again. The kernel takes about as many samples of a rarely busy CPU as of a busy
one, with fewer cycles between them; therefore samples are weighted by these cycles.
"""

import functools
import gzip
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from labkit.common import safe_files, units
from labkit.common.errors import Unsupported
from labkit.measure import topologies
from labkit.measure.observers.base import ArmedObserver, Observation, ObservedLoad, Observer
from labkit.measure.observers.parameters import own
from labkit.measure.observers.perf import control as perf_control
from labkit.measure.observers.perf import stat
from labkit.measure.observers.perf.control import WHOLE_MACHINE
from labkit.measure.observers.perf.fold_stacks import FIELDS, OUTSIDE, StackCounter, blocks
from labkit.system import process

HARDWARE, CLOCK = "cycles", "cpu-clock"
NO_CACHE = ("--no-buildid", "--no-buildid-cache")  # perf would copy the objects it sees into ~/.debug
MAX_OTHERS = 0.1  # share of samples that may belong to programs outside the experiment
MAX_RATE = "/proc/sys/kernel/perf_event_max_sample_rate"
PILES_UP = "cpu-clock cannot sample while interrupts are off: that time is charged to the code that enables them again"


@functools.cache
def check() -> str:
    """Return the sampled event: cycles, or cpu-clock if there is no such counter.

    Raises Unsupported without perf, the privilege, or the kernel's symbols.
    """
    event = sampled_event()
    words = ["record", *NO_CACHE, "-o", "/dev/null", "-e", event, *WHOLE_MACHINE.argv(), "--", "true"]
    ended = process.run([perf_control.program(), *words], perf_control.ANSWER_S)
    if ended.returncode != 0:
        raise perf_control.refusal(ended)
    if not perf_control.has_symbols():
        raise Unsupported(
            "this kernel hides the addresses of its functions, so a profile cannot name them:"
            f" {perf_control.SHOW_SYMBOLS}, or boot a kernel with CONFIG_KALLSYMS"
        )
    return event


def allowed_hz(frequency_hz: int, path: str = MAX_RATE) -> int:
    """Return a sampling frequency, or the kernel's limit if that is lower.

    perf would lower it without telling labkit, and then every sample would stand for more time than labkit believes.
    """
    with suppress(OSError, ValueError):
        return min(frequency_hz, max(1, int(Path(path).read_text())))
    return frequency_hz


def sampled_event() -> str:
    """Return cycles if they are counted, else cpu-clock, which perf record would silently choose itself."""
    return HARDWARE if stat.try_event(HARDWARE)["count"] else CLOCK


def path_of(file: IO[bytes]) -> str:
    """Return a path by which another program can open our file."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def fold(data: str, into: StackCounter) -> None:
    """Count the samples of a perf.data file of any size. Raises Failed with perf's message if it cannot be read."""
    fields = FIELDS.format("period," * into.weighted)
    script = [perf_control.program(), "script", "-i", data, "-F", fields]
    # Symbols are those of this machine: without a debuginfod server, perf waits for nothing.
    argv = ["env", "-u", "DEBUGINFOD_URLS", *script, "--no-inline", "--show-lost-events"]
    with process.streamed(argv) as text:
        into.read(blocks(text))


def write(path: Path, result: StackCounter) -> int:
    """Write the folded stacks, compressed and atomically; return their number."""
    count = 0
    with safe_files.replacing(path) as target, gzip.open(target, "wb", 6) as file:
        for line in result.lines():
            file.write(line)
            count += 1
    return count


@contextmanager
def _armed(parameters: ObservedLoad, _topology: topologies.Topology, stem: Path) -> Iterator[ArmedObserver]:
    """Start perf record before the traffic, not yet sampling. Raises what `check` raises.

    It reports the number of samples and stacks, with the folded stacks as a gzip file (NAME.folded.gz), and with
    `keep_perf_data` also NAME.perf.data beside it.
    """
    mine, event = own(parameters), check()
    frequency_hz = allowed_hz(mine.sample_hz)
    sampling = ["-e", event, "-F", str(frequency_hz), "-g", *NO_CACHE, *WHOLE_MACHINE.argv()]
    about: dict[str, object] = {"event": event, "frequency_hz": frequency_hz, "scope": str(WHOLE_MACHINE)}
    about |= {"note": PILES_UP} if event == CLOCK else {}
    with (
        tempfile.TemporaryFile() as data,  # an unnamed file, so that nothing remains in any case
        perf_control.controlled(["record", *sampling, "-o", path_of(data)]) as control,
    ):

        def report() -> Observation:
            control.end()
            if mine.keep_perf_data:
                kept = stem.with_name(f"{stem.name}.perf.data")
                with safe_files.replacing(kept) as file:
                    shutil.copyfileobj(data, file)
                about["perf_data"] = kept.name
            return _report(data, stem.with_name(f"{stem.name}.folded.gz"), about)

        yield ArmedObserver(report, control.counting)


def _report(data: IO[bytes], folded: Path, about: Mapping[str, object]) -> Observation:
    with StackCounter(weighted=about["event"] == HARDWARE) as result:
        fold(path_of(data), result)
        stacks_count = write(folded, result)
        numbers = {"samples_count": result.samples_count, "stacks_count": stacks_count}
        processes = {name.decode(errors="replace"): count for name, count in result.processes.most_common()}
        lost, unread = result.lost_count, result.unread_count
    doubts = [f"perf lost {lost} samples, of {lost + numbers['samples_count']}"] if lost else []
    doubts += [f"labkit could not parse {unread} lines of perf script"] if unread else []
    others = processes.get(OUTSIDE.decode(), 0)
    if others > MAX_OTHERS * numbers["samples_count"]:
        share = units.percent(others / numbers["samples_count"])
        doubts.append(f"programs outside the experiment had {share} of the samples")
    return Observation({**about, **numbers, "processes": processes}, folded, lost, doubts)


PERF_RECORD = Observer(_armed, lambda _parameters: check())
