"""What may be asked of a topology that stands: its state, and to run programs at its endpoints, for as long as somebody
asks. Requests come as JSON lines, each with a number that its answer has too."""

from __future__ import annotations

import io
import select
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from labkit import process, topologies
from labkit.errors import BadInput, LabkitError

Answer = dict[str, Any]


def answers(topology: topologies.Topology, requests: io.RawIOBase) -> Iterator[Answer]:
    """The answers to the requests, until there are no more, or one says `end`.

    `run` gives what a program said and how it ended; any further line ends the program early. `requests` must be
    unbuffered: what waits in a buffer would not be seen while a program runs.
    """
    prefixes = {space.name: space.prefix for space in topology.namespaces}
    prefixes |= {end.name: end.prefix for pair in topology.pairs for end in (pair.client, pair.server)}
    while line := requests.readline():
        request = msgspec.json.decode(line)
        if request["do"] == "end":
            return
        if request["do"] == "stop":  # what it should have stopped had just ended
            continue
        try:
            yield {"number": request["number"], **_answer(topology, prefixes, requests, request)}
        except LabkitError as error:
            refusal = {"event": "refused", "kind": type(error).__name__, "text": str(error)}
            yield {"number": request["number"], **refusal}


def _answer(
    topology: topologies.Topology, prefixes: dict[str, list[str]], requests: io.RawIOBase, request: Answer
) -> Answer:
    if request["do"] == "state":
        return {"event": "state", "state": topologies.state(topology)}
    if request["do"] == "run" and request["at"] in prefixes:
        argv = [*prefixes[request["at"]], *request["argv"]]
        ended = _run(argv, request["timeout_s"], requests)
        told = {"returncode": ended.returncode, "stdout": ended.stdout, "stderr": ended.stderr}
        return {"event": "ran", **told, "timed_out": ended.timed_out, "words": ended.words()}
    raise BadInput(f"of {topology.name} this cannot be asked: {request}")


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
