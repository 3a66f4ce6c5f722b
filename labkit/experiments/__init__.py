"""One module per question. TABLE is the one place to add a new one: a name, its parameters, and what yields
its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from labkit.errors import BadInput
from labkit.experiments import datapaths
from labkit.experiments.asked import HELP, Datapaths
from labkit.experiments.change_kind import Files
from labkit.experiments.changes import Change
from labkit.experiments.changes import parse as parse_changes
from labkit.experiments.events import Event, Surroundings
from labkit.experiments.observing import TRACERS
from labkit.experiments.parameters import Parameters
from labkit.experiments.peer import Peer
from labkit.experiments.serve import answers


@dataclass(frozen=True)
class Experiment:
    """A question: its parameters, the function that answers with events (rows, progress), and about how many seconds
    that takes."""

    parameters: type[Parameters]
    help: dict[str, str]
    run: Callable[[Any, Surroundings], Iterator[Event]]
    planned_s: Callable[[Any], float]


def _datapaths() -> Experiment:
    return Experiment(Datapaths, HELP, datapaths.run, datapaths.planned_s)


def _overlay() -> Experiment:
    from labkit.experiments import overlay  # what only overlays need, and so on

    return Experiment(overlay.Overlay, overlay.HELP, overlay.run, overlay.planned_s)


def _packet_size() -> Experiment:
    from labkit.experiments import packet_size

    return Experiment(packet_size.PacketSize, packet_size.HELP, packet_size.run, packet_size.planned_s)


def _container_vs_vm() -> Experiment:
    from labkit.experiments import container_vs_vm as one

    return Experiment(one.ContainerVsVm, one.HELP, one.run, one.planned_s)


def _what_does_it_cost() -> Experiment:
    from labkit.experiments import what_does_it_cost as one

    return Experiment(one.WhatDoesItCost, one.HELP, one.run, one.planned_s)


def _virtual_tap() -> Experiment:
    from labkit.experiments import virtual_tap as one

    return Experiment(one.VirtualTap, one.HELP, one.run, one.planned_s)


def _throughput() -> Experiment:
    from labkit.experiments.throughput_search import experiment, parameters

    return Experiment(parameters.Throughput, parameters.HELP, experiment.run, experiment.planned_s)


TABLE = {
    "datapaths": _datapaths,
    "container_vs_vm": _container_vs_vm,
    "overlay": _overlay,
    "packet_size": _packet_size,
    "what_does_it_cost": _what_does_it_cost,
    "virtual_tap": _virtual_tap,
    "throughput": _throughput,
}


def find(name: str) -> Experiment:
    """The experiment `name`. Raises BadInput with the list of what there is."""
    if name not in TABLE:
        raise BadInput(f"there is no experiment {name}; there are: {', '.join(TABLE)}")
    return TABLE[name]()


__all__ = [
    "TABLE",
    "TRACERS",
    "Change",
    "Datapaths",
    "Event",
    "Experiment",
    "Files",
    "Parameters",
    "Peer",
    "Surroundings",
    "answers",
    "find",
    "parse_changes",
]
