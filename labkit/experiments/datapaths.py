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

from labkit.experiments import measuring_loop, profiles
from labkit.experiments.asked import Datapaths
from labkit.experiments.events import Event, Surroundings
from labkit.experiments.measuring_loop import Load, Plan, Point
from labkit.units import many


def rounds(asked: Datapaths, seed: int) -> Iterator[tuple[int, int]]:
    """The number of pairs and the round of every point, in the order in which they are measured: round by round, the
    numbers of pairs shuffled in each."""
    for number in range(asked.rounds):
        for pairs in random.Random(f"{seed} {number}").sample(asked.pairs, len(asked.pairs)):
            yield pairs, number


def ends_whole(asked: Datapaths, number: int) -> bool:
    """Whether this round ends with whole runs."""
    return number < (asked.rounds if asked.whole_runs is None else asked.whole_runs)


def words(asked: Datapaths, pairs: int, number: int) -> str:
    """A round in words, for progress."""
    return f"{many(pairs, 'pair')}, round {number + 1} of {asked.rounds}"


def plan(asked: Datapaths, seed: int) -> Plan:
    """What is measured, with the seed of its order."""
    points = [
        Point(
            f"{pairs}-r{number}",
            pairs,
            number,
            [Load(asked, whole_runs=ends_whole(asked, number))],
            words(asked, pairs, number),
        )
        for pairs, number in rounds(asked, seed)
    ]
    finished = f"all {many(asked.rounds, 'round')} were measured"
    return Plan(asked, points, profiles.points(asked), [asked], finished, early_stop=True)


def planned_s(asked: Datapaths) -> float:
    """About how many seconds all of it takes."""
    return measuring_loop.planned_s(plan(asked, 0))


def run(asked: Datapaths, around: Surroundings) -> Iterator[Event]:
    """Rows of every point that has none yet, with progress between, and why it stopped."""
    return measuring_loop.run(plan(asked, around.seed), around)
