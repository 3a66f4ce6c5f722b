"""The experiment `datapaths` compares the throughput or round-trip time of topologies, for any number of pairs at once.

The question is Claassen's (Container Network Solutions, University of Amsterdam 2015): veth bridges, macvlan
and ipvlan, TCP and UDP, 1 to 128 pairs. Each topology is an arm. The first one is the baseline; it is measured
twice under two names (A/A control).

A **round** builds all arms afresh for one number of pairs. It then measures every arm in `slices` slices of
100 ms: one arm sends at a time, in random order. The first `whole_runs` rounds also measure every arm with one whole
iperf3 (or ping) run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from labkit.common.units import counted
from labkit.measure.experiments import measuring_loop
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.measurement_point import Load, MeasurementPoint
from labkit.measure.experiments.measuring_loop import Plan, Point, shuffled


def points(parameters: DatapathParameters, seed: int, loads: Sequence[Load]) -> list[Point]:
    """Return every point in measuring order: round by round, the numbers of pairs shuffled in each."""
    result = list[Point]()
    for number, pairs in shuffled(parameters.rounds, seed, parameters.pairs):
        text = f"{counted(pairs, 'pair')}, round {number + 1} of {parameters.rounds}"
        result.append(MeasurementPoint(f"{pairs}-r{number}", pairs, number, loads, text))
    return result


def plan(parameters: DatapathParameters, seed: int) -> Plan:
    """Return the plan of the experiment; `seed` decides the random orders."""
    finished = f"all {counted(parameters.rounds, 'round')} were measured"
    return replace(plan_of_loads(parameters, seed, {"": parameters}), finished=finished, early_stop=True)


def plan_of_loads(
    parameters: DatapathParameters,
    seed: int,
    loads: Mapping[str, DatapathParameters],
    *,
    observes_all: bool = False,
) -> Plan:
    """Return the plan of several loads, by name: in every round each runs through all arms, in random order.

    `observes_all`: the profiles are of every load, not only of the first.
    """
    observed = [(name.replace(":", "-"), own) for name, own in loads.items()]
    if not observes_all:
        observed = [("", observed[0][1])]
    measured = points(parameters, seed, [Load(own, name) for name, own in loads.items()])
    finished = f"all {parameters.rounds} rounds of {len(loads)} loads were measured"
    if parameters.observe:
        from labkit.measure.experiments.profiled_runs import profiles  # what only observers need

        measured += profiles(parameters, lambda _name: observed)
    return Plan(parameters, measured, finished, list(loads.values()))


MEASURED = measuring_loop.experiment(DatapathParameters, plan)
