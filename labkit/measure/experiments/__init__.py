"""The experiments, one module each. To add an experiment, add its line to `registry.OWN`."""

from labkit.measure.experiments.change_kinds.base import Files
from labkit.measure.experiments.changes import SOURCES as CHANGE_SOURCES
from labkit.measure.experiments.changes import Change
from labkit.measure.experiments.changes import parse as parse_changes
from labkit.measure.experiments.changes import sources as sources_of_changes
from labkit.measure.experiments.context import Event, Experiment, Peer, RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.registry import OWN, TABLE, find
from labkit.measure.parameters import Parameters

__all__ = [
    "CHANGE_SOURCES",
    "OWN",
    "TABLE",
    "Change",
    "DatapathParameters",
    "Event",
    "Experiment",
    "Files",
    "Parameters",
    "Peer",
    "RunContext",
    "find",
    "parse_changes",
    "sources_of_changes",
]
