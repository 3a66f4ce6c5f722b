"""What an experiment is, the context of its run, and the events that it yields while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.common import run_folder
from labkit.measure.experiments.server_link import Peer
from labkit.measure.parameters import Parameters

Event = dict[str, Any]


@dataclass(frozen=True)
class RunContext:
    """What an experiment knows about its run.

    `experiment`: its name; `folder`: of the run; `seed`: of all random orders; `machine`: the columns of
    `machine.describe`; `machine_netns`: a file descriptor of the machine's network namespace (None without privilege);
    `companion_fd`: the connection to the program that `Parameters.companion` names;
    `peer`: the other one of two hosts; `again`: points that are measured again because some of their rows failed.
    """

    experiment: str
    folder: Path
    seed: int
    machine: dict[str, Any]
    machine_netns: int | None = None
    peer: Peer | None = None
    companion_fd: int | None = None
    again: frozenset[str] = frozenset()

    def done(self) -> set[str]:
        """Return the points that have rows and need no measurement."""
        return run_folder.finished_points(self.folder) - self.again


@dataclass(frozen=True)
class Experiment:
    """An experiment: its parameters, a help text for each, the function that yields its events (rows, progress), and
    the function that estimates its duration in seconds."""

    parameters: type[Parameters]
    help: dict[str, str]
    run: Callable[[Any, RunContext], Iterator[Event]]
    planned_s: Callable[[Any], float]


def rows(point: str, content: list[dict[str, Any]]) -> Event:
    """Make the event with the rows of a finished point."""
    return {"event": "rows", "point": point, "rows": content}


def progress(what: str, done_s: float, total_s: float) -> Event:
    """Make the event that says what is measured now; `done_s` and `total_s` are planned seconds."""
    return {"event": "progress", "what": what, "done_s": done_s, "total_s": total_s}


def stopped(pairs: int, why: str) -> Event:
    """Make the event that says why the measurement of a number of pairs ended."""
    return {"event": "stopped", "pairs": pairs, "why": why}
