"""function_times and guest_function_times: how long kernel functions take and how often they are called.

The function_graph tracer records the entry and return of each call. A separate process reads the raw buffer pages; the
calls are counted afterwards. A time is wall time from the first instruction to the return. It includes callees,
interrupts and sleeping (options sleep-time and funcgraph-irqs are on). If one listed function calls another, both
count fully.
"""

import functools
import itertools
import os
import re
import select
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.common.safe_files import closed
from labkit.measure import topologies
from labkit.measure.endpoints import Kernel, of_guests
from labkit.measure.observers.base import ArmedObserver, Observation, ObservedLoad, Observer
from labkit.measure.observers.ftrace import bpftrace_times, kernel_functions, ring_buffer
from labkit.measure.observers.ftrace import session as tracing
from labkit.measure.observers.ftrace.histogram import Collected, Distribution
from labkit.measure.observers.parameters import FUNCTIONS, own
from labkit.system import process

FIELDS = ("common_pid", "func", "calltime", "rettime")
BUFFER_KIB = 65536  # of all CPUs together
MAX_BYTES = 256 << 20  # of stored pages
TURN_S = 0.1
STOP_S = 60.0
AT_ONCE = 256  # pages
SPLICE_F_NONBLOCK = 2  # fcntl.h

TRACEFS = "/sys/kernel/tracing"
GUEST_BUFFER_KIB = 8192  # per CPU: about 100,000 calls
PATIENCE_S = 60.0
# Read what the buffers hold, without waiting for more.
READ_LEFT = """
import os
for cpu in os.listdir("/sys/kernel/tracing/per_cpu"):
    source = os.open(f"/sys/kernel/tracing/per_cpu/{cpu}/trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK)
    target = os.open(f"/run/{cpu}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    print(cpu)
    try:
        while page := os.read(source, os.sysconf("SC_PAGE_SIZE")):
            os.write(target, page)
    except BlockingIOError:
        pass
"""


def collect(
    result: Collected[Distribution],
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
                for part in result.parts(name, cpu, process_of(number)):
                    part.add(time_ns, count)


class Buffers:
    """The armed tracer of a guest's kernel, and its buffers.

    A guest belongs to labkit alone, so nothing must be restored. Its buffers are read after the load, so nothing else
    runs there meanwhile; events that do not fit are counted. `traced`: the kernel's names of functions, with the
    requested ones. `place`: what stands before the number of a CPU in the report. `window_s`: how long it counted.
    """

    def __init__(self, guest: Kernel, traced: Mapping[str, str]) -> None:
        self._guest, self.traced = guest, traced
        self.name, self.place = f"the guest {guest.name}", f"{guest.name}:"
        self._cpus: list[str] = []
        self.window_s = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Trace until the block ends."""
        begun = self._switch(b"1")
        try:
            yield
        finally:
            self.window_s = self._switch(b"0") - begun

    def _switch(self, on: bytes) -> float:
        """Switch the tracer. Return the time: the middle of request and answer, because a busy guest answers late."""
        begun = time.monotonic()
        self._guest.write(f"{TRACEFS}/tracing_on", on)
        return (begun + time.monotonic()) / 2

    def read(self, name: str) -> str:
        """Return the text of a file of tracefs."""
        return self._guest.read(f"{TRACEFS}/{name}")

    def addresses(self) -> Mapping[int, str]:
        """Return the traced functions by address."""
        wanted = "|".join(re.escape(name) for name in self.traced)
        lines = _output(
            self._guest, "grep", "-E", f" ({wanted})([[:space:]]|$)", "/proc/kallsyms"
        ).splitlines()
        return {int(line.split()[0], 16): line.split()[2] for line in lines}

    def pages(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield each CPU's number and its recorded pages."""
        self._cpus = sorted(
            _output(self._guest, os.path.realpath(sys.executable), "-I", "-S", "-c", READ_LEFT).split()
        )
        for cpu in self._cpus:
            data, size = self._guest.read_bytes(f"/run/{cpu}"), self.layout.page_bytes
            yield cpu.removeprefix("cpu"), (data[at : at + size] for at in range(0, len(data), size))

    def lost_count(self) -> int:
        """Return the events that were lost or left unread."""
        return sum(tracing.lost(self.read(f"per_cpu/{cpu}/stats")) for cpu in self._cpus)

    @functools.cached_property
    def layout(self) -> ring_buffer.Layout:
        """The layout of the pages. Raises Failed for an unknown format."""
        try:
            return ring_buffer.layout(
                self.read("events/header_page"), self.read("events/ftrace/funcgraph_exit/format"), FIELDS
            )
        except ValueError as error:
            raise Failed(f"the trace buffers of {self.name} have an unknown format: {error}") from None

    def add_to(self, result: Collected[Distribution]) -> int:
        """Count the recorded calls; return the number of events that were lost."""
        names, known = tracing.process_names(self.read("saved_cmdlines")), self.addresses()

        @functools.cache
        def name_of(address: int) -> str | None:
            return self.traced.get(kernel_functions.function_at(address, known) or "")

        for cpu, pages in self.pages():
            collect(
                result,
                f"{self.place}{cpu}",
                pages,
                self.layout,
                name_of,
                lambda pid: names.get(pid, str(pid)),
            )
        return self.lost_count()


class OwnBuffers(Buffers):
    """The same of this machine's kernel; a process of its own reads the buffers while they fill."""

    def __init__(self, traced: Mapping[str, str], session: tracing.Session, stack: ExitStack) -> None:
        self.traced, self.name, self.place = traced, "this kernel", ""
        self._session, self._stack = session, stack
        self._files = {
            cpu.name.removeprefix("cpu"): stack.enter_context(tempfile.TemporaryFile())
            for cpu in session.cpus()
        }
        self._pipes = [_raw(cpu, stack) for cpu in session.cpus()]

    @contextmanager
    def counting(self) -> Iterator[None]:
        files = [file.fileno() for file in self._files.values()]
        work = functools.partial(_read, self._pipes, files, self.layout.page_bytes)
        reader = process.Forked(work, [*self._pipes, *files])
        self._stack.callback(reader.kill)
        with self._session.counting():
            begun = time.monotonic()
            yield
            self.window_s = time.monotonic() - begun
        try:
            reader.stop(STOP_S)
        except Failed as error:
            raise Failed(f"the reader of the trace buffers {error}") from None

    def read(self, name: str) -> str:
        return (self._session.top / name).read_text(errors="replace")

    def addresses(self) -> Mapping[int, str]:
        return kernel_functions.addresses(tuple(self.traced))

    def pages(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        for cpu, file in self._files.items():
            file.seek(0)
            yield cpu, iter(functools.partial(file.read, self.layout.page_bytes), b"")

    def lost_count(self) -> int:
        return self._session.lost_count()


def _armed(names: Sequence[str], buffers: Sequence[Buffers], key: str | None = None) -> ArmedObserver:
    """Return the armed tracers of some kernels. `key`: where the row has the report, None: at its top."""

    @contextmanager
    def counting() -> Iterator[None]:
        """Count the calls that end within the block."""
        with ExitStack() as stack:
            for one in buffers:
                stack.enter_context(one.counting())
            yield

    def report() -> Observation:
        """Return for each function: count, mean_s, p50_s, p90_s, p99_s, max_s, total_s, histogram, cpus, processes."""
        result = Collected(names, Distribution)
        lost = sum(one.add_to(result) for one in buffers)
        window_s = statistics.fmean(one.window_s for one in buffers)
        doubts = []
        if lost:
            kept = 2 * sum(one.count for one in result.all.values())
            doubts.append(
                f"the trace buffer overflowed: {lost:,} of about {lost + kept:,} events (a call has two) were lost, or"
                " left unread, so counts and totals of the functions' times are too low: name fewer functions, or send"
                " less (rate_bps)"
            )
        seen = {"functions": result.report(), "overrun_count": lost, "window_s": window_s}
        observed = {"tracer": tracing.TRACER, **({key: seen} if key else seen)}
        return Observation(observed, lost_samples_count=lost, doubts=doubts)

    return ArmedObserver(report, counting)


@contextmanager
def function_times(
    names: Sequence[str] = FUNCTIONS, *, buffer_kib: int = BUFFER_KIB, tracer: str | None = None
) -> Iterator[ArmedObserver]:
    """Arm function_times for these functions before the traffic; use `counting` around it and `report` afterwards.

    `tracer` is function_graph or bpf; None prefers function_graph. Raises Unsupported as `check` does, BadInput for
    functions that cannot be traced.
    """
    traced = kernel_functions.resolved(names)
    if (tracer or check()) == "bpf":
        with bpftrace_times.bpf_times(traced) as watch:
            yield watch
        return
    of = {one: name for name, all_of in traced.items() for one in all_of}
    with ExitStack() as stack:
        session = stack.enter_context(tracing.session(filters=list(of), buffer_kib=buffer_kib))
        yield _armed(names, [OwnBuffers(of, session, stack.enter_context(ExitStack()))])


@functools.cache
def check() -> str:
    """Return the usable tracer, function_graph or else bpf. Raises Unsupported, with both reasons; each is tried
    once."""
    try:
        tracing.check()
        return tracing.TRACER
    except Unsupported as error:
        try:
            bpftrace_times.check()
        except Unsupported as other:
            raise Unsupported(f"{error}; BPF does not work either: {other}") from None
        return "bpf"


def _raw(cpu: Path, stack: ExitStack) -> int:
    return stack.enter_context(closed(os.open(cpu / "trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK)))


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


def _named(parameters: ObservedLoad) -> tuple[str, ...]:
    return own(parameters).functions


def check_functions(parameters: ObservedLoad) -> None:
    """Raise BadInput if no function is named, because the tracer would then trace all functions of the kernel."""
    if not _named(parameters):
        observer = next(name for name in parameters.observe if name.endswith("function_times"))
        raise BadInput(f"observe={observer} needs functions=NAME,NAME")


FUNCTION_TIMES = Observer(
    lambda parameters, _topology, _stem: function_times(_named(parameters)),
    lambda _parameters: check(),
    lambda parameters: kernel_functions.resolved(_named(parameters)),
    check_parameters=check_functions,
    traces=True,
    disturbs=True,
)


@contextmanager
def guest_function_times(guests: Sequence[Kernel], names: Sequence[str]) -> Iterator[ArmedObserver]:
    """Arm the times of these functions in the guests' kernels, before the traffic.

    Raises Unsupported without guests or without a tracer in them, BadInput for a function that a guest cannot trace.
    """
    if not guests:
        raise Unsupported("no endpoint is a guest: use function_times for this machine's kernel")
    with ExitStack() as stack:
        armed = []
        for guest in guests:
            armed.append(Buffers(guest, traced(guest, names)))
            stack.callback(_set, guest, {"current_tracer": "nop", "set_ftrace_filter": ""})
            filters = "".join(f"{name}\n" for name in armed[-1].traced)
            settings = {
                "tracing_on": "0",
                "buffer_size_kb": str(GUEST_BUFFER_KIB),
                "set_ftrace_filter": filters,
            }
            try:
                _set(guest, settings | {"current_tracer": tracing.TRACER, "trace": ""})
            except OSError as error:
                raise Failed(f"the guest {guest.name} cannot trace {', '.join(names)}: {error}") from None
        yield _armed(names, armed, "guest")


def _set(guest: Kernel, settings: Mapping[str, str]) -> None:
    for name, text in settings.items():
        guest.write(f"{TRACEFS}/{name}", text.encode())


def _output(guest: Kernel, *argv: str) -> str:
    return process.output([*guest.prefix, *argv], PATIENCE_S)


def traced(guest: Kernel, names: Sequence[str]) -> dict[str, str]:
    """Return a guest kernel's name of each function, mapped to the requested name.

    Raises Unsupported without a tracer, BadInput for a function that it cannot trace.
    """
    try:
        tracers = guest.read(f"{TRACEFS}/available_tracers").split()
    except OSError:
        tracers = []
    if tracing.TRACER not in tracers:
        raise Unsupported(f"the kernel of the guest {guest.name} has no tracer {tracing.TRACER}")
    lists = f"{TRACEFS}/available_filter_functions"
    there = [line.split()[0] for line in guest.read(lists).splitlines()]
    result = kernel_functions.resolve(names, there)
    if missing := [name for name in names if not result[name]]:
        raise BadInput(
            kernel_functions.refusal(f"the kernel of the guest {guest.name}", missing, there, lists)
        )
    return {one: name for name, all_of in result.items() for one in all_of}


def _guests(parameters: ObservedLoad, topology: topologies.Topology) -> list[Kernel]:
    """Return the guests at the ends, each once. Raises Unsupported if their kernel may panic when it is traced."""
    from labkit.measure.endpoints.guest import spec  # what only guests need

    ends, word = topology.ends, parameters.guest_word
    for columns in (end.runtime.report for end in ends if end.runtime is not None):
        several = columns.get("guest_accelerator") == "tcg" and columns["guest_cpus_count"] > 1
        if several and spec.parse(word).machine.profile != "tracing":
            raise Unsupported(
                "an emulated guest with several CPUs may panic when its functions are traced:"
                f" use guest={word},profile=tracing, which runs all of them in one thread"
            )
    return list(of_guests(ends).values())


def _check_guests(parameters: ObservedLoad) -> None:
    if not parameters.in_guests:
        raise BadInput(
            "observe=guest_function_times needs endpoint=guest; otherwise use observe=function_times"
        )
    check_functions(parameters)


def _check_traceable(parameters: ObservedLoad, topology: topologies.Topology) -> None:
    """Raise BadInput for functions that the guests' kernel cannot trace.

    Other problems of a tracer do not stop the experiment; its rows report them.
    """
    with suppress(Unsupported, Failed):
        for one in _guests(parameters, topology)[:1]:  # all guests have the same kernel and modules
            traced(one, _named(parameters))


GUEST_FUNCTION_TIMES = Observer(
    lambda parameters, topology, _stem: guest_function_times(
        _guests(parameters, topology), _named(parameters)
    ),
    check_topology=_check_traceable,
    check_parameters=_check_guests,
    disturbs=True,
)
