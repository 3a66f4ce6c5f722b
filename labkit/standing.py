"""What may be asked of a topology that stands: its state, to run programs at its endpoints, and what passes its
interfaces, for as long as somebody asks. Requests come as JSON lines, each with a number that its answer has too."""

from __future__ import annotations

import contextlib
import io
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import msgspec

from labkit import process, scratch, topologies
from labkit.endpoints import Namespace
from labkit.errors import BadInput, LabkitError
from labkit.observers.capture import Hop, capture, everywhere

Answer = dict[str, Any]


def answers(topology: topologies.Topology, requests: io.RawIOBase) -> Iterator[Answer]:
    """The answers to the requests, until there are no more, or one says `end`.

    `run` gives what a program said and how it ended; any further line ends the program early. `capture` begins a
    capture, `captured` ends it and gives its file. `requests` must be unbuffered: what waits in a buffer would not be
    seen while a program runs.
    """
    with _Captures(topology) as captures:
        while line := requests.readline():
            request = msgspec.json.decode(line)
            if request["do"] == "end":
                return
            if request["do"] == "stop":  # what it should have stopped had just ended
                continue
            try:
                yield {"number": request["number"], **_answer(topology, captures, requests, request)}
            except LabkitError as error:
                refusal = {"event": "refused", "kind": type(error).__name__, "text": str(error)}
                yield {"number": request["number"], **refusal}


def _answer(
    topology: topologies.Topology, captures: _Captures, requests: io.RawIOBase, request: Answer
) -> Answer:
    spaces = _spaces(topology)
    if request["do"] == "state":
        return {"event": "state", "state": topologies.state(topology)}
    if request["do"] == "run" and request["at"] in spaces:
        argv = [*spaces[request["at"]].prefix, *request["argv"]]
        ended = _run(argv, request["timeout_s"], requests)
        told = {"returncode": ended.returncode, "stdout": ended.stdout, "stderr": ended.stderr}
        return {"event": "ran", **told, "timed_out": ended.timed_out, "words": ended.words()}
    if request["do"] == "capture":
        captures.begin(request["number"], request["hops"], request["limits"])
        return {"event": "capturing"}
    if request["do"] == "captured":
        return {"event": "captured", "file": captures.end(request["capture"])}
    raise BadInput(f"of {topology.name} this cannot be asked: {request}")


def _spaces(topology: topologies.Topology) -> dict[str, Namespace]:
    """Namespaces by their own names and by those of ends."""
    spaces = {space.name: space for space in topology.namespaces}
    return spaces | {end.name: end.namespace for pair in topology.pairs for end in (pair.client, pair.server)}


class _Captures:
    """Captures that go on while other things are asked; those that nobody ended end with the topology."""

    def __init__(self, topology: topologies.Topology) -> None:
        self._topology = topology
        self._going: dict[int, tuple[TemporaryDirectory[str], ExitStack, Path]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in [*self._going]:
            with contextlib.suppress(LabkitError):
                self.end(number)

    def begin(self, number: int, names: Sequence[str], limits: dict[str, Any]) -> None:
        """Begin a capture at interfaces (namespace:interface), or at all of the topology's."""
        spaces = _spaces(self._topology)
        hops = [_hop(spaces, name) for name in names] or everywhere(self._topology.namespaces)
        folder, going = TemporaryDirectory(prefix="labkit-", dir=scratch.in_memory()), ExitStack()
        try:
            path = going.enter_context(capture(hops, Path(folder.name), **limits)).path
        except LabkitError:
            folder.cleanup()
            raise
        self._going[number] = folder, going, path

    def end(self, number: int) -> bytes:
        """End a capture; its file. Raises Failed when the recorder did."""
        if number not in self._going:
            raise BadInput("this capture has ended")
        folder, going, path = self._going.pop(number)
        with folder:
            going.close()
            return path.read_bytes()


def _hop(spaces: Mapping[str, Namespace], name: str) -> Hop:
    at, _, interface = name.rpartition(":")
    if at not in spaces:
        raise BadInput(f"{name!r} is no place to capture at: NAMESPACE:INTERFACE, of {', '.join(spaces)}")
    return Hop(spaces[at], interface)


def _run(argv: Sequence[str], timeout_s: float, requests: io.RawIOBase) -> process.Ended:
    """Run a program until it ends, its time is over, or somebody says something."""
    program = process.Running(argv)
    with process.all_ended([program]):
        poll = select.poll()
        poll.register(program, select.POLLIN)
        poll.register(requests, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        late = stopped = False
        while not (program.poll() or late or stopped):
            ready = poll.poll(max(deadline - time.monotonic(), 0) * 1000)
            late = not ready
            stopped = requests.fileno() in dict(ready)
        program.kill()
        return program.ended(timed_out=late)
