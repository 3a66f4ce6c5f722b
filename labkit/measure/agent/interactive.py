"""Requests to a live topology: its state, programs at its endpoints, packet captures, and monitors.

Requests are JSON lines, each with a number; its answer has the same number.
"""

import contextlib
import io
import math
import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from labkit.common.errors import BadInput, LabkitError
from labkit.measure import topologies
from labkit.measure.endpoints import Namespace
from labkit.measure.observers import monitor
from labkit.measure.observers.capture import CapturePoint, capture, every_interface
from labkit.measure.observers.monitor import Monitor
from labkit.measure.topologies.base import MACHINE, MONITOR
from labkit.measure.topologies.state import read
from labkit.system import process, temporary_files

Answer = dict[str, Any]


def answers(topology: topologies.Topology, requests: io.RawIOBase) -> Iterator[Answer]:
    """Yield the answers to the requests until their end or an `end` request.

    `run` answers when its program has ended, with its output and exit code. `start` answers at once; the program runs
    until it ends, `kill` sends it a signal, or the topology is removed. `wait` answers like `run`. `stop` ends the
    program of a `run` early. Programs run concurrently. `capture` starts a capture; `captured` ends it and returns its
    file. `monitor` starts a monitor, `monitor read` returns its report, `monitor clear` empties its memory, `monitor
    stop` stops its capture, `monitor end` ends it with a last report. `requests` must be unbuffered, because poll(2)
    does not see data in a buffer.
    """
    with ExitStack() as stack:
        captures, monitors = _Captures(topology), _Monitors(topology)
        stack.callback(captures.close)
        stack.callback(monitors.close)
        programs = _Programs(topology, stack.enter_context(process.all_ended([])))
        known: dict[str, Callable[[Answer], Answer | None]] = {
            "state": lambda _request: {"event": "state", "state": read.state(topology)},
            "run": programs.run,
            "start": programs.start,
            "wait": programs.wait,
            "kill": programs.kill,
            "output": programs.output,
            "stop": programs.stop,
            "capture": captures.begin,
            "captured": captures.end,
            "monitor": monitors.begin,
            **{f"monitor {word}": monitors.report for word in ("read", "stop", "clear", "end")},
        }
        poll = select.poll()
        poll.register(requests, select.POLLIN)
        while True:
            if requests.fileno() in dict(programs.ready(poll)):
                if not (line := requests.readline()):
                    return
                request = msgspec.json.decode(line)
                if request["do"] == "end":
                    return
                try:
                    if request["do"] not in known:
                        raise BadInput(f"unknown request to {topology.name}: {request}")
                    answer = known[request["do"]](request)
                except LabkitError as error:
                    answer = {"event": "refused", "kind": type(error).__name__, "text": str(error)}
                if answer is not None:
                    yield {"number": request["number"], **answer}
            yield from programs.ended()


@dataclass
class _Waiting:
    """A request that waits for a program: its number, its deadline (time.monotonic()), and whether the program is
    killed then."""

    number: int
    deadline: float
    ends: bool


class _Programs:
    """The programs that run in a topology, by the number of the request that started each."""

    def __init__(self, topology: topologies.Topology, running: list[process.Running]) -> None:
        self._topology = topology
        self._running = running  # programs in it are killed with the topology
        self._programs: dict[int, process.Running] = {}
        self._waiting: dict[int, _Waiting] = {}

    def ready(self, poll: select.poll) -> list[tuple[int, int]]:
        """Wait for an event, at most until the next deadline; return poll(2)'s result."""
        programs = [self._programs[number].fileno() for number in self._waiting]
        for descriptor in programs:
            poll.register(descriptor, select.POLLIN)
        try:
            next_s = min((one.deadline for one in self._waiting.values()), default=math.inf)
            left_ms = None if math.isinf(next_s) else max(0, math.ceil((next_s - time.monotonic()) * 1000))
            return poll.poll(left_ms)
        finally:
            for descriptor in set(programs):
                poll.unregister(descriptor)

    def run(self, request: Answer) -> None:
        """Start a program; `ended` answers when it has ended."""
        self.start(request)
        self._wait(request["number"], request["number"], request["timeout_s"], ends=True)

    def start(self, request: Answer) -> Answer:
        spaces = _spaces(self._topology)
        if request["at"] not in spaces:
            raise BadInput(f"{self._topology.name} has no {request['at']}: there are {', '.join(spaces)}")
        containers = {end.name: end for end in self._topology.ends if end.runtime}
        if request["at"] in containers:
            program = containers[request["at"]].start(request["argv"])
        else:
            program = process.Running([*spaces[request["at"]].prefix, *request["argv"]])
        self._programs[request["number"]] = program
        self._running.append(program)
        return {"event": "started"}

    def wait(self, request: Answer) -> None:
        """Answer when a program has ended, or at the deadline; then the program continues."""
        self._find(request)
        if request["program"] in self._waiting:
            raise BadInput("another request already waits for this program")
        self._wait(request["program"], request["number"], request["timeout_s"], ends=False)

    def _wait(self, program: int, number: int, timeout_s: float, *, ends: bool) -> None:
        self._waiting[program] = _Waiting(number, time.monotonic() + timeout_s, ends)

    def kill(self, request: Answer) -> Answer:
        """Send a program a signal."""
        self._find(request).signal(request["signal"])
        return {"event": "signalled"}

    def output(self, request: Answer) -> Answer:
        """Return a program's output so far and whether it still runs."""
        program = self._find(request)
        is_running = not program.poll()
        return {"event": "output", "running": is_running, "stdout": program.output_so_far()}

    def stop(self, request: Answer) -> None:
        """End the program of a `run` that nobody waits for any more."""
        if self._waiting.pop(request["program"], None) and request["program"] in self._programs:
            self._programs.pop(request["program"]).kill()

    def ended(self) -> Iterator[Answer]:
        """Yield the answers for programs that have ended and for deadlines that have passed."""
        for number, waiting in list(self._waiting.items()):
            program, late = self._programs[number], time.monotonic() >= waiting.deadline
            if not program.poll() and not late:
                continue
            del self._waiting[number]
            if not program.poll() and not waiting.ends:
                yield {"number": waiting.number, "event": "running"}
                continue
            late = not program.poll()
            program.kill()
            if waiting.ends:
                del self._programs[number]
            ended = program.ended(timed_out=late)
            names = ("returncode", "stdout", "stderr", "timed_out")
            report = {name: getattr(ended, name) for name in names} | {"text": ended.message()}
            yield {"number": waiting.number, "event": "ran", **report}

    def _find(self, request: Answer) -> process.Running:
        if request["program"] not in self._programs:
            raise BadInput("there is no such program")
        return self._programs[request["program"]]


def _spaces(topology: topologies.Topology) -> dict[str, Namespace]:
    """Return the namespaces by their own names and by the names of their endpoints."""
    spaces = {space.name: space for space in topology.namespaces}
    return spaces | {end.name: end.namespace for end in topology.ends}


class _Captures:
    """Captures that run beside other requests; those that are still open end with the topology."""

    def __init__(self, topology: topologies.Topology) -> None:
        self._topology = topology
        self._going: dict[int, tuple[TemporaryDirectory[str], ExitStack, Path]] = {}

    def begin(self, request: Answer) -> Answer:
        """Start a capture at interfaces (namespace:interface), or at all of the topology."""
        spaces = _spaces(self._topology)
        hops = [_hop(spaces, name) for name in request["hops"]] or every_interface(
            self._topology.namespaces, made_only=self._topology.name != MACHINE
        )
        folder, going = TemporaryDirectory(prefix="labkit-", dir=temporary_files.in_memory()), ExitStack()
        try:
            path = going.enter_context(capture(hops, Path(folder.name), **request["limits"])).path
        except LabkitError:
            folder.cleanup()
            raise
        self._going[request["number"]] = folder, going, path
        return {"event": "capturing"}

    def end(self, request: Answer) -> Answer:
        """End a capture and return its file. Raises Failed if the recorder failed."""
        if request["capture"] not in self._going:
            raise BadInput("this capture has ended")
        folder, going, path = self._going.pop(request["capture"])
        with folder:
            going.close()
            return {"event": "captured", "file": path.read_bytes()}

    def close(self) -> None:
        for number in [*self._going]:
            with contextlib.suppress(LabkitError):
                self.end({"capture": number})


class _Monitors:
    """Monitors, by the number of the request that began each; those that nobody ended end with the topology."""

    def __init__(self, topology: topologies.Topology) -> None:
        self._topology = topology
        self._going: dict[int, Monitor] = {}

    def begin(self, request: Answer) -> Answer:
        hop = _find_hop(self._topology, request["hop"])
        self._going[request["number"]] = Monitor(hop, msgspec.convert(request["request"], monitor.Request))
        return {"event": "monitoring", "hop": hop.name}

    def report(self, request: Answer) -> Answer:
        """Return its report: of now (with packets that it has kept), when its capture has stopped, when its memory is
        empty, or its last one."""
        if request["monitor"] not in self._going:
            raise BadInput("this monitor has ended")
        one = self._going[request["monitor"]]
        asked: dict[str, Callable[[], object]] = {
            "monitor read": lambda: one.read(request["since"], request["limit"], request["before"]),
            "monitor stop": one.stop,
            "monitor clear": one.clear,
            "monitor end": lambda: self._going.pop(request["monitor"]).close(),
        }
        return {"event": "report", "report": asked[request["do"]]()}

    def close(self) -> None:
        """End all at once, without a report."""
        for one in self._going.values():
            one.kill()


def _find_hop(topology: topologies.Topology, name: str) -> CapturePoint:
    """The hop of a name: NAMESPACE:INTERFACE, or an interface's name that only one namespace has."""
    if ":" in name:
        return _hop(_spaces(topology), name)
    there = [hop for hop in every_interface(topology.namespaces, made_only=False) if hop.interface == name]
    # a mirror's cable has its name at both ends
    copies = [hop for hop in there if hop.namespace.name == MONITOR]
    if len(there) == 1 or len(copies) == 1:
        return (copies or there)[0]
    hops = ", ".join(hop.name for hop in there or every_interface(topology.namespaces))
    if there:
        raise BadInput(f"several namespaces have an interface {name}: write one of {hops}")
    raise BadInput(f"{topology.name} has no interface {name[:100]!r}: there are {hops}")


def _hop(spaces: Mapping[str, Namespace], name: str) -> CapturePoint:
    at, _, interface = name.rpartition(":")
    if at not in spaces:
        raise BadInput(
            f"{name!r} is not a capture point: write NAMESPACE:INTERFACE, with a namespace of {', '.join(spaces)}"
        )
    return CapturePoint(spaces[at], interface)
