"""Represent a profiled arm: the folded stacks of several rounds, and the work done in each."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from labkit.analysis.flame import folded_stacks
from labkit.analysis.flame.frame_tree import Tree, build_tree, is_idle
from labkit.analysis.flame.processes import NAMED
from labkit.analysis.flame.significance import Floats
from labkit.analysis.protocols import CostUnit
from labkit.common import units
from labkit.common.errors import BadInput


@dataclass(frozen=True)
class Round:
    """One round: its stacks, the time between two samples of a CPU, and the work done while it was sampled.

    received_count: packets that arrived (UDP: datagrams). received_bytes: the same in bytes. cpu_s: seconds for which
    CPUs were busy, as the kernel counts them. Unknown values are None. others_count: samples of other processes, which
    are not in the stacks. run: the folder of its run.
    """

    stacks: folded_stacks.Stacks
    period_s: float
    received_count: float | None = None
    received_bytes: float | None = None
    cpu_s: float | None = None
    others_count: int = 0
    run: str = ""


def process_pattern(processes: str) -> re.Pattern[str]:
    """Compile the regular expression of the processes to count, or of a name in NAMED. Raises BadInput."""
    try:
        return re.compile(NAMED.get(processes, processes))
    except (re.error, OverflowError, RecursionError) as error:
        raise BadInput(f"{processes!r} is not a valid regular expression: {error}") from None


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: its name, its rounds, the sampled event (of perf), and in words what was left out."""

    name: str
    rounds: Sequence[Round]
    event: str = "cpu-clock"
    left_out: str = ""

    def only(self, processes: str) -> Arm:
        """Return the arm with only the stacks of processes whose whole name matches a regular expression.

        This is for a machine that also does other work. Raises BadInput if the expression is invalid or matches no
        process.
        """
        wanted = process_pattern(processes).fullmatch
        kept, others = [], Counter[str]()
        for each in self.rounds:
            stacks = {stack: count for stack, count in each.stacks.items() if wanted(stack.split(";")[0])}
            others_and_idle = ((stack, count) for stack, count in each.stacks.items() if stack not in stacks)
            left = {stack: count for stack, count in others_and_idle if not is_idle(stack.rpartition(";")[2])}
            kept.append(replace(each, stacks=stacks, others_count=each.others_count + sum(left.values())))
            for stack, count in left.items():
                others[stack.split(";")[0]] += count
        if not any(each.stacks for each in kept):
            most = ", ".join(name for name, _ in others.most_common(8))
            raise BadInput(f"no process of {self.name} matches {processes!r}; the profile has {most}")
        if not others:
            return self
        share = others.total() / (others.total() + sum(sum(each.stacks.values()) for each in kept))
        most = ", ".join([*(name for name, _ in others.most_common(3)), *["…"] * (len(others) > 3)])
        text = (
            f"{units.percent(share)} of the samples of {self.name} are in other processes ({most}). They"
            " are left out."
        )
        return replace(self, rounds=kept, left_out=text)

    def tree(self) -> Tree:
        """Return all stacks as one tree, with a column of samples per round. Raises BadInput if there are no rounds."""
        if not self.rounds:
            raise BadInput(f"{self.name} has no profile: profile at least one round of it")
        return build_tree([each.stacks for each in self.rounds])

    def stacks(self) -> folded_stacks.Stacks:
        """Return the stacks of all rounds together."""
        result: dict[str, int] = {}
        for each in self.rounds:
            for stack, count in each.stacks.items():
                result[stack] = result.get(stack, 0) + count
        return result


def seconds_per_sample(arm: Arm, of: CostUnit) -> Floats:
    """Return the value of one sample of each round, in seconds per unit of work. Raises BadInput if that is unknown."""
    result = []
    for number, one in enumerate(arm.rounds, 1):
        work = getattr(one, of.work)
        if work is None or not math.isfinite(work) or work <= 0:
            raise BadInput(
                f"round {number} of {arm.name} has no cost per {of.description}, because its {of.work} is {work}"
            )
        if not 0 < one.period_s < math.inf:
            raise BadInput(f"round {number} of {arm.name} has an invalid sampling period: {one.period_s} s")
        result.append(one.period_s * of.one / work)
    return np.array(result)
