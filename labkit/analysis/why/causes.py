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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from labkit.analysis import stats
from labkit.analysis.flame import folded_stacks
from labkit.analysis.flame.frame_tree import Tree, build_tree
from labkit.analysis.flame.significance import (
    CLAIM_SHARE,
    MIN_SAMPLES,
    Bools,
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
    size: seconds per unit that arrived. path: the code path that the function belongs to. below: the functions below it
    that carry most of the time. expected: whether the path of a setting that differs was tested by itself, and not all
    functions; the p of its size is then that of this test. own_share: the share of the samples that programs of the
    experiment took in calls of their own, and not in interrupts, which serve anybody.
    """

    function: str
    callers: tuple[str, ...]
    change: str
    size: Estimate
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
    def difference_s(self) -> float:
        """Return right minus left, in seconds per unit that arrived."""
        return self.size.difference

    @property
    def is_set_up(self) -> bool:
        """Return whether other programs cannot have added the code: it runs only where somebody set it up, in calls of
        the experiment's own programs or where a program observes it."""
        if self.path is None or self.change == "changed":
            return False
        return self.path.observes or (self.own_share > OWN_SHARE and self.path in code_paths.SET_UP)


@dataclass(frozen=True)
class Frames:
    """All stacks of both sides as one tree below their stages.

    own, total: seconds per unit that arrived [frame, round], of the frame alone, and with callees. own_squares: as own,
    of the squared values of the samples (the counting variance). split: the number of the left side's rounds.

    By function (the index in tree.names): left, right: seconds in each round; samples; halves: half the 95 % interval
    of the difference; p; stands_out: whether the difference stands out among all functions. any_p: the p value of
    the hypothesis that no function differs (Simes).

    run_variation: the variation between runs, None within one run. control: the same for the left side measured again,
    if it was.
    """

    tree: Tree
    own: Floats
    own_squares: Floats
    total: Floats
    split: int
    left: Floats
    right: Floats
    samples: Floats
    halves: Floats
    p: Floats
    stands_out: Bools
    any_p: float
    run_variation: RunVariation | None
    control: Frames | None = None

    @property
    def difference(self) -> Floats:
        """Return right minus left of each function."""
        result: Floats = self.right.mean(axis=1) - self.left.mean(axis=1)
        return result


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
    each = np.zeros(tree.own.shape)
    for stage in STAGES:
        weight = sum(np.mean([one.passed[stage] for one in side]) for side in (left, right)) / 2
        below = tree.inside((tree.depth == 1) & _named(tree, stage))
        each[below] = [weight * one.seconds_per_sample(stage) for one in both]
    own, own_squares = tree.own * each, tree.own * each**2
    total, squares = tree.sum_below(own), tree.sum_below(own_squares)
    outermost = tree.outermost()
    values, counted, samples = (tree.by_name(one, outermost) for one in (total, squares, tree.total))
    _, (half, p) = estimate_many(values[:, :split], values[:, split:], variation, _least(counted, split))
    again = judge_rounds(left, control, None) if len(control) > 1 else None
    if again is not None:
        columns = zip(again.difference, again.halves, again.p, strict=True)
        known = dict(zip(again.tree.names, columns, strict=True))
        middle, reach, p_again = np.array([known.get(name, (0.0, 0.0, 1.0)) for name in tree.names]).T
        difference = values[:, split:].mean(axis=1) - values[:, :split].mean(axis=1)
        half, p = beyond_controls(difference, half, p, middle, reach, p_again)
    count = samples.sum(axis=1)
    tested = count >= MIN_SAMPLES
    kept = np.zeros(len(p), dtype=bool)
    kept[tested] = stats.discoveries(p[tested], CLAIM_SHARE)
    # Simes: the procedure of Benjamini and Hochberg selects something at every larger share.
    ordered = np.sort(p[tested])
    any_p = float(np.min(ordered * len(ordered) / np.arange(1, len(ordered) + 1), initial=1.0))
    return Frames(
        tree, own, own_squares, total, split=split, left=values[:, :split], right=values[:, split:], samples=count,
        halves=half, p=p, stands_out=kept, any_p=any_p, run_variation=variation, control=again,
    )  # fmt: skip


def _least(squares: Floats, split: int) -> tuple[Floats, Floats]:
    """Return the variances of both means that sample counting alone causes."""
    rounds = (split, squares.shape[1] - split)
    return squares[:, :split].sum(axis=1) / rounds[0] ** 2, squares[:, split:].sum(axis=1) / rounds[1] ** 2


def _frames_of(tree: Tree, is_wanted: Callable[[str], bool]) -> Bools:
    """Return which frames have a wanted name."""
    return np.array([is_wanted(name) for name in tree.names], dtype=bool)[tree.name]


def _named(tree: Tree, *names: str) -> Bools:
    """Return which frames have one of these names."""
    return _frames_of(tree, lambda name: name in names)


def ranked_causes(frames: Frames) -> list[Cause]:
    """Return the causes, the largest difference first."""
    tree, difference = frames.tree, frames.difference
    left, right = frames.left.mean(axis=1), frames.right.mean(axis=1)
    plain = [folded_stacks.plain(name) for name in tree.names]
    stages = {at for at, name in enumerate(tree.names) if name in STAGES}
    second = set(tree.name[tree.depth == 2].tolist())
    processes = {at for at in second if not tree.names[at].endswith(folded_stacks.KERNEL)}
    chosen = [
        at
        for at in np.argsort(-np.abs(difference))
        if frames.stands_out[at]
        and at not in stages | processes | {0}
        and not code_paths.HELPERS.fullmatch(plain[at])
    ][:MAX_FUNCTIONS]
    below = _below(frames, set(chosen))
    change = {at: _change(left[at], right[at]) for at in chosen}
    only = {
        at: _self_time(frames, [_code_of_one_side(frames, at, change[at])])
        for at in chosen
        if change[at] != "changed"
    }
    # The test of the whole function counts for its part as well, and the part must be certain by itself.
    only = {at: replace(size, p=max(size.p, float(frames.p[at]))) for at, size in only.items()}
    small = {at for at, size in only.items() if abs(size.difference) < MOVED * abs(difference[at])}
    moved = small | {at for at, size in only.items() if not size.certain}
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
        if any(abs(below.get((one, at), 0.0)) >= CARRIES * abs(difference[at]) for one in top):
            continue  # a path that is new or gone contains its difference
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
        size = _self_time(frames, [_code_of_one_side(frames, *half) for half in halves.items()])
        largest = max(own, key=lambda at: abs(own[at].difference_s))
        for at in own:
            del result[at]
        if max(size.p, min(float(frames.p[at]) for at in own)) < CLAIM_SHARE / len(paths):
            count = sum(one.samples_count for one in own.values())
            result[largest] = replace(own[largest], change="changed", size=size, samples_count=count)
    return list(result.values())


def _halves(frames: Frames, path: code_paths.Path, own: dict[int, Cause]) -> dict[int, str]:
    """Return the functions of a path that one side alone calls, and the change of each: its causes, and functions of a
    similar size that do not stand out, for example because the control widened their intervals."""
    left, right = frames.left.mean(axis=1), frames.right.mean(axis=1)
    least_s = BELOW_SHARE * max((abs(one.difference_s) for one in own.values()), default=math.inf)
    result = {at: one.change for at, one in own.items()}
    for at, name in enumerate(frames.tree.names):
        large = abs(right[at] - left[at]) > least_s and not frames.stands_out[at]
        if large and _is_of(path, name) and (change := _change(left[at], right[at])) != "changed":
            result[at] = change
    return result


def _is_of(path: code_paths.Path, name: str) -> bool:
    """Return whether a function of the kernel belongs to a path."""
    return name.endswith(folded_stacks.KERNEL) and bool(path.functions.fullmatch(folded_stacks.plain(name)))


def _time_in(frames: Frames, choose: Callable[[Tree], Bools]) -> Estimate:
    """Return the self time of the frames that a function chooses, in seconds per unit that arrived."""
    rows, split = choose(frames.tree), frames.split
    values = frames.own[rows].sum(axis=0)
    [left], [right] = _least(frames.own_squares[rows].sum(axis=0)[None, :], split)
    size = estimate(values[:split], values[split:], frames.run_variation, (float(left), float(right)))
    return size if frames.control is None else beyond_control(size, _time_in(frames.control, choose))


def _self_time(frames: Frames, code: Sequence[tuple[str, frozenset[str]]]) -> Estimate:
    """Return the self time of functions and their callees together. code: the names of a function, and of the callees
    that do not count."""

    def choose(tree: Tree) -> Bools:
        each = [tree.inside(_named(tree, name)) & ~_named(tree, *without) for name, without in code]
        return np.asarray(np.any(each, axis=0))

    return _time_in(frames, choose)


def part(frames: Frames, path: code_paths.Path) -> Estimate:
    """Return the time of all functions of a path together, each sample counted once: seconds per unit that arrived."""
    return _time_in(frames, lambda tree: tree.inside(_frames_of(tree, lambda name: _is_of(path, name))))


def common_functions(frames: Frames) -> Estimate:
    """Return the self time of the functions that both sides call, in seconds per unit that arrived."""
    both = np.minimum(frames.left.mean(axis=1), frames.right.mean(axis=1)) > 0
    names = {name for name, there in zip(frames.tree.names, both, strict=True) if there}
    return _time_in(frames, lambda tree: _frames_of(tree, names.__contains__))


def _code_of_one_side(frames: Frames, at: int, change: str) -> tuple[str, frozenset[str]]:
    """Return the function of a path that is new or gone, and those callees that the other side calls in other
    places."""
    tree, here = frames.tree, int(change == "new")
    inside = tree.inside(tree.name == at)
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


def _cause(frames: Frames, at: int, change: str, plain: Sequence[str], size: Estimate) -> Cause:
    tree, samples = frames.tree, frames.tree.total.sum(axis=1)
    own = tree.name == at
    inner: Counter[int] = Counter()
    for frame in np.flatnonzero(tree.inside(own) & ~own):
        inner[int(tree.name[frame])] += int(samples[frame])
    count = max(int(frames.samples[at]), 1)
    # What the other side calls as well, in another place, is not part of a path that is new or gone.
    left, right = frames.left.mean(axis=1), frames.right.mean(axis=1)
    names = [
        plain[one]
        for one, inside in inner.most_common()
        if inside >= BELOW_SHARE * count and change in ("changed", _change(left[one], right[one]))
    ]
    kernel = tree.names[at].endswith(folded_stacks.KERNEL)
    path = own_path = code_paths.path_of_function(plain[at]) if kernel else None
    if kernel and change != "changed" and not (own_path is not None and own_path.interface):
        path = code_paths.path_of_functions([plain[at], *names]) or own_path
    outer = _outermost(tree, own)
    by_load = int(samples[outer[_load_frames(tree)[outer]]].sum())
    share = by_load / max(int(samples[outer].sum()), 1)
    below = tuple(names[:3])
    return Cause(plain[at], _callers(tree, outer), change, size, count, path, below, own_share=share)


def _outermost(tree: Tree, own: Bools) -> npt.NDArray[np.intp]:
    """Return those of some frames that have none of them above."""
    return np.flatnonzero(own & ~tree.inside(own)[tree.parent])


def _callers(tree: Tree, outer: npt.NDArray[np.intp]) -> tuple[str, ...]:
    """Return the two most frequent callers of these frames."""
    callers = Counter[str]()
    for frame in outer:
        caller = tree.names[tree.name[tree.parent[frame]]]
        callers[folded_stacks.plain(caller)] += int(tree.total[frame].sum())
    return tuple(name for name, _ in callers.most_common(2) if name not in STAGES)


def _load_frames(tree: Tree) -> Bools:
    """Return which frames are of a program of the experiment, in code that it called itself."""

    def is_for_anybody(name: str) -> bool:
        plain = folded_stacks.plain(name)
        return bool(INTERRUPT.fullmatch(plain) or MACHINE.fullmatch(plain))

    of_programs = tree.inside((tree.depth == 1) & ~_named(tree, RECEIVE))
    return of_programs & ~tree.inside((tree.depth > 1) & _frames_of(tree, is_for_anybody))


def path_cause(frames: Frames, path: code_paths.Path) -> Cause | None:
    """Return the difference in the time of a path as a cause, or None if no function of it was sampled."""
    tree, size = frames.tree, part(frames, path)
    outer = _outermost(tree, _frames_of(tree, lambda name: _is_of(path, name)))
    if not len(outer) or not (size.left or size.right):
        return None
    samples: Counter[str] = Counter()
    for frame in outer:
        samples[folded_stacks.plain(tree.names[tree.name[frame]])] += int(tree.total[frame].sum())
    [(function, _)] = samples.most_common(1)
    change = _change(size.left, size.right)
    return Cause(function, _callers(tree, outer), change, size, samples.total(), path, (), expected=True)
