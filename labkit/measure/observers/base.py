"""The interface of observers: their parameters, what they read of an experiment, and what they report."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from labkit.measure import topologies
from labkit.measure.traffic.base import LoadParameters


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


class ObservedLoad(LoadParameters, Protocol):
    """The parameters of an experiment that observers read. So observers do not depend on a certain experiment.

    `observe`: names of observers. `in_guests`: whether any endpoint is a guest. `guest_word`: the description of a
    guest, see endpoints.guest.spec.
    """

    @property
    def observe(self) -> tuple[str, ...]: ...
    @property
    def topology_names(self) -> tuple[str, ...]: ...
    @property
    def in_guests(self) -> bool: ...
    @property
    def guest_word(self) -> str: ...


@dataclass(frozen=True)
class ArmedObserver:
    """An observer that was armed before the traffic began.

    `report` returns what it saw; call it after the traffic. `counting` counts until its block ends; the block is the
    traffic, or the measured part of it. What counts all packets, also those before that, needs none.
    """

    report: Callable[[], Observation]
    counting: Callable[[], AbstractContextManager[None]] = nullcontext


class ObserverParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one observer, each with a default, help and limits. Experiments that observe have them among
    their own. Two observers can share a class."""


Own = TypeVar("Own", bound=ObserverParameters)


def own_parameters(parameters: ObservedLoad, kind: type[Own]) -> Own:
    """Return the parameters of one observer, out of those of an experiment."""
    return kind(**{name: getattr(parameters, name) for name in kind.__struct_fields__})


@dataclass(frozen=True)
class Observer:
    """One observer: its own parameters, the hooks that reject impossible requests, and the function that arms it.

    `check_parameters` sees the parameters of an experiment that uses the observer, on any machine. `check` sees
    them on the machine that measures, `check_topology` also one built arm; `check_built` runs after every arm was built
    once (so the kernel's modules are loaded). `armed` gets the parameters, the built topology and the beginning of the
    path for an artefact. An observer that `traces` changes the code of this kernel and needs a guard. One that
    `disturbs` changes the code of a kernel, this one or a guest's.
    """

    armed: Callable[[ObservedLoad, topologies.Topology, Path], AbstractContextManager[ArmedObserver]]
    check: Callable[[ObservedLoad], object] = lambda _parameters: None
    check_built: Callable[[ObservedLoad], object] = lambda _parameters: None
    check_topology: Callable[[ObservedLoad, topologies.Topology], object] = lambda *_: None
    parameters: type[ObserverParameters] = ObserverParameters
    check_parameters: Callable[[ObservedLoad], object] = lambda _parameters: None
    traces: bool = False
    disturbs: bool = False
