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


class ObservedLoad(Protocol):
    """What observers read of an experiment's parameters. Experiments satisfy it; observers need not know them."""

    @property
    def observe(self) -> tuple[str, ...]:
        """Names of observers."""

    @property
    def topology(self) -> tuple[str, ...]:
        """Names of topologies."""

    @property
    def endpoint(self) -> tuple[str, ...]:
        """Kinds of endpoints."""

    @property
    def in_guests(self) -> bool:
        """Whether any endpoint is a guest."""

    @property
    def guest_word(self) -> str:
        """What a guest is, see endpoints.guest.spec."""

    @property
    def protocol(self) -> str:
        """tcp, udp or ping."""

    @property
    def family(self) -> int:
        """4 or 6."""

    @property
    def events(self) -> tuple[str, ...]:
        """Events of perf_stat."""

    @property
    def functions(self) -> tuple[str, ...]:
        """Kernel functions that function_times times."""

    @property
    def graph_functions(self) -> tuple[str, ...]:
        """Kernel functions whose calls function_graph records."""

    @property
    def sample_hz(self) -> int:
        """Samples of perf_record a second on each CPU."""

    @property
    def keep_perf_data(self) -> bool:
        """Whether perf_record keeps perf.data."""


class ArmedObserver(Protocol):
    """An observer that is armed, before any traffic."""

    def counting(self) -> AbstractContextManager[None]:
        """It counts while this is open: around the traffic, or the part of it that is measured."""

    def report(self) -> Observation:
        """What it saw; after the traffic's end."""
