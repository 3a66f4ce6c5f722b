"""Significance between two sides: nothing stands out of an arm against itself, planted causes do, and intervals
hold."""

from collections.abc import Sequence

import numpy as np
import pytest
import synthetic_profiles as made

from labkit.analysis import flame, stats
from labkit.analysis.flame import significance

pytestmark = pytest.mark.long

BEFORE = made.PERIOD_S * 20_000 / made.PACKETS  # cost of a packet in the simulation, in seconds
PLACE = "process1;function3_[k];planted_[k]"
AGAIN = 20


def steady(name: str, count: int, by: int = 100, runs: Sequence[str] = ("",)) -> flame.Arm:
    """Return an arm with three rounds of each run: one function has this number of samples, and less and more."""
    counts = [(run, count + more) for run in runs for more in (-by, 0, by)]
    return flame.Arm(name, [flame.Round({"x;work_[k]": each}, 1e-9, 1, run=run) for run, each in counts])


def coloured(one: flame.Difference) -> set[str]:
    return {one.tree.names[name] for name in one.tree.name[one.frames.stands_out]}


@pytest.mark.parametrize("common", [0.05, 0.2])
def test_false_discoveries_of_an_arm_against_itself(common: float) -> None:
    """Of 20 comparisons of 2,000 frames under fresh noise, 5 % may err; 4 or more would in 2 % by chance.

    One error may colour many frames at once if it is noise that they all share.
    """
    result = [
        flame.difference(made.arm("a", 2 * seed, common=common), made.arm("b", 2 * seed + 1, common=common))
        for seed in range(AGAIN)
    ]
    assert sum(bool(coloured(one)) for one in result) < 4
    frames = sum(len(one.tree) for one in result)
    assert sum(int(one.frames.stands_out.sum()) for one in result) < 0.02 * frames


@pytest.mark.parametrize("share", [0.02, 0.2])
def test_planted_cause_is_named_first(share: float) -> None:
    """A planted cost, relative to a packet's time, is named first in nearly all of 20 comparisons.

    Few frames other than its callers are coloured.
    """
    first, others = 0, 0
    for seed in range(AGAIN):
        right = made.arm("b", 2 * seed + 1, planted={PLACE: share * BEFORE})
        one = flame.difference(made.arm("a", 2 * seed), right)
        row = one.functions().iloc[0]
        if row["function"] == "planted" and row["stands_out"]:
            first += 1
            assert row["difference_s"] == pytest.approx(share * BEFORE, rel=0.35)
            assert row["left_s"] == 0
        others += len(coloured(one) - {"planted_[k]", "function3_[k]", "process1", "all"})
    assert first >= AGAIN - 2
    assert others <= 3


def test_planted_saving_stands_out() -> None:
    left = made.arm("a", 1, planted={PLACE: 0.2 * BEFORE})
    table = flame.difference(left, made.arm("b", 2)).functions()
    assert table["function"][0] == "planted"
    assert table["difference_high_s"][0] < 0


def test_interval_coverage() -> None:
    """The 95 % interval of a planted cost of 5 % contains the true cost in about 95 % of 60 comparisons."""
    held = 0
    for seed in range(60):
        right = made.arm("b", 2 * seed + 1, planted={PLACE: 0.05 * BEFORE}, frames=50)
        table = flame.difference(made.arm("a", 2 * seed, frames=50), right).functions(60)
        row = table[table["function"] == "planted"].iloc[0]
        # log-normal noise with these deviations raises the mean by this factor
        truth = 0.05 * BEFORE * np.exp((0.05**2 + 0.1**2) / 2)
        held += row["difference_low_s"] <= truth <= row["difference_high_s"]
    assert held >= 52


def test_control_removes_differences_between_equals() -> None:
    left = made.arm("a", 1)
    right = made.arm("b", 2, planted={PLACE: 0.1 * BEFORE})
    again = made.arm("a (again)", 3, planted={PLACE: 0.12 * BEFORE})
    assert "planted_[k]" in coloured(flame.difference(left, right))
    assert "planted_[k]" in coloured(flame.difference(left, right, made.arm("a (again)", 3)))
    assert "planted_[k]" not in coloured(flame.difference(left, right, again))


def test_single_round_has_no_findings() -> None:
    one = flame.difference(made.arm("a", 1, rounds=1), made.arm("b", 2, planted={PLACE: BEFORE}))
    assert not coloured(one)
    table = one.functions()
    assert table[["difference_low_s", "p"]].isna().all(axis=None)
    assert table["difference_s"].iloc[-1] == pytest.approx(BEFORE, rel=0.5)
    assert "single round" in flame.sentence(one)
    assert "no spread" in flame.draw_difference(one).data["notes"][0]
    assert "half" not in flame.draw_difference(one).data


def test_intervals_by_hand() -> None:
    """With many samples in every round, only the spread between rounds matters, and scipy's t test gives the same
    result."""
    from scipy.stats import ttest_ind

    chance = np.random.default_rng(5)
    left, right = (chance.poisson(1e6 * np.exp(chance.normal(0, 0.1, (40, 5)))) for _ in range(2))
    each = np.full(5, 1e-3)
    result = significance.compared(left, each, right, each)
    assert result.p == pytest.approx(ttest_ind(left, right, axis=1).pvalue)
    unequal = significance.compared(left, each, right[:, :3], each[:3])
    assert unequal.p == pytest.approx(ttest_ind(left, right[:, :3], axis=1, equal_var=False).pvalue)
    for one, rounds, same in ((result, 5, True), (unequal, 3, False)):
        there = ttest_ind(left * 1e-3, right[:, :rounds] * 1e-3, axis=1, equal_var=same).confidence_interval()
        assert one.difference - one.half == pytest.approx(-there.high)
        assert one.difference + one.half == pytest.approx(-there.low)
    # Rounds that agree by chance do not make a frame with few samples significant.
    left, right = np.full((1, 5), 6), np.full((1, 5), 7)
    result = significance.compared(left, np.ones(5), right, np.ones(5))
    assert not result.stands_out[0]
    assert result.left.half[0] == pytest.approx(2.776445 * (6 / 5) ** 0.5)


def test_significant_intervals_exclude_zero() -> None:
    """One of two sides with three rounds scatters three times as much, so Welch's interval would contain 0."""
    result = flame.difference(steady("a", 20_000, 200), steady("b", 22_000, 600))
    whole = result.functions().iloc[-1]
    assert whole["stands_out"]
    assert 0 < whole["difference_low_s"] < whole["difference_s"] < whole["difference_high_s"]
    assert f"[{whole['difference_low_s'] * 1e9:.3g} ns" in flame.sentence(result)


def test_sentence_names_the_control_and_the_total() -> None:
    """The sides differ clearly, and the left side measured again is as far away."""
    arms = [steady("a", 20_000), steady("b", 24_000), steady("a (again)", 25_000)]
    sentence = flame.sentence(flame.difference(*arms))
    assert sentence.startswith("no evidence that b takes more or less CPU")
    assert ", but a measured again differs from itself by 5 µs [" in sentence
    assert "differs from itself" not in flame.sentence(flame.difference(*arms[:2]))
    both = flame.difference(steady("a", 20_000), steady("b", 20_010))
    assert flame.sentence(both).startswith("no evidence that b")
    total = significance.Estimate(1e-5, 1.2e-5, 2e-6, 5e-7, 1e-4)
    assert flame.sentence(both, total).startswith("b takes 2 µs [1.5 µs, 2.5 µs] more CPU per packet")


def test_false_discovery_rate_against_scipy() -> None:
    from scipy.stats import false_discovery_control

    chance = np.random.default_rng(2)
    for real in (0, 3, 30):
        p = np.concatenate([chance.uniform(size=500), chance.uniform(0, 1e-4, size=real)])
        assert (stats.discoveries(p) == (false_discovery_control(p) <= 1 - stats.CONFIDENCE)).all()
    assert not stats.discoveries(np.array([])).any()


def test_control_of_several_runs_is_within_them() -> None:
    """The left side and its control are arms of the same runs, so what runs differ by says nothing about them."""
    runs = ("one", "two")
    left, again = steady("a", 20_000, 40, runs), steady("a (again)", 20_050, 40, runs)
    result = flame.difference(left, steady("b", 34_000, 40, ("one b", "two b")), again)
    assert result.frames.control.half[0] < 3e-7
    assert result.functions().iloc[-1]["stands_out"]
