"""The experiments, by name. OWN is the one place to add a new one to labkit itself; others are entry points."""

from __future__ import annotations

from labkit.common.extensions import Registry
from labkit.measure.experiments.context import Experiment

OWN = {
    "datapaths": "labkit.measure.experiments.datapaths:EXPERIMENT",
    "throughput": "labkit.measure.experiments.throughput_search.experiment:EXPERIMENT",
}
TABLE = Registry("labkit.experiments", Experiment, OWN, "{} is not an experiment")
find = TABLE.find
