"""What an experiment says while it runs, and what it is told of its surroundings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.common import run_folder
from labkit.measure.experiments.server_link import Peer

Event = dict[str, Any]


@dataclass(frozen=True)
class RunContext:
    """The experiment's name, the run's folder, the seed of every order, the machine as rows tell of it
    (`machine.describe`), its own network namespace (None without privilege), the other host where there are two
    nodes, and the points that are measured although they have rows, because some of those failed."""

    experiment: str
    folder: Path
    seed: int
    machine: dict[str, Any]
    machine_netns: int | None = None
    peer: Peer | None = None
    again: frozenset[str] = frozenset()

    def done(self) -> set[str]:
        """The points that need not be measured: they have rows."""
        return run_folder.finished_points(self.folder) - self.again


def rows(point: str, content: list[dict[str, Any]]) -> Event:
    """The rows of a finished point."""
    return {"event": "rows", "point": point, "rows": content}


def progress(what: str, done_s: float, total_s: float) -> Event:
    """What is being measured now; done and total in planned seconds."""
    return {"event": "progress", "what": what, "done_s": done_s, "total_s": total_s}


def stopped(pairs: int, why: str) -> Event:
    """Why no more is measured for a number of pairs."""
    return {"event": "stopped", "pairs": pairs, "why": why}
