"""Build one tree of the stacks of several rounds.

A frame is a function at one place of the stacks, with its number of samples in each round. The tree is made for
thousands of frames: its columns are numpy arrays, and parents precede their children.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.analysis.flame import folded_stacks
from labkit.analysis.flame.significance import Bools

Ints = npt.NDArray[np.int64]

# Functions in which a sample finds an idle CPU, on x86 and arm64, with and without a hypervisor, in Linux 5.15 to 6.18.
# These samples are not work. Samples of interrupts on an idle CPU end in other functions and count. The compiler may
# add an end to a name (`cpu_idle_poll.isra.0`).
_IDLE = re.compile(
    r"(\w+_safe_halt|tdx_halt|xen_hypercall_sched_op|default_(enter_)?idle|default_idle_call|amd_e400_idle"
    r"|mwait_idle\w*|(__)?intel_idle\w*|acpi_idle_\w+|acpi_processor_ffh_\w+_enter|poll_idle|cpu_idle_poll"
    r"|cpuidle_enter\w*|arch_cpu_idle|cpu_do_idle|arm_cpuidle_\w+|_*psci_\w*(suspend|idle)\w*"
    r"|__arm_smccc_(smc|hvc))(\.\w+)*" + re.escape(folded_stacks.KERNEL)
)
is_idle = lru_cache(maxsize=100_000)(_IDLE.fullmatch)  # the same functions end the stacks of every round


@dataclass(frozen=True)
class Tree:
    """A tree of frames. Frame 0 is the root, which holds all others.

    names: every name once. name, parent, depth: per frame; name is an index into names, and depth is 0 for the root and
    1 for a process. own: samples [frame, round] in the frame itself. idle: samples [round] of idle CPUs, which the tree
    leaves out.
    """

    names: list[str]
    name: Ints
    parent: Ints
    depth: Ints
    own: Ints
    idle: Ints

    def __len__(self) -> int:
        return len(self.name)

    @cached_property
    def total(self) -> Ints:
        """The samples [frame, round] of each frame with all its callees."""
        return self.sum_below(self.own)

    def sum_below(self, own: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the sum of each frame's own values and those of all frames below it."""
        total = own.copy()
        for level in range(int(self.depth.max()), 0, -1):
            there = np.flatnonzero(self.depth == level)
            np.add.at(total, self.parent[there], total[there])
        return total

    def inside(self, marked: Bools) -> Bools:
        """Return for each frame whether it, or a frame above it, is marked."""
        result = marked.copy()
        for level in range(1, int(self.depth.max()) + 1):
            there = np.flatnonzero(self.depth == level)
            result[there] |= result[self.parent[there]]
        return result

    def outermost(self) -> Bools:
        """Return for each frame whether no frame above it has the same name, so that recursion does not count callees
        twice."""
        first = np.ones(len(self), dtype=bool)
        above: list[frozenset[int]] = [frozenset()]
        for frame in range(1, len(self)):
            upper, own = above[self.parent[frame]], int(self.name[frame])
            first[frame] = own not in upper
            above.append(upper | {own} if first[frame] else upper)
        return first

    def by_name(self, values: npt.NDArray[Any], frames: Bools | None = None) -> npt.NDArray[Any]:
        """Return values [frame, round] summed over the frames of each name, as [name, round]."""
        result = np.zeros((len(self.names), values.shape[1]), dtype=values.dtype)
        chosen = np.arange(len(self)) if frames is None else np.flatnonzero(frames)
        np.add.at(result, self.name[chosen], values[chosen])
        return result


def build_tree(rounds: Sequence[folded_stacks.Stacks], idle: bool = False) -> Tree:
    """Return the tree of these rounds. Stacks of idle CPUs are left out and counted, unless `idle`."""
    names: dict[str, int] = {"\0": 0}  # the root, under a name that no function has
    places: dict[tuple[int, int], int] = {}
    name, parent, depth = [0], [-1], [0]
    samples: list[tuple[int, int, int]] = []
    rested = np.zeros(len(rounds), dtype=np.int64)
    known: dict[str, int] = {}  # the frame at the end of each stack: most stacks are in every round
    for number, stacks in enumerate(rounds):
        for stack, count in stacks.items():
            if not idle and is_idle(stack.rpartition(";")[2]):
                rested[number] += count
                continue
            frame = known.get(stack, 0)
            for word in () if frame else stack.split(";"):
                key = (frame, names.setdefault(word, len(names)))
                below = places.setdefault(key, len(name))
                if below == len(name):
                    name.append(key[1])
                    parent.append(frame)
                    depth.append(depth[frame] + 1)
                frame = below
            known[stack] = frame
            samples.append((frame, number, count))
    own = np.zeros((len(name), len(rounds)), dtype=np.int64)
    for frame, number, count in samples:
        own[frame, number] += count
    return Tree(["all", *list(names)[1:]], np.array(name), np.array(parent), np.array(depth), own, rested)
