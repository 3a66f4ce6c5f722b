"""The experiments, by name. OWN is the one place to add a new one to labkit itself; others are entry points.

An entry is the module that has the experiment as EXPERIMENT. Only a use of the experiment imports it.
"""

from __future__ import annotations

import importlib

from labkit.common import extensions
from labkit.common.errors import BadInput, choose
from labkit.measure.experiments.context import Experiment

OWN = {
    "datapaths": "datapaths",
    "throughput": "throughput_search.experiment",
}
_OUTSIDE = extensions.names("labkit.experiments", OWN)
TABLE = (*OWN, *_OUTSIDE)


def find(name: str) -> Experiment:
    """Return the experiment `name`. Raises BadInput with the list of experiments if there is none."""
    if name not in TABLE:
        raise BadInput(f"{name} is not an experiment: {choose(name, TABLE)}")
    if name in _OUTSIDE:
        return extensions.load(_OUTSIDE[name], Experiment)
    experiment: Experiment = importlib.import_module(f"labkit.measure.experiments.{OWN[name]}").EXPERIMENT
    return experiment
