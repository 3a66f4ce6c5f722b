"""Which datapath is faster, by how much: throughput or round-trip time of topologies, for any number of pairs
at once.

The question is Claassen's (Container Network Solutions, University of Amsterdam 2015): veth bridges, macvlan
and ipvlan, TCP and UDP, 1 to 128 pairs. All topologies are arms of one experiment, the first of them the
baseline, which is measured twice under two names (A/A control).

A **round** is one fresh set-up of all arms for one number of pairs. In it every arm is measured in `slices`
slices of 100 ms, one arm sending at a time, order random; and, in the first `whole_runs` rounds, by one whole
iperf3 (or ping) run of each arm.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from labkit.common.units import many
from labkit.measure.experiments import measuring_loop, profiled_runs
from labkit.measure.experiments.context import Event, RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.measuring_loop import Load, Plan, Point


def rounds(parameters: DatapathParameters, seed: int) -> Iterator[tuple[int, int]]:
    """The number of pairs and the round of every point, in the order in which they are measured: round by round, the
    numbers of pairs shuffled in each."""
    for number in range(parameters.rounds):
        for pairs in random.Random(f"{seed} {number}").sample(parameters.pairs, len(parameters.pairs)):
            yield pairs, number


def ends_whole(parameters: DatapathParameters, number: int) -> bool:
    """Whether this round ends with whole runs."""
    return number < (parameters.rounds if parameters.whole_runs is None else parameters.whole_runs)


def words(parameters: DatapathParameters, pairs: int, number: int) -> str:
    """A round in words, for progress."""
    return f"{many(pairs, 'pair')}, round {number + 1} of {parameters.rounds}"


def plan(parameters: DatapathParameters, seed: int) -> Plan:
    """What is measured, with the seed of its order."""
    points = [
        Point(
            f"{pairs}-r{number}",
            pairs,
            number,
            [Load(parameters, whole_runs=ends_whole(parameters, number))],
            words(parameters, pairs, number),
        )
        for pairs, number in rounds(parameters, seed)
    ]
    finished = f"all {many(parameters.rounds, 'round')} were measured"
    return Plan(parameters, points, profiled_runs.points(parameters), [parameters], finished, early_stop=True)


def planned_s(parameters: DatapathParameters) -> float:
    """About how many seconds all of it takes."""
    return measuring_loop.planned_s(plan(parameters, 0))


def run(parameters: DatapathParameters, run_context: RunContext) -> Iterator[Event]:
    """Rows of every point that has none yet, with progress between, and why it stopped."""
    return measuring_loop.run(plan(parameters, run_context.seed), run_context)
