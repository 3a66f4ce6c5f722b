"""The experiments, one module each. To add an experiment, add its name and an entry to TABLE."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from labkit.common.errors import BadInput
from labkit.measure.experiments import datapaths
from labkit.measure.experiments.change_kind import Files
from labkit.measure.experiments.changes import SOURCES as CHANGE_SOURCES
from labkit.measure.experiments.changes import Change
from labkit.measure.experiments.changes import parse as parse_changes
from labkit.measure.experiments.changes import sources as sources_of_changes
from labkit.measure.experiments.context import Event, RunContext
from labkit.measure.experiments.datapaths_parameters import HELP, DatapathParameters
from labkit.measure.experiments.server_link import Peer
from labkit.measure.experiments.two_hosts.server_side import answers
from labkit.measure.observers.registry import TRACERS
from labkit.measure.parameters import Parameters


@dataclass(frozen=True)
class Experiment:
    """An experiment: its parameters, the function that yields its events (rows, progress), its estimated duration."""

    parameters: type[Parameters]
    help: dict[str, str]
    run: Callable[[Any, RunContext], Iterator[Event]]
    planned_s: Callable[[Any], float]


def _datapaths() -> Experiment:
    return Experiment(DatapathParameters, HELP, datapaths.run, datapaths.planned_s)


def _overlay() -> Experiment:
    from labkit.measure.experiments.overlay import experiment as overlay  # what only overlays need, and so on

    return Experiment(overlay.Overlay, overlay.HELP, overlay.run, overlay.planned_s)


def _packet_size() -> Experiment:
    from labkit.measure.experiments import packet_size

    return Experiment(packet_size.PacketSize, packet_size.HELP, packet_size.run, packet_size.planned_s)


def _container_vs_vm() -> Experiment:
    from labkit.measure.experiments import container_vs_vm as one

    return Experiment(one.ContainerVsVm, one.HELP, one.run, one.planned_s)


def _what_does_it_cost() -> Experiment:
    from labkit.measure.experiments import what_does_it_cost as one

    return Experiment(one.WhatDoesItCost, one.HELP, one.run, one.planned_s)


def _virtual_tap() -> Experiment:
    from labkit.measure.experiments import virtual_tap as one

    return Experiment(one.VirtualTap, one.HELP, one.run, one.planned_s)


def _monitor_cost() -> Experiment:
    from labkit.measure.experiments.monitor_cost import experiment as one

    return Experiment(one.MonitorCost, one.HELP, one.run, one.planned_s)


def _throughput() -> Experiment:
    from labkit.measure.experiments.throughput_search import experiment, parameters

    return Experiment(parameters.Throughput, parameters.HELP, experiment.run, experiment.planned_s)


def _trex_stateless() -> Experiment:
    from labkit.measure.experiments.trex import parameters, stateless

    return Experiment(parameters.Stateless, parameters.HELP, stateless.run, stateless.planned_s)


def _trex_stateful() -> Experiment:
    from labkit.measure.experiments.trex import parameters, stateful

    return Experiment(parameters.Stateful, parameters.STATEFUL_HELP, stateful.run, stateful.planned_s)


def _ovs_test_plan() -> Experiment:
    from labkit.measure.experiments import ovs_test_plan as one

    return Experiment(one.OvsTestPlan, one.HELP, one.run, one.planned_s)


TABLE = {
    "datapaths": _datapaths,
    "container_vs_vm": _container_vs_vm,
    "overlay": _overlay,
    "packet_size": _packet_size,
    "what_does_it_cost": _what_does_it_cost,
    "virtual_tap": _virtual_tap,
    "monitor_cost": _monitor_cost,
    "throughput": _throughput,
    "ovs_test_plan": _ovs_test_plan,
    "trex_stateless": _trex_stateless,
    "trex_stateful": _trex_stateful,
}


def find(name: str) -> Experiment:
    """Return the experiment `name`. Raises BadInput with the list of experiments if there is none."""
    if name not in TABLE:
        raise BadInput(f"there is no experiment {name}; there are: {', '.join(TABLE)}")
    return TABLE[name]()


__all__ = [
    "CHANGE_SOURCES",
    "TABLE",
    "TRACERS",
    "Change",
    "DatapathParameters",
    "Event",
    "Experiment",
    "Files",
    "Parameters",
    "Peer",
    "RunContext",
    "answers",
    "find",
    "parse_changes",
    "sources_of_changes",
]
