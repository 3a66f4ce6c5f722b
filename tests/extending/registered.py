"""Runs an experiment with the four examples in the registries: a program, run in a network namespace of its own.

`registered.py FOLDER EXPERIMENT [name=value …]`: rows as JSON lines on standard output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from toy_experiment import HELP, Jumbo, planned_s, run
from toy_generator import Refused
from toy_observer import CONTEXT_SWITCHES
from toy_topology import two_bridges

from labkit.common import run_folder
from labkit.measure import experiments
from labkit.measure.observers import registry as observers
from labkit.measure.topologies import registry as topologies
from labkit.measure.traffic import registry as generators
from labkit.system import machine


def register() -> None:
    """The one line of each registry."""
    topologies.TABLE["two_bridges"] = two_bridges
    generators.GENERATORS["refused"] = Refused()
    observers.TABLE["context_switches"] = CONTEXT_SWITCHES
    experiments.TABLE["jumbo"] = lambda: experiments.Experiment(Jumbo, HELP, run, planned_s)


def main(folder: str, name: str, *words: str) -> None:
    """Run the experiment in this process and keep its rows as a run folder does."""
    register()
    experiment = experiments.find(name)
    parameters = experiment.parameters.of(dict(word.split("=", 1) for word in words))
    assert experiment.planned_s(parameters) > 0
    for event in experiment.run(
        parameters, experiments.RunContext(name, Path(folder), 1, machine.describe())
    ):
        if event["event"] == "rows":
            run_folder.write_rows(Path(folder), event["point"], event["rows"])
            for row in event["rows"]:
                print(json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
