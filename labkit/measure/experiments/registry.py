"""The experiments, by name. OWN is the one place to add a new one.

An entry is the module that has the experiment as EXPERIMENT. Only a use of the experiment imports it.
"""

from __future__ import annotations

import importlib

from labkit.common import extensions
from labkit.common.errors import BadInput
from labkit.measure.experiments.context import Experiment

OWN = {
    "datapaths": "datapaths",
    "container_vs_vm": "container_vs_vm",
    "overlay": "overlay.experiment",
    "packet_size": "packet_size",
    "what_does_it_cost": "what_does_it_cost",
    "virtual_tap": "virtual_tap",
    "monitor_cost": "monitor_cost.experiment",
    "throughput": "throughput_search.experiment",
    "ovs_test_plan": "ovs_test_plan",
    "trex_stateless": "trex.stateless",
    "trex_stateful": "trex.stateful",
}
_OUTSIDE = extensions.names("labkit.experiments", OWN)
TABLE = (*OWN, *_OUTSIDE)


def find(name: str) -> Experiment:
    """Return the experiment `name`. Raises BadInput with the list of experiments if there is none."""
    if name not in TABLE:
        raise BadInput(f"{name} is not an experiment: choose {', '.join(TABLE)}")
    if name in _OUTSIDE:
        return extensions.load(_OUTSIDE[name], Experiment)
    experiment: Experiment = importlib.import_module(f"labkit.measure.experiments.{OWN[name]}").EXPERIMENT
    return experiment
