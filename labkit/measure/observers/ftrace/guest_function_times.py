"""guest_function_times: how long functions take in the kernels of guests, which have their own tracers.

It works like `function_times`, with two differences. A guest belongs to labkit alone, so nothing must be restored. Its
buffers are read after the load, so nothing else runs there meanwhile; events that do not fit are counted and reported.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure import topologies
from labkit.measure.endpoints import Kernel, of_guests
from labkit.measure.observers.base import ArmedObserver, Observation, ObservedLoad, Observer, own_parameters
from labkit.measure.observers.ftrace import kernel_functions, ring_buffer, session
from labkit.measure.observers.ftrace.function_times import FIELDS, Collected, check_functions, collect
from labkit.measure.observers.parameters import FunctionTimesParameters
from labkit.system import process

TRACEFS = "/sys/kernel/tracing"
BUFFER_KIB = 8192  # per CPU: about 100,000 calls
PATIENCE_S = 60.0
# Read what the buffers hold, without waiting for more.
_READ = """
import os, sys
for cpu in sys.argv[1:]:
    source = os.open(f"/sys/kernel/tracing/per_cpu/{cpu}/trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK)
    target = os.open(f"/run/{cpu}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        while page := os.read(source, os.sysconf("SC_PAGE_SIZE")):
            os.write(target, page)
    except BlockingIOError:
        pass
"""


class GuestTimes:
    """The armed tracers of guests, each with its kernel's names of the functions."""

    def __init__(
        self, guests: Sequence[Kernel], names: Sequence[str], traced: Sequence[dict[str, str]]
    ) -> None:
        self._guests, self._names, self._traced = guests, names, traced
        self._window_s = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the calls that end within the block."""
        begun = self._switch_tracers(b"1")
        try:
            yield
        finally:
            self._window_s = self._switch_tracers(b"0") - begun

    def _switch_tracers(self, on: bytes) -> float:
        """Switch the tracers; return the mean time of switching.

        A busy guest answers late: the middle of request and answer is taken as its time.
        """
        middles = []
        for guest in self._guests:
            begun = time.monotonic()
            guest.write(f"{TRACEFS}/tracing_on", on)
            middles.append((begun + time.monotonic()) / 2)
        return statistics.fmean(middles)

    def report(self) -> Observation:
        """Return the form of function_times, under `guest`; a CPU is named `server0:0`."""
        result = Collected(self._names)
        lost = sum(
            _collect(guest, traced, result) for guest, traced in zip(self._guests, self._traced, strict=True)
        )
        seen = {"functions": result.report(), "overrun_count": lost, "window_s": self._window_s}
        doubts = [
            f"the guests' trace buffers overflowed: {lost:,} events were lost, or not read, so counts are"
            " too low: name fewer functions, or send less (rate_bps)"
        ] * bool(lost)
        return Observation({"tracer": session.TRACER, "guest": seen}, lost_samples_count=lost, doubts=doubts)


@contextmanager
def guest_function_times(guests: Sequence[Kernel], names: Sequence[str]) -> Iterator[GuestTimes]:
    """Arm the times of these functions in the guests' kernels, before the traffic.

    Raises Unsupported without guests or without a tracer in them, BadInput for a function that a guest cannot trace.
    """
    if not guests:
        raise Unsupported("no endpoint is a guest: use function_times for this machine's kernel")
    if not names:
        raise BadInput(
            "guest_function_times needs functions=NAME,NAME: timing all kernel functions is not supported"
        )
    kernel_functions.check_names(names)
    with ExitStack() as stack:
        armed = []
        for guest in guests:
            armed.append(traced(guest, names))
            stack.callback(_run, guest, f"cd {TRACEFS}; echo nop >current_tracer; echo >set_ftrace_filter")
            _arm(guest, list(armed[-1]))
        yield GuestTimes(guests, names, armed)


def _run(guest: Kernel, script: str) -> str:
    return process.output([*guest.prefix, "sh", "-e", "-c", script], PATIENCE_S)


def traced(guest: Kernel, names: Sequence[str]) -> dict[str, str]:
    """Return a guest kernel's name of each function, mapped to the requested name.

    Raises Unsupported without a tracer, BadInput for a function that it cannot trace.
    """
    try:
        tracers = guest.read(f"{TRACEFS}/available_tracers").split()
    except OSError:
        tracers = []
    if session.TRACER not in tracers:
        raise Unsupported(f"the kernel of the guest {guest.name} has no tracer {session.TRACER}")
    lists = f"{TRACEFS}/available_filter_functions"
    there = [line.split()[0] for line in _run(guest, f"cat {lists}").splitlines()]
    result = kernel_functions.resolve(names, there)
    if missing := [name for name in names if not result[name]]:
        raise BadInput(
            kernel_functions.refusal(f"the kernel of the guest {guest.name}", missing, there, lists)
        )
    return {one: name for name, all_of in result.items() for one in all_of}


def _arm(guest: Kernel, names: Sequence[str]) -> None:
    lines = [
        f"cd {TRACEFS}",
        "echo 0 >tracing_on",
        f"echo {BUFFER_KIB} >buffer_size_kb",
        ": >set_ftrace_filter",
    ]
    lines += [f"echo {shlex.quote(name)} >>set_ftrace_filter" for name in names]
    lines += [f"echo {session.TRACER} >current_tracer", ": >trace"]
    try:
        _run(guest, "\n".join(lines))
    except Failed as error:
        raise Failed(f"the guest {guest.name} cannot trace {', '.join(names)}: {error}") from None


def _collect(guest: Kernel, traced: dict[str, str], result: Collected) -> int:
    """Add what a guest's buffers hold; return how many events were lost."""
    texts = [
        guest.read(f"{TRACEFS}/events/{name}") for name in ("header_page", "ftrace/funcgraph_exit/format")
    ]
    try:
        layout = ring_buffer.layout(texts[0], texts[1], FIELDS)
    except ValueError as error:
        raise Failed(f"the trace buffers of the guest {guest.name} have an unknown format: {error}") from None
    cpus = sorted(_run(guest, f"cd {TRACEFS}/per_cpu; echo cpu*").split())
    process.output(
        [*guest.prefix, os.path.realpath(sys.executable), "-I", "-S", "-c", _READ, *cpus], PATIENCE_S
    )
    known, processes = _addresses(guest, list(traced)), _processes(guest)

    @functools.cache
    def name_of(address: int) -> str | None:
        return traced.get(kernel_functions.function_at(address, known) or "")

    lost = 0
    for cpu in cpus:
        data, size = guest.read_bytes(f"/run/{cpu}"), layout.page_bytes
        pages = (data[at : at + size] for at in range(0, len(data), size))
        number = cpu.removeprefix("cpu")
        collect(
            result, f"{guest.name}:{number}", pages, layout, name_of, lambda pid: processes.get(pid, str(pid))
        )
        lost += session.lost(guest.read(f"{TRACEFS}/per_cpu/{cpu}/stats"))
    return lost


def _addresses(guest: Kernel, names: Sequence[str]) -> dict[int, str]:
    wanted = "|".join(re.escape(name) for name in names)
    lines = _run(guest, f"grep -E {shlex.quote(f' ({wanted})([[:space:]]|$)')} /proc/kallsyms").splitlines()
    return {int(line.split()[0], 16): line.split()[2] for line in lines}


def _processes(guest: Kernel) -> dict[int, str]:
    lines = guest.read(f"{TRACEFS}/saved_cmdlines").splitlines()
    return {int(pid): name for pid, _, name in (line.partition(" ") for line in lines)} | {0: "swapper"}


def _guests(parameters: ObservedLoad, topology: topologies.Topology) -> list[Kernel]:
    """Return the guests at the ends, each once. Raises Unsupported if their kernel may panic when it is traced."""
    from labkit.measure.endpoints.guest import spec  # what only guests need

    ends = [end for pair in topology.pairs for end in (pair.client, pair.server)]
    word = parameters.guest_word
    for columns in (end.runtime.report for end in ends if end.runtime is not None):
        several = columns.get("guest_accelerator") == "tcg" and columns["guest_cpus_count"] > 1
        if several and spec.parse(word).machine.profile != "tracing":
            raise Unsupported(
                "an emulated guest with several CPUs may panic when its functions are traced:"
                f" use guest={word},profile=tracing, which runs all of them in one thread"
            )
    return list(of_guests(ends).values())


def _armed(
    parameters: ObservedLoad, topology: topologies.Topology, _stem: Path
) -> AbstractContextManager[ArmedObserver]:
    return guest_function_times(
        _guests(parameters, topology), own_parameters(parameters, FunctionTimesParameters).functions
    )


def _check_guests(parameters: ObservedLoad) -> None:
    if not parameters.in_guests:
        raise BadInput(
            "observe=guest_function_times needs endpoint=guest; otherwise use observe=function_times"
        )


def _check_traceable(parameters: ObservedLoad, topology: topologies.Topology) -> None:
    """Raise BadInput for functions that the guests' kernel cannot trace.

    Other problems of a tracer do not stop the experiment; its rows report them.
    """
    with suppress(Unsupported, Failed):
        for one in _guests(parameters, topology)[:1]:  # all guests have the same kernel and modules
            traced(one, own_parameters(parameters, FunctionTimesParameters).functions)


GUEST_FUNCTION_TIMES = Observer(
    _check_guests,
    _armed,
    check_topology=_check_traceable,
    parameters=FunctionTimesParameters,
    check_parameters=check_functions,
    disturbs=True,
)
