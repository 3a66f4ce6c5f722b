"""The experiments, one module each. OWN is the one place to add a new one to labkit itself; others are entry points."""

from labkit.common.extensions import Registry
from labkit.measure.experiments.change_kinds.base import Files
from labkit.measure.experiments.changes import SOURCES as CHANGE_SOURCES
from labkit.measure.experiments.changes import Change
from labkit.measure.experiments.changes import parse as parse_changes
from labkit.measure.experiments.changes import sources as sources_of_changes
from labkit.measure.experiments.context import Experiment, Peer, RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters

OWN = {
    "datapaths": "labkit.measure.experiments.datapaths_parameters:EXPERIMENT",
    "throughput": "labkit.measure.experiments.throughput_search.experiment:EXPERIMENT",
}
TABLE = Registry("labkit.experiments", Experiment, OWN, "{} is not an experiment")
find = TABLE.find

__all__ = [
    "CHANGE_SOURCES", "OWN", "TABLE", "Change", "DatapathParameters", "Experiment", "Files", "Peer", "RunContext",
    "find", "parse_changes", "sources_of_changes",
]  # fmt: skip
