"""function_times: how long kernel functions take and how often they are called.

The function_graph tracer records the entry and return of each call. A separate process reads the raw buffer pages; the
calls are counted afterwards. A time is wall time from the first instruction to the return. It includes callees,
interrupts and sleeping (options sleep-time and funcgraph-irqs are on). If one listed function calls another, both
count fully.
"""

from __future__ import annotations

import functools
import itertools
import os
import select
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure import topologies
from labkit.measure.observers.base import ArmedObserver, Observation, ObservedLoad, Observer, own_parameters
from labkit.measure.observers.ftrace import bpftrace_times, kernel_functions, ring_buffer
from labkit.measure.observers.ftrace import session as tracing
from labkit.measure.observers.ftrace.histogram import Distribution
from labkit.measure.observers.parameters import FUNCTIONS, FunctionTimesParameters
from labkit.system import process

FIELDS = ("common_pid", "func", "calltime", "rettime")
BUFFER_KIB = 65536  # of all CPUs together
MAX_BYTES = 256 << 20  # of stored pages
TURN_S = 0.1
STOP_S = 60.0
AT_ONCE = 256  # pages
SPLICE_F_NONBLOCK = 2  # fcntl.h

Parts = dict[str, Distribution]


class Collected:
    """Calls by function, and for each function by CPU and by process."""

    def __init__(self, names: Sequence[str]) -> None:
        self.all: Parts = {name: Distribution() for name in names}
        self.cpus: dict[str, Parts] = {name: {} for name in names}
        self.processes: dict[str, Parts] = {name: {} for name in names}

    def add(self, name: str, cpu: str, process: str, time_ns: int, count: int) -> None:
        """Add `count` calls that took `time_ns` each."""
        self.all[name].add(time_ns, count)
        for parts, part in ((self.cpus[name], cpu), (self.processes[name], process)):
            if part not in parts:
                parts[part] = Distribution()
            parts[part].add(time_ns, count)

    def report(self) -> dict[str, Any]:
        """Return the form that a row has."""
        return {
            name: {
                **one.report(),
                "cpus": {cpu: part.brief() for cpu, part in sorted(self.cpus[name].items())},
                "processes": {of: part.brief() for of, part in sorted(self.processes[name].items())},
            }
            for name, one in self.all.items()
        }


def collect(
    result: Collected,
    cpu: str,
    pages: Iterator[bytes],
    layout: ring_buffer.Layout,
    name_of: Callable[[int], str | None],
    process_of: Callable[[int], str],
) -> None:
    """Count the calls in one CPU's pages. Raises ValueError for invalid pages."""
    while some := list(itertools.islice(pages, AT_ONCE)):
        calls = Counter(
            (function, number, end - begin)
            for page in some
            for number, function, begin, end in ring_buffer.events(page, layout)
        )
        for (function, number, time_ns), count in calls.items():
            if name := name_of(function):
                result.add(name, cpu, process_of(number), time_ns, count)


class Times:
    """The armed function_times observer."""

    def __init__(self, names: dict[str, list[str]], session: tracing.Session, stack: ExitStack) -> None:
        self._names, self._session = names, session
        self._files = {cpu.name.removeprefix("cpu"): stack.enter_context(_file()) for cpu in session.cpus()}
        self._pipes = [_raw(cpu, stack) for cpu in session.cpus()]
        self._layout = _layout(session.top)
        self._stack = stack
        self._window_s = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the calls that end within the block."""
        files = [file.fileno() for file in self._files.values()]
        work = functools.partial(_read, self._pipes, files, self._layout.page_bytes)
        reader = process.Forked(work, [*self._pipes, *files])
        self._stack.callback(reader.kill)
        with self._session.counting():
            begun = time.monotonic()
            yield
            self._window_s = time.monotonic() - begun
        try:
            reader.stop(STOP_S)
        except Failed as error:
            raise Failed(f"the reader of the trace buffers {error}") from None

    def report(self) -> Observation:
        """Return for each function: count, mean_s, p50_s, p90_s, p99_s, max_s, total_s, histogram, cpus, processes."""
        traced = {one: name for name, all_of in self._names.items() for one in all_of}
        known = kernel_functions.addresses(tuple(traced))
        names, result = self._session.names(), Collected(list(self._names))

        @functools.cache
        def name_of(address: int) -> str | None:
            return traced.get(kernel_functions.function_at(address, known) or "")

        for cpu, file in self._files.items():
            file.seek(0)
            pages = iter(functools.partial(file.read, self._layout.page_bytes), b"")
            collect(result, cpu, pages, self._layout, name_of, lambda number: names.get(number, str(number)))
        return self._observation(result)

    def _observation(self, result: Collected) -> Observation:
        lost = self._session.lost_count()
        doubts = []
        if lost:
            kept = 2 * sum(one.count for one in result.all.values())
            doubts.append(
                f"the trace buffer overflowed: {lost:,} of about {lost + kept:,} events (a call has two) were lost, or"
                f" left unread after {MAX_BYTES >> 20} MiB, so counts and totals of function_times are too low: name"
                " fewer functions, or send less (rate_bps)"
            )
        observed = {
            "tracer": tracing.TRACER,
            "functions": result.report(),
            "overrun_count": lost,
            "window_s": self._window_s,
        }
        return Observation(observed, lost_samples_count=lost, doubts=doubts)


@contextmanager
def function_times(
    names: Sequence[str] = FUNCTIONS, *, buffer_kib: int = BUFFER_KIB, tracer: str | None = None
) -> Iterator[ArmedObserver]:
    """Arm function_times for these functions before the traffic; use `counting` around it and `report` afterwards.

    `tracer` is function_graph or bpf; None prefers function_graph. Raises Unsupported as `check` does, BadInput for
    functions that cannot be traced.
    """
    kernel_functions.check_names(names)
    traced = kernel_functions.resolved(names)
    if (tracer or check()) == "bpf":
        with bpftrace_times.bpf_times(traced) as watch:
            yield watch
        return
    filters = [one for all_of in traced.values() for one in all_of]
    with ExitStack() as stack:
        session = stack.enter_context(tracing.session(filters=filters, buffer_kib=buffer_kib))
        yield Times(traced, session, stack.enter_context(ExitStack()))


def check() -> str:
    """Return the usable tracer, function_graph or else bpf. Raises Unsupported, with both reasons; each is tried
    once."""
    return _usable()


@functools.cache
def _usable() -> str:
    try:
        tracing.check()
        return tracing.TRACER
    except Unsupported as error:
        try:
            bpftrace_times.check()
        except Unsupported as other:
            raise Unsupported(f"{error}; BPF does not work either: {other}") from None
        return "bpf"


def _layout(top: Path) -> ring_buffer.Layout:
    texts = [(top / "events" / name).read_text() for name in ("header_page", "ftrace/funcgraph_exit/format")]
    try:
        return ring_buffer.layout(texts[0], texts[1], FIELDS)
    except ValueError as error:
        raise Failed(f"this kernel's trace buffers have an unknown format: {error}") from None


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile()


def _raw(cpu: Path, stack: ExitStack) -> int:
    descriptor = os.open(cpu / "trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK)
    stack.callback(os.close, descriptor)
    return descriptor


def _read(pipes: list[int], files: list[int], page_bytes: int, caller: socket.socket) -> None:
    """Copy pages from the buffers into files until the caller closes the connection, then the rest."""
    process.raise_priority()
    ours = os.pipe()
    left = MAX_BYTES
    over = False
    while not over and left > 0:
        over = bool(select.select([caller], [], [], TURN_S)[0])
        for source, target in zip(pipes, files, strict=True):
            left -= _whole_pages(source, target, ours, page_bytes)
    if left > 0:  # the last pages, which are not full
        for source, target in zip(pipes, files, strict=True):
            while page := _page(source, page_bytes):
                os.write(target, page)
    select.select([caller], [], [])


def _whole_pages(source: int, target: int, through: tuple[int, int], page_bytes: int) -> int:
    """Copy full pages with splice(2); return the number of bytes."""
    carried = 0
    while True:
        try:
            count = os.splice(source, through[1], 16 * page_bytes, flags=SPLICE_F_NONBLOCK)
        except BlockingIOError:
            return carried
        if not count:
            return carried
        carried += count
        while count:
            count -= os.splice(through[0], target, count)


def _page(source: int, page_bytes: int) -> bytes:
    try:
        return os.read(source, page_bytes)
    except BlockingIOError:
        return b""


def check_functions(parameters: ObservedLoad) -> None:
    """Raise BadInput if no function is named, because the tracer would then trace all functions of the kernel."""
    if not own_parameters(parameters, FunctionTimesParameters).functions:
        observer = next(name for name in parameters.observe if name.endswith("function_times"))
        raise BadInput(f"observe={observer} needs functions=NAME,NAME")


def _check_built(parameters: ObservedLoad) -> None:
    kernel_functions.resolved(own_parameters(parameters, FunctionTimesParameters).functions)


def _armed(
    parameters: ObservedLoad, _topology: topologies.Topology, _stem: Path
) -> AbstractContextManager[ArmedObserver]:
    return function_times(own_parameters(parameters, FunctionTimesParameters).functions)


FUNCTION_TIMES = Observer(
    lambda _parameters: check(),
    _armed,
    _check_built,
    parameters=FunctionTimesParameters,
    check_parameters=check_functions,
    traces=True,
    disturbs=True,
)
