"""The interface of observers: what they read of an experiment, and what they report."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Observation:
    """The report of an observer.

    `observed` is a JSON object; `artefact` is a file with more details. `lost_samples_count` counts the samples or
    events that the observer missed (None: it cannot miss any, or does not know).
    """

    observed: dict[str, Any]
    artefact: Path | None = None
    lost_samples_count: int | None = None
    doubts: list[str] = field(default_factory=list)


class ObservedLoad(Protocol):
    """The parameters of an experiment that observers read. So observers do not depend on a certain experiment."""

    @property
    def observe(self) -> tuple[str, ...]:
        """Names of observers."""

    @property
    def topology_names(self) -> tuple[str, ...]:
        """Names of topologies."""

    @property
    def endpoint(self) -> tuple[str, ...]:
        """Kinds of endpoints."""

    @property
    def in_guests(self) -> bool:
        """Whether any endpoint is a guest."""

    @property
    def guest_word(self) -> str:
        """The description of a guest, see endpoints.guest.spec."""

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
        """Samples per second that perf_record takes on each CPU."""

    @property
    def keep_perf_data(self) -> bool:
        """Whether perf_record keeps perf.data."""


class ArmedObserver(Protocol):
    """An observer that was armed before the traffic began."""

    def counting(self) -> AbstractContextManager[None]:
        """Count until the block ends; the block is the traffic, or the measured part of it."""

    def report(self) -> Observation:
        """Return what the observer saw; call it after the traffic."""
