"""Compare two arms to find why one costs more than the other.

Each arm has several profiled rounds. They are compared by frame and by function, in seconds of CPU per packet (or per
gigabyte, or per second of busy CPU).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from labkit.analysis import protocols
from labkit.analysis.flame import folded_stacks, processes
from labkit.analysis.flame import profile as arms
from labkit.analysis.flame.frame_tree import Ints, Tree, build_tree
from labkit.analysis.flame.profile import Arm
from labkit.analysis.flame.significance import Bools, Spread, compared, run_variation
from labkit.analysis.protocols import CostUnit
from labkit.common import units

REST, TOTAL = "everything else", "total"
ROWS = 12


@dataclass(frozen=True)
class Difference:
    """Arms in one tree. Its columns are the rounds of left, then of right, then of the control.

    frames: the comparison of every frame, callees included.
    """

    left: Arm
    right: Arm
    control: Arm | None
    per: CostUnit
    tree: Tree
    frames: Spread

    def functions(self, rows: int = ROWS, inclusive: bool = False) -> pd.DataFrame:
        """Return the functions that explain most of the difference, by self time.

        Functions whose difference stands out come first, the largest first.

        Costs are in seconds per unit of work with 95 % intervals (NaN for a single round), in the columns left_s,
        left_low_s, left_high_s, right_…, difference_…. share_ratio is the share of the total difference, or NaN if the
        total does not stand out, because it may then be 0. The other columns are p, stands_out, samples_count (both
        sides), and kind (process, kernel, user).

        The last two rows are "everything else" and "total": all rows above the total add up to it. One row before them
        has the programs that do not belong to the load (`processes.foreign`).

        inclusive: count callees too. Such times overlap, so there is no row for everything else.
        """
        tree = self.tree
        foreign = self._foreign()
        first_of_name = tree.outermost() & ~foreign
        samples = tree.by_name(tree.total, first_of_name) if inclusive else tree.by_name(tree.own, ~foreign)
        judged = self.judge(samples)
        order = np.lexsort((-np.abs(judged.difference), ~judged.stands_out))
        order = order[samples[order].any(axis=1) & (order != 0)]
        names = [folded_stacks.plain(name) for name in tree.names]
        first = _table(judged, samples).assign(function=names, kind=kinds(tree)).iloc[order[:rows]]
        ends = [self._others(foreign), self._ends(samples, order[rows:], inclusive)]
        table = pd.concat([first, *(one for one in ends if len(one))], ignore_index=True)
        whole = table.iloc[-1]
        divisor = whole["difference_s"] if whole["stands_out"] else np.nan
        table["share_ratio"] = table["difference_s"] / divisor
        heads = ["function", "kind"]
        result: pd.DataFrame = table[heads + [name for name in table if name not in heads]]
        result.attrs = {
            "left": self.left.name, "right": self.right.name, "per": self.per.description, "unit": self.per.unit,
            "unit_s": self.per.unit_s, "time": "callees included" if inclusive else "self time",
        }  # fmt: skip
        return result

    def _foreign(self) -> Bools:
        """Return which frames are of programs that do not belong to the load."""
        tree = self.tree
        tops = tree.depth == 1
        result = np.zeros(len(tree), dtype=bool)
        result[tops] = processes.foreign([tree.names[at] for at in tree.name[tops]])
        return tree.inside(result)

    def _others(self, foreign: Bools) -> pd.DataFrame:
        """Return one row for all programs that do not belong to the load, or an empty table if there are none."""
        tree = self.tree
        tops = np.flatnonzero((tree.depth == 1) & foreign)
        if not len(tops):
            return pd.DataFrame()
        most = sorted(tops, key=lambda frame: -int(tree.total[frame].sum()))
        names = [folded_stacks.plain(tree.names[tree.name[frame]]) for frame in most]
        sums = tree.total[tops].sum(axis=0)[None, :]
        text = f"other programs ({units.shortened(names, 3)})"
        return _table(self.judge(sums), sums).assign(function=[text], kind="")

    def _ends(self, samples: Ints, rest: Sequence[int] | Ints, inclusive: bool) -> pd.DataFrame:
        rows = {TOTAL: self.tree.total[0]}
        if not inclusive:
            rows = {f"{REST} ({len(rest):,} functions)": samples[rest].sum(axis=0), **rows}
        # Each by itself: how sure the total is does not depend on what else is shown.
        tables = [_table(self.judge(one[None, :]), one[None, :]) for one in rows.values()]
        return pd.concat(tables, ignore_index=True).assign(function=list(rows), kind="")

    def judge(self, samples: Ints) -> Spread:
        """Compare samples [thing, round of any arm]."""
        return _judged(samples, [arm for arm in (self.left, self.right, self.control) if arm], self.per)


def difference(left: Arm, right: Arm, control: Arm | None = None, per: str = "packet") -> Difference:
    """Compare two arms.

    control: the left arm measured again (A/A). A difference that the control shows too does not stand out. per: a key
    of PER. Raises BadInput if an arm has no rounds, or if the work of a round is unknown.
    """
    there = [arm for arm in (left, right, control) if arm is not None]
    of = protocols.cost_unit(per)
    for arm in there:
        arms.seconds_per_sample(arm, of)
    tree = build_tree([each.stacks for arm in there for each in arm.rounds])
    return Difference(left, right, control, of, tree, _judged(tree.total, there, of))


def _judged(samples: Ints, there: Sequence[Arm], per: CostUnit) -> Spread:
    """Compare samples whose columns are the rounds of the arms `there`: left, right, and perhaps the control."""
    ends = np.cumsum([len(arm.rounds) for arm in there])[:-1]
    left, right, *again = [
        (columns, arms.seconds_per_sample(arm, per))
        for columns, arm in zip(np.split(samples, ends, axis=1), there, strict=True)
    ]
    runs = [[one.run for one in arm.rounds] for arm in there[:2]]
    return compared(*left, *right, run_variation(runs[0], runs[1]), again[0] if again else None)


def kinds(tree: Tree) -> list[str]:
    """Return the kind of each name of a tree: process, kernel or user."""
    processes = set(tree.name[tree.depth == 1].tolist()) - set(tree.name[tree.depth > 1].tolist())
    return [
        "process" if at in processes else "kernel" if name.endswith(folded_stacks.KERNEL) else "user"
        for at, name in enumerate(tree.names)
    ]


def _table(spread: Spread, samples: Ints) -> pd.DataFrame:
    columns: dict[str, npt.NDArray[np.float64]] = {}
    for name, middle, half in (
        ("left", spread.left.mean, spread.left.half),
        ("right", spread.right.mean, spread.right.half),
        ("difference", spread.difference, spread.half),
    ):
        columns |= {f"{name}_s": middle, f"{name}_low_s": middle - half, f"{name}_high_s": middle + half}
    # the control has the other columns
    sides = samples[:, : spread.left.rounds_count + spread.right.rounds_count]
    of = {"p": spread.p, "stands_out": spread.stands_out, "samples_count": sides.sum(axis=1)}
    return pd.DataFrame(columns | of)
