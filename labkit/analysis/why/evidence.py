"""Gather the evidence about one point of `labkit why`: work, code, settings, throughput, loss, other programs."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import conditions, protocols
from labkit.analysis.flame import load_profiles
from labkit.analysis.flame.significance import (
    TESTS_COUNT,
    Estimate,
    RunVariation,
    beyond_control,
    estimate,
    paired_mean,
    run_variation,
)
from labkit.analysis.why import causes, sections, switch_work, verdict, work
from labkit.analysis.why.counter_tables import observed_by
from labkit.analysis.why.environment import Setting
from labkit.analysis.why.selection import ProfiledPoint
from labkit.analysis.why.work import MIN_SHARE, Round, RoundTrips, Split

SPEED_SHARE = 0.05  # as BETWEEN_SHARE, for throughput
DISTURBED_SHARE = 0.10  # of all CPU time: above it, other programs make sizes less sure
# The least variance of each side's mean share: rounds with few samples may agree by chance.
FOREIGN_FLOORS = (1e-6, 1e-6)
# Of all CPU time. By so much more other programs have in a round that they disturb at times.
AT_TIMES_SHARE = 0.20
STOLEN_SHARE = 0.02  # of all CPU time: above it, the hypervisor makes sizes less sure
CLOSING = ("TCPToZeroWindowAdv", "TCPWantZeroWindowAdv")  # counters of TCP's MIB
CUT_SHARE = 0.01  # of the samples of the experiment that reach the limit of the stack
CLOSED_COUNT = 20  # closed windows per gigabyte: fewer are usual
FRAMES_SHARE = 0.10  # the least relative difference in frames per gigabyte that counts


@dataclass(frozen=True)
class Evidence:
    """All evidence about a point.

    speed: throughput, or the rate of pings. parts: the kinds of work of an Open vSwitch or a relay, if a side has one.
    relay: all work of a relay. closed: how often receivers of TCP closed their window, per gigabyte that arrived, in
    each round with the kernel's counters. round_trips: the time of a round trip and its parts, if it is known.
    others: the programs outside the experiment with their largest shares of the CPUs, the busiest first.
    """

    point: ProfiledPoint
    names: tuple[str, str]
    rounds: tuple[Sequence[Round], Sequence[Round]]
    run_variation: RunVariation | None
    split: Split
    frames: causes.Frames
    causes: Sequence[causes.Cause]
    settings: Sequence[Setting]
    speed: Estimate | None
    foreign: Estimate
    steal: tuple[float, float]
    busy: tuple[float, float]
    others: tuple[Mapping[str, float], Mapping[str, float]] = field(default_factory=lambda: ({}, {}))
    frames_per_work: Estimate | None = None
    loss_by_hop: tuple[dict[str, float], dict[str, float]] = field(default_factory=lambda: ({}, {}))
    parts: Sequence[switch_work.Part] = ()
    closed: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    round_trips: RoundTrips | None = None
    relay: switch_work.Part | None = None

    @functools.cached_property
    def measured(self) -> verdict.MeasuredVerdict | None:
        """The verdict of the measuring rounds, whatever it says."""
        return verdict.of_point(self.point)

    @property
    def verdict(self) -> verdict.MeasuredVerdict | None:
        """The verdict of the measuring rounds, if it says faster or slower."""
        return self.measured if self.measured is not None and self.measured.is_certain else None

    @property
    def contradicts_verdict(self) -> bool:
        """Whether the profiled rounds show a difference in speed that is opposite to the verdict."""
        if self.verdict is None or self.speed is None or not self.speed_differs:
            return False
        is_right_slower = (self.speed.difference < 0) == self.point.judged.higher_is_better
        return is_right_slower != self.verdict.is_right_slower

    @property
    def foreign_rounds(self) -> tuple[int, int]:
        """Return in how many rounds of each side other programs had much more CPU time than in any of the other."""
        left, right = ([one.foreign_share for one in side] for side in self.rounds)
        return _above(left, right), _above(right, left)

    @property
    def cut(self) -> Setting | None:
        """Return the setting that cuts off the stacks of one side's profiles, or None."""
        name = "sysctl kernel.perf_event_max_stack"
        one = next((each for each in self.settings if each.name == name), None)
        if one is None or not (one.left.isdigit() and one.right.isdigit()):
            return None
        at = int(int(one.right) < int(one.left))
        limit = min(int(one.left), int(one.right)) - 1
        own = [
            (stack.count(";"), samples)
            for each in self.rounds[at]
            for stack, samples in each.stacks.items()
            if not stack.startswith(f"{load_profiles.OUTSIDE};")
        ]
        at_limit = sum(samples for depth, samples in own if depth >= limit)
        return one if at_limit > CUT_SHARE * sum(samples for _, samples in own) else None

    @property
    def windows_differ(self) -> bool:
        """Return whether receivers of TCP closed their window much more often on one side, in every round."""
        left, right = self.closed
        if min(len(left), len(right)) < 3:
            return False
        few, many = (left, right) if np.mean(left) < np.mean(right) else (right, left)
        return min(many) > max(few) and float(np.mean(many)) >= 4 * float(np.mean(few)) + CLOSED_COUNT

    @property
    def foreign_differs(self) -> bool:
        """Whether other programs had a larger share of the CPUs on one side than on the other, judged by rounds."""
        foreign, limit = self.foreign, conditions.FOREIGN_SHARE
        if not np.isfinite(foreign.difference) or abs(foreign.difference) < limit:
            return False
        is_certain = foreign.p < 1 - conditions.FOREIGN_CONFIDENCE
        return is_certain or abs(foreign.difference) >= AT_TIMES_SHARE

    def explained_by(self, left: float, right: float) -> bool:
        """Return whether CPU time taken from the experiment (shares of all CPUs) can explain the effect.

        The side that lost more is not the better one, and the effect is not greater than `greatest_slowdown`.
        """
        more, bound = right - left, conditions.greatest_slowdown(left, right)
        if self.speed is not None and self.speed_differs:
            worse = -1 if self.point.judged.higher_is_better else 1
            return worse * self.speed.difference * more > 0 and abs(self.speed.difference) <= bound
        if not self.cost_differs:
            return self.verdict is None or (more > 0) == self.verdict.is_right_slower
        total = self.split.total
        less, most = sorted((total.left, total.right))
        return total.difference * more > 0 and most <= math.exp(bound) * less

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs, or the hypervisor, had so much CPU time that sizes are less sure."""
        return self.has_foreign_load or max(self.steal) >= STOLEN_SHARE

    @property
    def has_foreign_load(self) -> bool:
        """Whether other programs had much CPU time, or more of it on one side."""
        return max(self.foreign.left, self.foreign.right) >= DISTURBED_SHARE or self.foreign_differs

    @property
    def cost_differs(self) -> bool:
        """Whether the sides certainly differ in CPU time per unit of work; never if a thread polls."""
        return not self.polls and self.split.total.certain

    @property
    def polls(self) -> bool:
        """Whether a side's switch polls: its CPU time per packet is the inverse of the speed."""
        return switch_work.polls(self.point)

    @property
    def speed_differs(self) -> bool:
        """Whether the sides certainly differ in speed."""
        return self.speed is not None and self.speed.certain

    @property
    def has_effect(self) -> bool:
        """Whether the sides differ in CPU time or in speed."""
        return self.cost_differs or self.speed_differs

    @property
    def p(self) -> float:
        """The p value of the hypothesis that nothing differs, from all tests that may claim a difference."""
        speed = 1.0 if self.speed is None else self.speed.p
        cost = [] if self.polls else [self.split.total.p, self.frames.any_p]
        return min(TESTS_COUNT * min([speed, *cost]), 1.0)

    @property
    def is_repetition(self) -> bool:
        """Whether both sides are the same arm of one run, measured twice (the A/A control)."""
        left, right = self.point.sides[:2]
        alike = left.values == right.values and left.topology == right.topology
        return self.run_variation is None and alike and left.arm != right.arm

    def matters(self, difference_s: float) -> bool:
        """Return whether a difference is large enough to be named as a cause."""
        whole = max(self.split.total.left, self.split.total.right)
        return abs(difference_s) >= MIN_SHARE * whole


def gather(
    point: ProfiledPoint,
    names: tuple[str, str],
    rounds: tuple[Sequence[Round], Sequence[Round]],
    control: Sequence[Round],
    settings: Sequence[Setting],
) -> Evidence:
    """Gather the evidence. control: the profiled rounds of left measured again (A/A), if there are any."""
    runs = [[one.run for one in side] for side in rounds]
    variation = run_variation(runs[0], runs[1])
    frames = causes.judge_rounds(*rounds, variation, control)
    unit = protocols.find(point.protocol).unit
    foreign, elsewhere = (np.array([one.foreign_share for one in side]) for side in rounds)
    polls = switch_work.polls(point)
    by_code = [] if polls else causes.ranked_causes(frames)
    parts = [] if polls else switch_work.parts(point, rounds, variation, control)
    steal = [float(np.mean([one.steal_share for one in side])) for side in rounds]
    busy = [float(np.mean([one.busy_share for one in side])) for side in rounds]
    others = [conditions.other_programs(rows["folder"]) for rows in point.rows[:2]]
    return Evidence(
        point, names, rounds, variation, work.split(*rounds, unit, variation, control), frames, by_code, settings,
        _speed_beyond_control(point, variation), estimate(foreign, elsewhere, None, FOREIGN_FLOORS),
        (steal[0], steal[1]), (busy[0], busy[1]),
        (others[0], others[1]), _frames(point, variation),
        (work.loss_by_hop(point.rows[0]), work.loss_by_hop(point.rows[1])), parts,
        (_closed(point, 0), _closed(point, 1)), work.round_trips(*rounds, variation, control),
        None if polls else switch_work.relay((*rounds, control), variation),
    )  # fmt: skip


def _speed_beyond_control(point: ProfiledPoint, variation: RunVariation | None) -> Estimate | None:
    size = _speed(point.rows[:2], point.judged.metric, variation)
    if size is None or point.rows[2] is None:
        return size
    return beyond_control(size, _speed((point.rows[0], point.rows[2]), point.judged.metric, None))


def _speed(rows: Sequence[pd.DataFrame], column: str, variation: RunVariation | None) -> Estimate | None:
    """Return the logarithm of the throughput (for pings: of the round-trip time) of both sides' profile rounds.

    Only rounds of observers that do not trace count. Within one run, rounds with an observer of both sides are paired.
    Return None if a side has fewer than two rounds.
    """
    sides = [_speeds(one[one["status"].eq("ok")], column) for one in rows]
    common = sides[0].keys() & sides[1].keys()
    if variation is None and len(common) > 1:
        differences = np.array([sides[1][one] - sides[0][one] for one in sorted(common)])
        return paired_mean(differences)
    if min(map(len, sides)) < 2:
        return None
    labels = [tuple(run for run, _ in side) for side in sides]
    assumed = None if variation is None else RunVariation((labels[0], labels[1]), SPEED_SHARE, absolute=True)
    left, right = (np.array(list(side.values())) for side in sides)
    return estimate(left, right, assumed)


def _speeds(rows: pd.DataFrame, column: str) -> dict[tuple[str, str], float]:
    """Return the mean logarithm of each round of each run."""
    own = rows[rows["observer"].isna() | rows["observer"].isin(sections.QUIET)]
    own = own[own[column].gt(0)]
    return {
        (str(run), str(number)): float(np.log(some.astype(float)).mean())
        for (run, number), some in own.groupby(["folder", "round"], sort=True)[column]
    }


def _frames(point: ProfiledPoint, variation: RunVariation | None) -> Estimate | None:
    """Return the frames that arrived per gigabyte, from rounds with the kernel's counters; None if these are
    missing."""
    if protocols.find(point.protocol).work != "gigabyte":
        return None
    left, right, again = (dict(_frames_by_round(rounds)) for rounds in observed_by(point, "counters"))
    if min(len(left), len(right)) < 2:
        return None
    runs = tuple(run for run, _ in left), tuple(run for run, _ in right)
    a, b, control = (np.array(list(side.values())) for side in (left, right, again))
    assumed = None if variation is None else RunVariation(runs, FRAMES_SHARE / 2)
    return estimate(a, b, assumed, again=control)


def _frames_by_round(
    seen: Sequence[tuple[Mapping[str, Any], pd.Series]],
) -> Iterator[tuple[tuple[str, int], float]]:
    """Yield the run and the round, and the frames that arrived per gigabyte."""
    for report, row in seen:
        pairs = [one for one in report.get("loss", []) if one.get("unit") == "frames"]
        if size := sum(one.get("received_bytes") or 0 for one in pairs):
            count = sum(one.get("received_count") or 0 for one in pairs)
            yield (str(row["folder"]), int(row["round"])), count / size * 1e9


def _above(values: Sequence[float], others: Sequence[float]) -> int:
    limit = max((one for one in others if np.isfinite(one)), default=0.0) + AT_TIMES_SHARE
    return sum(one >= limit for one in values)


def _closed(point: ProfiledPoint, side: int) -> tuple[float, ...]:
    """Return how often receivers of TCP closed their window, per gigabyte that arrived, in each round."""
    result = []
    for report, _ in observed_by(point, "counters")[side]:
        size = sum(one.get("received_bytes") or 0 for one in report.get("loss", []))
        groups = (space.get("mibs", {}).get("TcpExt", {}) for space in report.get("namespaces", {}).values())
        count = sum(own.get(name, 0) for own in groups for name in CLOSING)
        if size and protocols.find(point.protocol).work == "gigabyte":
            result.append(count / size * 1e9)
    return tuple(result)
