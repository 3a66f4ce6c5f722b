"""What an experiment is, the context of its run with the other one of two hosts, and the events that it yields."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.common import errors, run_folder
from labkit.common.errors import Failed
from labkit.measure.parameters import Parameters

Event = dict[str, Any]


class Peer:
    """The servers' host; `channel` carries a request to it and returns the event with its answer."""

    def __init__(self, channel: Callable[[dict[str, Any]], Event]) -> None:
        self._channel = channel
        self._gone = False
        self.views: dict[str, Any] = {}  # the BuiltArm of each topology that was built once
        hello = self.ask("hello")
        self.machine: dict[str, Any] = hello["machine"]  # the columns of rows
        self.environment: dict[str, Any] = hello["environment"]

    def ask(self, do: str, **more: Any) -> Any:
        """Send a request and return what the other host answers. Raises its error, with the host's name."""
        answer: Event = {"gone": True} if self._gone else self._channel({"do": do, **more})
        if answer.get("gone"):
            self._gone = True
            raise Failed("the connection to the servers' host has ended")
        if "kind" in answer:
            raise errors.error_by_name(answer["kind"], f"on the servers' host: {answer['text']}")
        return answer["answer"]


@dataclass(frozen=True)
class RunContext:
    """What an experiment knows about its run.

    `experiment`: its name; `folder`: of the run; `seed`: of all random orders; `machine`: the columns of
    `machine.describe`; `machine_netns`: a file descriptor of the machine's network namespace (None without privilege);
    `companion_fd`: the connection to the program that `Parameters.companion` names;
    `peer`: the other one of two hosts; `again`: points that are measured again because some of their rows failed;
    `send`: sends an event at once, where the experiment cannot yield it; `latency`: the column by which round trips and
    transactions are judged (None: by the usual metric).
    """

    experiment: str
    folder: Path
    seed: int
    machine: dict[str, Any]
    machine_netns: int | None = None
    peer: Peer | None = None
    companion_fd: int | None = None
    again: frozenset[str] = frozenset()
    send: Callable[[Event], object] = lambda _event: None
    latency: str | None = None

    def keep_unfinished(self, point: str, content: list[dict[str, Any]]) -> None:
        """Send finished rows of a point that is still being measured, so that a killed run keeps them."""
        self.send({"event": "unfinished", "point": point, "rows": content})

    def done(self) -> set[str]:
        """Return the points that have rows and need no measurement."""
        return run_folder.finished_points(self.folder) - self.again


@dataclass(frozen=True)
class Experiment:
    """An experiment: its parameters, the function that yields its events (rows, progress), the function that
    estimates its duration in seconds, and what it measures, in a few words.

    `panel_values`: the parameters that a panel begins with, because their question has an answer.
    """

    parameters: type[Parameters]
    run: Callable[[Any, RunContext], Iterator[Event]]
    planned_s: Callable[[Any], float]
    about: str = ""
    panel_values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def help(self) -> dict[str, str]:
        """The help of each parameter, by name."""
        return self.parameters.help()


@dataclass
class Progress:
    """How far a run has come: planned seconds in total, and of what is done."""

    total_s: float
    done_s: float = 0.0

    def event(self, what: str) -> Event:
        """Make the event that says what is measured now."""
        return {"event": "progress", "what": what, "done_s": self.done_s, "total_s": self.total_s}


def rows(point: str, content: list[dict[str, Any]]) -> Event:
    """Make the event with the rows of a finished point."""
    return {"event": "rows", "point": point, "rows": content}
