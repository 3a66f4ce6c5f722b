"""Find the code that carries a difference in CPU time. It compares subtrees of the call tree, not self time.

A cause is the lowest function whose subtree carries the difference. A function that only one side has (a new code path,
or one that is gone) is named at its top, together with its caller. A function that only passes a difference on to its
callees is not named.

Sizes are per unit that arrived. Every stage has the same weight on both sides, the mean of both, so that a change in
loss does not look like a change in code (labkit.analysis.why.work).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.analysis import stats
from labkit.analysis.flame import folded_stacks
from labkit.analysis.flame.frame_tree import Tree, build_tree
from labkit.analysis.flame.significance import (
    CLAIM_SHARE,
    MIN_SAMPLES,
    Estimate,
    Floats,
    RunVariation,
    beyond_control,
    beyond_controls,
    estimate,
    estimate_many,
)
from labkit.analysis.why import code_paths
from labkit.analysis.why.work import INTERRUPT, MACHINE, RECEIVE, STAGES, Round

NEW_SHARE = 0.02  # of the other side's time: with less, a side does not have the path
CARRIES = 0.6  # of a function's difference: if callees carry this much, the function only passes it on
BELOW_SHARE = 0.25  # of a path's samples: a function with fewer does not name the path
MAX_FUNCTIONS = 80  # functions examined
# A path of which less than this share is new or gone only calls from elsewhere what the other side calls as well.
MOVED = 0.5
OWN_SHARE = 0.8  # of a path's samples: with more, other programs do not run it


@dataclass(frozen=True)
class Cause:
    """Code that carries a part of the difference.

    function: the top function of that code. callers: its callers, most frequent first. change: new, gone or changed.
    left_s to high_s: seconds per unit that arrived. path: the code path that the function belongs to. below: the
    functions below it that carry most of the time. expected: whether the path of a setting that differs was tested by
    itself, and not all functions; p is then that of this test. own_share: the share of the samples that programs of the
    experiment took in calls of their own, and not in interrupts, which serve anybody.
    """

    function: str
    callers: tuple[str, ...]
    change: str
    left_s: float
    right_s: float
    difference_s: float
    low_s: float
    high_s: float
    p: float
    samples_count: int
    path: code_paths.Path | None
    below: tuple[str, ...]
    expected: bool = False
    own_share: float = 0.0

    @property
    def name(self) -> str:
        """Return the name of the code path in terms of the field, or else the name of the function."""
        return self.path.name if self.path is not None else self.function

    @property
    def is_set_up(self) -> bool:
        """Return whether other programs cannot have added the code: it runs only where somebody set it up, in calls of
        the experiment's own programs or where a program observes it."""
        if self.path is None or self.change == "changed":
            return False
        return self.path.observes or (self.own_share > OWN_SHARE and self.path in code_paths.SET_UP)

    @property
    def size(self) -> Estimate:
        """Return the seconds per unit that arrived with their interval."""
        half = (self.high_s - self.low_s) / 2
        return Estimate(self.left_s, self.right_s, self.difference_s, half, self.p)


@dataclass(frozen=True)
class Frames:
    """All stacks of both sides as one tree below their stages.

    total: seconds per unit that arrived [frame, round], callees included. squares: the sum over samples of their
    squared values (the counting variance). split: the number of the left side's rounds.

    By function (the index in tree.names): left, right: seconds in each round; samples; halves: half the 95 % interval
    of the difference; p; stands_out: whether the difference stands out among all functions. any_p: the p value of
    the hypothesis that no function differs (Simes).

    own, own_squares: as total and squares, of the frame alone. run_variation: the variation between
    runs, None within one run. control: the same for the left side measured again, if it was.
    """

    tree: Tree
    total: Floats
    squares: Floats
    split: int
    left: Floats
    right: Floats
    samples: Floats
    halves: Floats
    p: Floats
    stands_out: Floats
    any_p: float
    own: Floats
    own_squares: Floats
    run_variation: RunVariation | None
    control: Frames | None = None


def judge_rounds(
    left: Sequence[Round],
    right: Sequence[Round],
    variation: RunVariation | None,
    control: Sequence[Round] = (),
) -> Frames:
    """Compare every function of both sides, with all its callees. control: the rounds of left measured again: what
    they show as well is no difference."""
    both = [*left, *right]
    stacks = [
        {f"{stage};{stack}": count for stage in STAGES for stack, count in one.samples[stage].items()}
        for one in both
    ]
    tree = build_tree(stacks, idle=True)
    split = len(left)
    weight = {
        stage: (np.mean([one.passed[stage] for one in left]) + np.mean([one.passed[stage] for one in right]))
        / 2
        for stage in STAGES
    }
    worth = np.array([[weight[stage] * one.seconds_per_sample(stage) for one in both] for stage in STAGES])
    of_stage = _stages(tree)
    each = np.where(of_stage[:, None] < 0, 0.0, worth[of_stage])
    own, own_squares = ((tree.own * value).astype(float) for value in (each, each**2))
    total, squares = _sum_below(tree, own), _sum_below(tree, own_squares)
    outermost = np.flatnonzero(tree.outermost())
    values, counted, samples = (
        _by_name(tree, one, outermost) for one in (total, squares, tree.total.astype(float))
    )
    (_, _), (half, p) = estimate_many(values[:, :split], values[:, split:], variation, _least(counted, split))
    again = judge_rounds(left, control, None) if len(control) > 1 else None
    if again is not None:
        by_function = _by_function(again)
        middle, reach, p_again = np.array([by_function.get(name, (0.0, 0.0, 1.0)) for name in tree.names]).T
        difference = values[:, split:].mean(axis=1) - values[:, :split].mean(axis=1)
        half, p = beyond_controls(difference, half, p, middle, reach, p_again)
    count = samples.sum(axis=1)
    tested = count >= MIN_SAMPLES
    kept = np.zeros(len(p), dtype=bool)
    if tested.any():
        kept[tested] = stats.discoveries(p[tested], CLAIM_SHARE)
    any_p = _simes(p[tested])
    return Frames(
        tree, total, squares, split, values[:, :split], values[:, split:], count, half, p, kept, any_p, own,
        own_squares, variation, again,
    )  # fmt: skip


def _by_function(frames: Frames) -> dict[str, tuple[float, float, float]]:
    """Return the difference, half its interval and p of each function."""
    difference = frames.right.mean(axis=1) - frames.left.mean(axis=1)
    of = zip(difference, frames.halves, frames.p, strict=True)
    return {
        name: (float(a), float(b), float(c)) for name, (a, b, c) in zip(frames.tree.names, of, strict=True)
    }


def _simes(p: Floats) -> float:
    """Return the p value of the hypothesis that all are null: the procedure of Benjamini and Hochberg selects something
    at every larger share."""
    return float((np.sort(p) * len(p) / np.arange(1, len(p) + 1)).min()) if len(p) else 1.0


def _least(squares: Floats, split: int) -> tuple[Floats, Floats]:
    """Return the variances of both means that sample counting alone causes."""
    rounds = (split, squares.shape[1] - split)
    return squares[:, :split].sum(axis=1) / rounds[0] ** 2, squares[:, split:].sum(axis=1) / rounds[1] ** 2


def _stages(tree: Tree) -> npt.NDArray[np.int64]:
    """Return the stage of each frame, -1 for the root."""
    result = np.full(len(tree), -1)
    for frame in range(1, len(tree)):
        parent = tree.parent[frame]
        result[frame] = STAGES.index(tree.names[tree.name[frame]]) if parent == 0 else result[parent]
    return result


def _sum_below(tree: Tree, own: npt.NDArray[Any]) -> Floats:
    """Return the sum of each frame's own values and those of all frames below it."""
    total = own.astype(float)
    for frame in range(len(tree) - 1, 0, -1):  # parents precede their children
        total[tree.parent[frame]] += total[frame]
    return total


def _by_name(tree: Tree, total: Floats, outermost: npt.NDArray[np.intp]) -> Floats:
    """Return the time of each function with all its callees; recursion does not count time twice."""
    result = np.zeros((len(tree.names), total.shape[1]))
    np.add.at(result, tree.name[outermost], total[outermost])
    return result


def ranked_causes(frames: Frames) -> list[Cause]:
    """Return the causes, the largest difference first."""
    tree = frames.tree
    left, right = frames.left.mean(axis=1), frames.right.mean(axis=1)
    difference = right - left
    plain = [folded_stacks.plain(name) for name in tree.names]
    stages = {at for at, name in enumerate(tree.names) if name in STAGES}
    processes = {int(tree.name[frame]) for frame in range(1, len(tree)) if tree.depth[frame] == 2 and not
                 tree.names[tree.name[frame]].endswith(folded_stacks.KERNEL)}  # fmt: skip
    chosen = [
        at
        for at in np.argsort(-np.abs(difference))
        if frames.stands_out[at]
        and at not in stages | processes | {0}
        and not code_paths.HELPERS.fullmatch(plain[at])
    ][:MAX_FUNCTIONS]
    below = _below(frames, set(chosen))
    change = {at: _change(left[at], right[at]) for at in chosen}
    only = {at: _only_of_one_side(frames, at, change[at]) for at in chosen if change[at] != "changed"}
    # The test of the whole function counts for its part as well, and the part must be certain by itself.
    only = {at: replace(size, p=max(size.p, float(frames.p[at]))) for at, size in only.items()}
    moved = {
        at
        for at, size in only.items()
        if abs(size.difference) < MOVED * abs(difference[at]) or not size.certain
    }
    chosen = [at for at in chosen if at not in moved]
    top = [
        at
        for at in chosen
        if change[at] != "changed"
        and not any(
            change[other] == change[at] and abs(below.get((other, at), 0.0)) >= 0.5 * abs(difference[at])
            for other in chosen
            if other != at
        )
    ]
    kept = list(top)
    depth = {at: sum((other, at) in below for other in chosen) for at in chosen}
    for at in sorted((one for one in chosen if change[one] == "changed"), key=lambda one: -depth[one]):
        if _above(at, top, below, difference):
            continue
        inside = [one for one in kept if (at, one) in below]
        outer = [one for one in inside if not any((other, one) in below for other in inside if other != one)]
        carried = sum(below[at, one] for one in outer)
        if carried * difference[at] > 0 and abs(carried) >= CARRIES * abs(difference[at]):
            continue
        kept = [one for one in kept if one in top or (at, one) not in below] + [at]
    made = {at: _cause(frames, at, change[at], plain, only.get(at) or _whole(frames, at)) for at in kept}
    return sorted(_net(frames, made), key=lambda one: -abs(one.difference_s))


def _net(frames: Frames, made: dict[int, Cause]) -> list[Cause]:
    """Return the causes, with one net cause for each path of which one function is new and another is gone.

    There code took the place of similar code (IPv6 of IPv4, Geneve of VXLAN), so neither function shows what the
    change costs.
    """
    result = dict(made)
    paths = {one.path.name: one.path for one in made.values() if one.path is not None}
    for path in paths.values():
        own = {at: one for at, one in made.items() if one.path is path and one.change != "changed"}
        halves = _halves(frames, path, own)
        if len(set(halves.values())) < 2:
            continue
        of = _self_time(frames, [_code_of_one_side(frames, *half) for half in halves.items()])
        largest = max(own, key=lambda at: abs(own[at].difference_s))
        for at in own:
            del result[at]
        if max(of.p, min(float(frames.p[at]) for at in own)) < CLAIM_SHARE / len(paths):
            result[largest] = replace(
                own[largest], change="changed", left_s=of.left, right_s=of.right, difference_s=of.difference,
                low_s=of.low, high_s=of.high, p=of.p, samples_count=sum(one.samples_count for one in own.values()),
            )  # fmt: skip
    return list(result.values())


def _halves(frames: Frames, path: code_paths.Path, own: dict[int, Cause]) -> dict[int, str]:
    """Return the functions of a path that one side alone calls, and the change of each: its causes, and functions of a
    similar size that do not stand out, for example because the control widened their intervals."""
    left, right = frames.left.mean(axis=1), frames.right.mean(axis=1)
    least_s = BELOW_SHARE * max((abs(one.difference_s) for one in own.values()), default=math.inf)
    others = {
        at: _change(left[at], right[at])
        for at, name in enumerate(frames.tree.names)
        if abs(right[at] - left[at]) > least_s and not frames.stands_out[at] and _is_of(path, name)
    }
    return {at: one.change for at, one in own.items()} | {
        at: change for at, change in others.items() if change != "changed"
    }


def _is_of(path: code_paths.Path, name: str) -> bool:
    """Return whether a function of the kernel belongs to a path."""
    return name.endswith(folded_stacks.KERNEL) and bool(path.functions.fullmatch(folded_stacks.plain(name)))


def _only_of_one_side(frames: Frames, at: int, change: str) -> Estimate:
    """Return the time of a path that is new or gone, without functions that the other side calls in other places."""
    return _self_time(frames, [_code_of_one_side(frames, at, change)])


def _self_time(frames: Frames, code: Sequence[tuple[str, frozenset[str]]]) -> Estimate:
    """Return the self time of functions and their callees together. code: the names of a function, and of the callees
    that do not count."""
    rows = np.any([_below_function(frames.tree, name, without) for name, without in code], axis=0)
    values, squares = frames.own[rows].sum(axis=0), frames.own_squares[rows].sum(axis=0)
    least = _least(squares[None, :], frames.split)
    size = estimate(
        values[: frames.split],
        values[frames.split :],
        frames.run_variation,
        (float(least[0][0]), float(least[1][0])),
    )
    return size if frames.control is None else beyond_control(size, _self_time(frames.control, code))


def _below_function(tree: Tree, function: str, without: Set[str] = frozenset()) -> npt.NDArray[np.bool_]:
    """Return which frames are of a function or of its callees, without some of these."""
    own, left_out = (
        np.array([name in some for name in tree.names])[tree.name] for some in ({function}, without)
    )
    inside = np.zeros(len(tree), dtype=bool)
    for depth in range(1, int(tree.depth.max()) + 1):
        level = np.flatnonzero(tree.depth == depth)
        inside[level] = inside[tree.parent[level]] | own[level]
    return np.asarray(inside & ~left_out)


def _code_of_one_side(frames: Frames, at: int, change: str) -> tuple[str, frozenset[str]]:
    """Return the function of a path that is new or gone, and those callees that the other side calls in other
    places."""
    tree, here = frames.tree, int(change == "new")
    inside = _below_function(tree, tree.names[at])
    sides = [frames.own[:, : frames.split].mean(axis=1), frames.own[:, frames.split :].mean(axis=1)]
    count = len(tree.names)
    within, beside, elsewhere = (
        np.bincount(tree.name, weights=weights, minlength=count)
        for weights in (sides[here] * inside, sides[here] * ~inside, sides[1 - here] * ~inside)
    )
    # A function moved here if it takes much less time in its other places than on the other side.
    moved = (within > 0) & (elsewhere - beside > 0.5 * within) & (beside < 0.5 * elsewhere)
    return tree.names[at], frozenset(tree.names[one] for one in np.flatnonzero(moved))


def _whole(frames: Frames, at: int) -> Estimate:
    """Return the time of a function with all its callees."""
    left, right = float(frames.left[at].mean()), float(frames.right[at].mean())
    return Estimate(left, right, right - left, float(frames.halves[at]), float(frames.p[at]))


def _above(at: int, top: Sequence[int], below: dict[tuple[int, int], float], difference: Floats) -> bool:
    """Return whether a path that is new or gone contains the function's difference."""
    return any(abs(below.get((one, at), 0.0)) >= CARRIES * abs(difference[at]) for one in top)


def _change(left: float, right: float) -> str:
    if left <= NEW_SHARE * right:
        return "new"
    return "gone" if right <= NEW_SHARE * left else "changed"


def _below(frames: Frames, chosen: set[int]) -> dict[tuple[int, int], float]:
    """Return the difference (right minus left) of the second function's time below the first, for each pair of
    functions."""
    tree = frames.tree
    each = frames.total[:, frames.split :].mean(axis=1) - frames.total[:, : frames.split].mean(axis=1)
    result: dict[tuple[int, int], float] = {}
    for frame in range(1, len(tree)):
        name = int(tree.name[frame])
        if name not in chosen:
            continue
        upper, seen = int(tree.parent[frame]), set[int]()
        while upper > 0:
            of = int(tree.name[upper])
            if of == name:
                break  # a recursive function counts at its outermost frame
            if of in chosen:
                seen.add(of)
            upper = int(tree.parent[upper])
        else:
            for of in seen:
                result[of, name] = result.get((of, name), 0.0) + float(each[frame])
    return result


def _cause(
    frames: Frames,
    at: int,
    change: str,
    plain: Sequence[str],
    of: Estimate,
) -> Cause:
    tree = frames.tree
    callers: Counter[str] = Counter()
    inner: Counter[int] = Counter()
    totals = tree.total.sum(axis=1)
    inside = np.zeros(len(tree), dtype=bool)
    of_load, by_load, by_all = _load_frames(tree, plain), 0, 0
    for frame in range(1, len(tree)):
        parent = int(tree.parent[frame])
        own = int(tree.name[frame]) == at
        inside[frame] = inside[parent] or own
        if own and not inside[parent]:
            callers[plain[int(tree.name[parent])]] += int(totals[frame])
            by_all += int(totals[frame])
            by_load += int(totals[frame]) if of_load[frame] else 0
        elif inside[frame] and not own:
            inner[int(tree.name[frame])] += int(totals[frame])
    size = max(int(frames.samples[at]), 1)
    # What the other side calls as well, in another place, is not part of a path that is new or gone.
    left, right = frames.left.mean(axis=1), frames.right.mean(axis=1)
    names = [
        plain[one]
        for one, count in inner.most_common()
        if count >= BELOW_SHARE * size and change in ("changed", _change(left[one], right[one]))
    ]
    kernel = tree.names[at].endswith(folded_stacks.KERNEL)
    own_path = code_paths.path_of_function(plain[at]) if kernel else None
    path = own_path
    if kernel and change != "changed" and not (own_path is not None and own_path.interface):
        path = code_paths.path_of_functions([plain[at], *names])
    return Cause(
        plain[at],
        tuple(name for name, _ in callers.most_common(2) if name not in STAGES),
        change,
        of.left,
        of.right,
        of.difference,
        of.low,
        of.high,
        of.p,
        size,
        path if path is not None else own_path,
        tuple(names[:3]),
        own_share=by_load / max(by_all, 1),
    )


def _load_frames(tree: Tree, plain: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which frames are of a program of the experiment, in code that it called itself."""
    result = np.zeros(len(tree), dtype=bool)
    for frame in range(1, len(tree)):
        name, parent = plain[tree.name[frame]], int(tree.parent[frame])
        of_stage = parent == 0 and name != RECEIVE
        result[frame] = of_stage or bool(
            result[parent] and not INTERRUPT.fullmatch(name) and not MACHINE.fullmatch(name)
        )
    return result


def path_cause(frames: Frames, path: code_paths.Path) -> Cause | None:
    """Return the difference in the time of a path as a cause, or None if no function of it was sampled."""
    tree = frames.tree
    outer = _outermost(tree, path)
    size = part(frames, path, frames.run_variation)
    if not outer or not (size.left or size.right):
        return None
    samples, callers = Counter[str](), Counter[str]()
    totals = tree.total.sum(axis=1)
    for frame in outer:
        samples[folded_stacks.plain(tree.names[tree.name[frame]])] += int(totals[frame])
        callers[folded_stacks.plain(tree.names[tree.name[tree.parent[frame]]])] += int(totals[frame])
    return Cause(
        samples.most_common(1)[0][0], tuple(name for name, _ in callers.most_common(2) if name not in STAGES),
        _change(size.left, size.right), size.left, size.right, size.difference, size.low, size.high, size.p,
        samples.total(), path, (), expected=True,
    )  # fmt: skip


def part(frames: Frames, path: code_paths.Path, variation: RunVariation | None) -> Estimate:
    """Return the time of all functions of a path together, each sample counted once: seconds per unit that arrived."""
    outer = _outermost(frames.tree, path)
    values, squares = frames.total[outer].sum(axis=0), frames.squares[outer].sum(axis=0)
    least = _least(squares[None, :], frames.split)
    size = estimate(
        values[: frames.split], values[frames.split :], variation, (float(least[0][0]), float(least[1][0]))
    )
    return size if frames.control is None else beyond_control(size, part(frames.control, path, None))


def _outermost(tree: Tree, path: code_paths.Path) -> list[int]:
    """Return the frames of a path's functions that have no such frame above them."""
    names = {at for at, name in enumerate(tree.names) if _is_of(path, name)}
    inside, outer = np.zeros(len(tree), dtype=bool), []
    for frame in range(1, len(tree)):
        parent, own = int(tree.parent[frame]), int(tree.name[frame]) in names
        if own and not inside[parent]:
            outer.append(frame)
        inside[frame] = inside[parent] or own
    return outer
