"""What every observer is, once it is armed, and what it tells afterwards."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Observation:
    """What an observer saw: `observed` as JSON has it, a file where there is more, and samples or events that it knows
    to have missed (None: it cannot miss any, or cannot tell)."""

    observed: dict[str, Any]
    artefact: Path | None = None
    lost_samples_count: int | None = None
    doubts: list[str] = field(default_factory=list)


class ArmedObserver(Protocol):
    """An observer that is armed, before any traffic."""

    def counting(self) -> AbstractContextManager[None]:
        """It counts while this is open: around the traffic, or the part of it that is measured."""

    def report(self) -> Observation:
        """What it saw; after the traffic's end."""
