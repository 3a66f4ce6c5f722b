"""Intervals of `labkit why`: the rate of false alarms without an effect."""

from collections import Counter

import numpy as np
import pytest
import scipy

from labkit.analysis import protocols
from labkit.analysis.flame import significance
from labkit.analysis.why import causes, work


@pytest.mark.parametrize("count", [2, 3, 5])
def test_paired_rounds_have_the_interval_of_students_t(count: int) -> None:
    differences = np.random.default_rng(12).normal(size=count)
    estimate, there = significance.paired_mean(differences), scipy.stats.ttest_1samp(differences, 0)
    interval = there.confidence_interval()
    assert (estimate.low, estimate.high) == pytest.approx((interval.low, interval.high))
    assert estimate.p == pytest.approx(there.pvalue)


@pytest.mark.long
@pytest.mark.parametrize("runs", [2, 3, 5])
def test_false_alarm_rate_between_several_runs(runs: int) -> None:
    """Runs that vary as labkit assumes are seldom claimed to differ, however few there are."""
    rng = np.random.default_rng(12)
    draws, share = 2000, 0.10
    names = tuple(tuple(f"{side}{run}" for run in range(runs) for _round in range(5)) for side in "ab")
    variation = significance.RunVariation((names[0], names[1]), share)
    assert variation.is_measured
    alarms = 0
    for _ in range(draws):
        sides = [
            np.exp(rng.normal(0, share, runs)).repeat(5) * np.exp(rng.normal(0, 0.04, 5 * runs)) for _ in "ab"
        ]
        alarms += significance.estimate(*sides, variation).p < significance.CLAIM_SHARE
    assert alarms / draws < 1.3 * significance.CLAIM_SHARE


FUNCTIONS = [
    f"{stage}{at // 8};caller{at // 4}_[k];function{at}_[k]"
    for stage in ("send", "receive")
    for at in range(32)
]


def made_rounds(
    rng: np.random.Generator, count: int, added: float = 0.0
) -> tuple[list[work.Round], np.ndarray]:
    """Return rounds of one arm, and their speeds as logarithms. added: the share of time of a function that only it
    has."""
    rounds = []
    for _ in range(count):
        shared = float(np.exp(rng.normal(0, 0.05)))
        samples = {stage: Counter[str]() for stage in work.STAGES}
        for at, stack in enumerate(FUNCTIONS):
            stage = work.SEND if stack.startswith("send") else work.RECEIVE
            own = float(np.exp(rng.normal(0, 0.05)))
            samples[stage][stack] = int(rng.poisson(20 * (1 + at % 5) * shared * own))
        if added:
            total = sum(map(sum, (one.values() for one in samples.values())))
            samples[work.RECEIVE][f"{FUNCTIONS[40]};planted_[k]"] = int(rng.poisson(added * total))
        rounds.append(work.Round("run", samples, 1e-3, 1e5, dict.fromkeys(work.STAGES, 1.0), 0.0, 0.0, 0.5))
    return rounds, rng.normal(0, 0.05, count)


def smallest_p(
    left: tuple[list[work.Round], np.ndarray], right: tuple[list[work.Round], np.ndarray]
) -> float:
    total = work.split(left[0], right[0], protocols.find("udp").unit, None).total
    frames = causes.judge_rounds(left[0], right[0], None)
    return min(total.p, significance.paired_mean(right[1] - left[1]).p, frames.any_p)


@pytest.mark.long
def test_question_has_its_error_rate() -> None:
    """Of arms of one run without a difference, at most 5 % have one that could be claimed, in whichever test."""
    rng = np.random.default_rng(3)
    draws = 600
    alarms = sum(
        smallest_p(made_rounds(rng, 3), made_rounds(rng, 3)) < significance.CLAIM_SHARE for _ in range(draws)
    )
    assert alarms / draws <= 0.05


def test_new_function_is_found_in_nearly_every_run() -> None:
    rng = np.random.default_rng(4)
    times = [
        causes.judge_rounds(made_rounds(rng, 5)[0], made_rounds(rng, 5, 0.05)[0], None).any_p
        < significance.CLAIM_SHARE
        for _ in range(40)
    ]
    assert sum(times) >= 39


def arm(stacks: dict[str, int]) -> list[work.Round]:
    """Return five rounds that hardly differ, with these samples in the kernel's receive stage."""
    each = [{stack: count + at * 100 for stack, count in stacks.items()} for at in range(5)]
    empty, ones = {stage: Counter[str]() for stage in work.STAGES}, dict.fromkeys(work.STAGES, 1.0)
    return [work.Round("run", empty | {work.RECEIVE: Counter(of)}, 1.0, 1.0, ones, 0, 0, 0) for of in each]


def test_a_baseline_that_differs_from_itself_widens_what_code_costs() -> None:
    """New code costs a million samples, and the control had a hundredth of it: its interval reaches 12.7 times that.

    IPv6's code replaces IPv4's, of which the control had 10,000 samples more: they explain a net cost of 50,000. With
    900,000 more, IPv4's code is no difference any more, and IPv6's is not new all the same.
    """
    other, new = {"net_rx_action_[k]": 10**6}, {"net_rx_action_[k];strange_[k]": 10**6}
    small = {stack: count // 100 for stack, count in new.items()}
    frames = causes.judge_rounds(arm(other), arm(other | new), None, arm(other | small))
    [cause] = causes.ranked_causes(frames)
    assert (cause.function, cause.change) == ("strange", "new")
    assert 0.127e6 < cause.size.half < 0.14e6
    four, six = "net_rx_action_[k];ip_rcv_[k]", "net_rx_action_[k];ipv6_rcv_[k]"
    for more, noise, function in (
        (50_000, 10_000, []), (500_000, 10_000, ["ipv6_rcv"]), (500_000, 900_000, []),
    ):  # fmt: skip
        left, right, again = ({four: 10**6}, {six: 10**6 + more}, {four: 10**6 + noise})
        frames = causes.judge_rounds(arm(left), arm(right), None, arm(again))
        assert [(one.function, one.change) for one in causes.ranked_causes(frames)] == [
            (name, "changed") for name in function
        ]
