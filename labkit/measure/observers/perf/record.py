"""perf record: where the CPUs spend their time while traffic flows, as folded stacks (perf-record(1), 6.1).

Stacks are those of the kernel and of programs as far as these keep frame pointers. Samples are taken on cycles where
there is such a counter, else on the kernel's clock (cpu-clock), which cannot interrupt code that runs with interrupts
off: its samples pile up where they are turned on again. The kernel takes about as many samples of a CPU that is seldom
busy as of a busy one, each after fewer cycles: such samples are weighted by the cycles between them.
"""

from __future__ import annotations

import functools
import gzip
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, ClassVar

from labkit.common import safe_files, units
from labkit.common.errors import Failed, Unsupported
from labkit.measure import topologies
from labkit.measure.observers.base import (
    ArmedObserver,
    Observation,
    ObservedLoad,
    Observer,
    ObserverParameters,
    own_parameters,
)
from labkit.measure.observers.perf import control as perf_control
from labkit.measure.observers.perf import stat
from labkit.measure.observers.perf.control import WHOLE_MACHINE, Scope
from labkit.measure.observers.perf.fold_stacks import OUTSIDE, Folding, blocks
from labkit.measure.parameters import within
from labkit.system import process

FREQUENCY_HZ = 997  # not in step with the kernel's ticks
HARDWARE, CLOCK = "cycles", "cpu-clock"
NO_CACHE = ("--no-buildid", "--no-buildid-cache")  # perf would copy what it sees into the user's ~/.debug
MOST_OTHERS = 0.1  # of the samples may be of programs outside of the experiment
PILES_UP = "cpu-clock cannot sample while interrupts are off: such time is told of what turns them on again"


class Record:
    """perf record, armed."""

    def __init__(
        self,
        control: perf_control.Controlled,
        data: IO[bytes],
        folded: Path,
        about: dict[str, object],
        keep: bool,
    ) -> None:
        self._control, self._data, self._folded, self._about, self._keep = control, data, folded, about, keep

    def counting(self) -> AbstractContextManager[None]:
        """Sample until the block ends."""
        return self._control.counting()

    def report(self) -> Observation:
        """The folded stacks as a file (gzip), and how many samples they are of."""
        self._control.end()
        with Folding(weighted=self._about["event"] == HARDWARE) as result:
            fold(path_of(self._data), result)
            stacks_count = write(self._folded, result)
            numbers = {"samples_count": result.samples_count, "stacks_count": stacks_count}
            processes = {
                name.decode(errors="replace"): count for name, count in result.processes.most_common()
            }
            lost, unread = result.lost_count, result.unread_count
        if self._keep:
            kept = self._folded.with_name(self._folded.name.removesuffix(".folded.gz") + ".perf.data")
            with safe_files.replacing(kept) as file:
                shutil.copyfileobj(self._data, file)
            self._about["perf_data"] = kept.name
        doubts = [f"perf lost {lost} samples, of {lost + numbers['samples_count']}"] if lost else []
        doubts += [f"{unread} lines of perf script said nothing that labkit knows"] if unread else []
        others = processes.get(OUTSIDE.decode(), 0)
        if others > MOST_OTHERS * numbers["samples_count"]:
            share = units.percent(others / numbers["samples_count"])
            doubts.append(f"programs outside of the experiment had {share} of the samples")
        return Observation({**self._about, **numbers, "processes": processes}, self._folded, lost, doubts)


@contextmanager
def perf_record(
    folded: Path, scope: Scope = WHOLE_MACHINE, *, frequency_hz: int = FREQUENCY_HZ, keep: bool = False
) -> Iterator[Record]:
    """Start perf record before the traffic, not yet sampling; use `counting` around it, and `report` afterwards.

    `report` writes the folded stacks to `folded` (NAME.folded.gz); with `keep` it also leaves NAME.perf.data.

    Raises what `check` raises.
    """
    event = check(scope)
    folded.parent.mkdir(parents=True, exist_ok=True)
    sampling = ["-e", event, "-F", str(frequency_hz), "-g", *NO_CACHE]
    about: dict[str, object] = {"event": event, "frequency_hz": frequency_hz, "scope": str(scope)}
    about |= {"told": PILES_UP} if event == CLOCK else {}
    with (
        tempfile.TemporaryFile() as data,  # without a name, so that nothing is left of it, however we end
        perf_control.controlled(["record", *sampling, *scope.argv(), "-o", path_of(data)]) as control,
    ):
        yield Record(control, data, folded, about, keep)


@functools.cache
def check(scope: Scope = WHOLE_MACHINE) -> str:
    """The event that samples are taken on: cycles, or cpu-clock where there is no such counter.

    Raises Unsupported without perf, the privilege, or the kernel's symbols.
    """
    event = event_of(scope)
    words = ["record", *NO_CACHE, "-o", "/dev/null", "-e", event, *scope.argv(), "--", "true"]
    ended = process.run([perf_control.program(), *words], perf_control.ANSWER_S)
    if ended.returncode != 0:
        raise perf_control.refusal(ended)
    if not perf_control.has_symbols():
        raise Unsupported(
            "this kernel shows no addresses of its functions, so a profile could name none:"
            f" {perf_control.SHOW_SYMBOLS}, or boot a kernel with CONFIG_KALLSYMS"
        )
    return event


def event_of(scope: Scope) -> str:
    """cycles where they are counted, else cpu-clock, which perf record would take by itself without a word."""
    report = stat.first(HARDWARE, scope)
    if not report["count"] and scope != WHOLE_MACHINE:  # it may be idle just now; the machine is not
        with suppress(Unsupported):  # who may watch only what is his
            report = stat.first(HARDWARE)
    return HARDWARE if report["count"] else CLOCK


def path_of(file: IO[bytes]) -> str:
    """By which another program can open our file."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def fold(data: str, into: Folding) -> None:
    """Count the samples of a perf.data, of whatever size. Raises Failed with perf's words when it cannot be read."""
    fields = f"comm,pid,tid,{'period,' * into.weighted}ip,sym,dso"
    script = [perf_control.program(), "script", "-i", data, "-F", fields]
    # Symbols are those of this machine: nothing is asked of a server, which perf would wait for.
    argv = ["env", "-u", "DEBUGINFOD_URLS", *script, "--no-inline", "--show-lost-events"]
    with process.streamed(argv) as text:
        try:
            into.read(blocks(text))
        except ValueError as error:
            raise Failed(f"perf script wrote what is no profile: {error}") from None


def write(path: Path, result: Folding) -> int:
    """Write folded stacks, compressed, whole or not at all; how many there are."""
    count = 0
    with safe_files.replacing(path) as target, gzip.open(target, "wb", 6) as file:
        for line in result.lines():
            file.write(line)
            count += 1
    return count


class RecordParameters(ObserverParameters, frozen=True, kw_only=True):
    """Parameters of perf_record; HELP says what each is."""

    HELP: ClassVar[Mapping[str, str]] = {
        "sample_hz": "of perf_record, on each CPU",
        "keep_perf_data": "keep perf_record's perf.data beside the folded stacks",
    }

    sample_hz: int = FREQUENCY_HZ
    keep_perf_data: bool = False

    def check(self) -> None:
        """Raise BadInput for a rate that perf cannot keep."""
        within("sample_hz", self.sample_hz, 1, 50_000)


def _armed(
    parameters: ObservedLoad, _topology: topologies.Topology, stem: Path
) -> AbstractContextManager[ArmedObserver]:
    mine = own_parameters(parameters, RecordParameters)
    folded = stem.with_name(f"{stem.name}.folded.gz")
    return perf_record(folded, frequency_hz=mine.sample_hz, keep=mine.keep_perf_data)


PERF_RECORD = Observer(lambda _parameters: check(), _armed, parameters=RecordParameters)
