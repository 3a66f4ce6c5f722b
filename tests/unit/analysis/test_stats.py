"""Error rates of verdicts on data with and without a known effect, with normal noise and with recorded, heavy-tailed
noise."""

import functools
import math
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy
from conftest import ROOT
from scipy.special import stdtrit

from labkit.analysis import stats
from labkit.analysis.stats import Effect, Floats
from labkit.common.errors import BadInput

COUNT = 500
FOUND = {"faster", "slower"}
QUIET = Effect(1.0, 0.99, 1.01, 10, "Student's t over 10 rounds", wide_low=0.98, wide_high=1.02)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261121)


@functools.cache
def recorded(slice_s: float) -> tuple[Floats, Floats]:
    """Return log-ratios of the recorded slices: (macvlan_bridge to veth_bridge, veth_bridge to itself)."""
    table = pd.read_csv(ROOT / "tests" / "samples" / "noise_slices.csv", comment="#")
    some = table[table["slice_s"] == slice_s]
    m, a1, a2 = (some[f"{name}_Gbps"].to_numpy(float) for name in ("m", "a1", "a2"))
    return stats.log_ratios(m, a1, a2)


def normal_rounds(rng: np.random.Generator, rounds: int, noise: float, ratio: float) -> tuple[Floats, Floats]:
    """Return log-ratios of arms with independent log-normal noise; the arm is `ratio` times the baseline."""
    arm, baseline, control = np.exp(rng.normal(0, noise, (3, rounds)))
    return stats.log_ratios(ratio * arm, baseline, control)


def resampled(rng: np.random.Generator, slice_s: float, setups: int, slices: int) -> tuple[Floats, Floats]:
    """Return log-ratios of `setups` blocks of consecutive recorded slices without an effect, but with heavy tails.

    Without an effect, the labels of the compared arms are exchangeable. So each slice's labels are swapped at random:
    macvlan's own effect is subtracted and the sign of the log-ratio is random. Blocks keep the correlation of
    neighbours.
    """
    arm, control = recorded(slice_s)
    starts = rng.integers(0, arm.size - slices, setups)
    places = (starts[:, None] + np.arange(slices)).ravel()
    signs = rng.choice([-1.0, 1.0], (2, places.size))
    return (arm - stats.centre(arm))[places] * signs[0], control[places] * signs[1]


Make = Callable[[], tuple[Floats, Floats]]


def words(count: int, make: Make, setups: list[int] | None = None) -> Iterator[str]:
    slices = setups is not None
    for _ in range(count):
        arm, control = make()
        of = functools.partial(stats.effect, setups=setups, slices=slices, placed=True)
        yield stats.verdict(of(arm), of(control)).word


@pytest.mark.parametrize("ratio", [1.1, 1 / 1.1])
def test_power_for_ten_percent_under_three_percent_noise(rng: np.random.Generator, ratio: float) -> None:
    result = list(words(COUNT, lambda: normal_rounds(rng, 10, 0.03, ratio)))
    assert result.count("faster" if ratio > 1 else "slower") / COUNT >= 0.95
    assert result.count("slower" if ratio > 1 else "faster") == 0


def test_false_alarm_rate_on_recorded_noise(rng: np.random.Generator) -> None:
    labels = [number for number in range(5) for _ in range(12)]
    alarms = sum(word in FOUND for word in words(COUNT, lambda: resampled(rng, 0.05, 5, 12), labels))
    assert alarms / COUNT <= 0.07


@pytest.mark.long
def test_t_interval_coverage_on_recorded_noise(rng: np.random.Generator) -> None:
    """Heavy tails make Student's t conservative, also with 15 rounds and more. It needs no replacement there."""
    effects = [stats.effect(resampled(rng, 0.2, 40, 1)[0]) for _ in range(COUNT)]
    assert 0.02 <= sum(not holds(effect) for effect in effects) / COUNT <= 0.065


def test_power_on_recorded_effect() -> None:
    arm, control = recorded(0.1)
    for labels in (None, [place * 5 // arm.size for place in range(arm.size)]):
        effect, again = (stats.effect(one, labels, True, placed=True) for one in (arm, control))
        assert stats.verdict(effect, again).word == "faster"
    pooled, again = (stats.effect(one, slices=True) for one in (arm, control))
    assert stats.half_width(pooled) < 0.04
    assert stats.verdict(pooled, again, arm="macvlan_bridge", baseline="veth_bridge").sentence == (
        "macvlan_bridge is 9.9 % faster than veth_bridge [6.7 %, 13 %] (Hodges-Lehmann over 150 slices)"
    )


@pytest.mark.long
def test_different_set_ups_do_not_decide(rng: np.random.Generator) -> None:
    """Effects of 12 recorded slices in each of five set-ups, which differ by 5 %."""
    labels, made = np.repeat(np.arange(5), 12), []
    for _ in range(400):
        x = resampled(rng, 0.1, 1, 60)[0] + rng.normal(0, 0.05, 5)[labels]
        made.append(
            (stats.effect(x, labels.tolist(), slices=True, placed=True), stats.effect(x, slices=True))
        )
    alarms, pooled = (np.mean([not holds(effect) for effect in each]) for each in zip(*made, strict=True))
    assert alarms < 0.08
    assert pooled > 0.1  # the rate without regard to set-ups
    report = [effect for effect, _ in made if effect.disagree]
    assert all("Student's t over 5 set-ups, which disagree, of" in effect.how for effect in report)


def regimes() -> tuple[list[Floats], list[Floats]]:
    """Return 75 set-ups of one recorded UDP flow in two regimes: log-ratios macvlan to bridge, and bridge to itself."""
    table = pd.read_csv(ROOT / "tests/samples/udp_one_pair_slices.csv.gz")
    speeds = table.pivot_table("throughput_bps", ["round", "slice"], "arm").dropna()
    arm, control = stats.log_ratios(
        speeds["macvlan_bridge"].to_numpy(),
        speeds["veth_bridge"].to_numpy(),
        speeds["veth_bridge_again"].to_numpy(),
    )
    labels = speeds.index.get_level_values("round").to_numpy()
    return [arm[labels == one] for one in range(75)], [control[labels == one] for one in range(75)]


@functools.cache
def recorded_loads() -> dict[str, tuple[list[Floats], list[Floats]]]:
    """Return 252 set-ups of each of four loads with balanced placement, by protocol and pairs: log-ratios macvlan to
    bridge, and bridge to itself."""
    result = {}
    table = pd.read_csv(ROOT / "tests/samples/four_loads_slices.csv.gz")
    for (protocol, pairs), own in table.groupby(["protocol", "pairs"]):
        speeds = (
            own[name].to_numpy(float) for name in ("macvlan_bridge", "veth_bridge", "veth_bridge_again")
        )
        labels = own["round"].to_numpy()
        both = [[one[labels == at] for at in np.unique(labels)] for one in stats.log_ratios(*speeds)]
        result[f"{protocol} {pairs}"] = both[0], both[1]
    return result


def effect_of(setups: list[Floats], placed: bool = True) -> Effect:
    """Return the effect in set-ups, whose slices labkit or the scheduler placed."""
    labels = [number for number, one in enumerate(setups) for _ in one]
    return stats.effect(np.concatenate(setups), labels, slices=True, placed=placed)


@pytest.mark.long
@pytest.mark.parametrize(
    ("load", "setups", "times", "most_alarms"),
    [("tcp 1", 5, 400, 0.07), ("udp 1", 10, 400, 0.07), ("two regimes", 5, 1000, 0.06)],
)
def test_coverage_of_recorded_loads(
    rng: np.random.Generator, load: str, setups: int, times: int, most_alarms: float
) -> None:
    """Set-ups drawn at random cover the ratio of the whole series, and the baseline seldom differs from itself.

    In two regimes the scheduler placed the flows, and few set-ups are often in one of them.
    """
    placed = load != "two regimes"
    series, control = recorded_loads()[load] if placed else regimes()
    assert len(series) == (252 if placed else 75)
    truth = float(np.mean([stats.centre(one) for one in series]))
    drawn = [rng.choice(len(series), setups, replace=False) for _ in range(times)]
    hits = sum(holds(effect_of([series[at] for at in some], placed), truth) for some in drawn)
    alarms = sum(not holds(effect_of([control[at] for at in some], placed)) for some in drawn)
    assert hits / times >= 0.93
    assert alarms / times <= most_alarms


def holds(effect: Effect, log_ratio: float = 0.0) -> bool:
    return (
        effect.low is not None
        and effect.high is not None
        and effect.low <= math.exp(log_ratio) <= effect.high
    )


@pytest.mark.parametrize("n", [8, stats.EXACT_UP_TO, stats.EXACT_UP_TO + 1])
def test_interval_agrees_with_the_signed_rank_test(rng: np.random.Generator, n: int) -> None:
    """Wilcoxon's test (scipy's) does not reject at 5 % just inside the interval, and rejects just outside it."""
    x = 0.2 * rng.standard_t(3, n) + 0.1
    result = stats.effect(x, slices=True)

    def p(shift: float) -> float:
        exact = n <= stats.EXACT_UP_TO
        method = "exact" if exact else "approx"
        return float(scipy.stats.wilcoxon(x - shift, correction=not exact, method=method).pvalue)

    for end, outwards in ((math.log(result.low), -1e-7), (math.log(result.high), 1e-7)):
        assert p(end + outwards) <= 0.0501
        assert p(end - outwards) > 0.0499


def test_disagreement_agrees_with_kruskal_wallis(rng: np.random.Generator) -> None:
    seen = set()
    for _ in range(50):
        groups = [np.round(rng.normal(0, 1, size), 1) for size in (5, 12, 20)]  # rounded, so with ties
        seen.add(disagree := stats.setups_disagree(groups))
        assert disagree == (scipy.stats.kruskal(*groups).pvalue < stats.DISAGREE_BELOW)
    assert seen == {True, False}
    assert not stats.setups_disagree(groups[:1])


def test_estimates_by_hand() -> None:
    assert stats.centre(np.array([1.0, 2.0, 6.0])) == 2.75  # the median of 1, 1.5, 2, 3.5, 4, 6
    assert stats.centre(np.array([3.0])) == 3
    result = stats.effect([0.1, 0.2, 0.3])
    assert result.ratio == pytest.approx(math.exp(0.2))
    assert result.low == pytest.approx(math.exp(0.2 - 4.302653 * 0.1 / math.sqrt(3)))
    assert result.how == "Student's t over 3 rounds"
    assert stats.half_width(result) == pytest.approx(math.exp(4.302653 * 0.1 / math.sqrt(3)) - 1)
    result = stats.effect([0.1, 0.3, 0.2, 0.4], ["a", "a", "b", "b"])
    assert result.low == pytest.approx(stats.effect([0.2, 0.3]).low)
    result = stats.difference([0.0, 0.2], [0.5, 0.7, 0.6])
    assert result.ratio == pytest.approx(math.exp(0.5))
    error, freedom = math.sqrt(0.01 + 0.01 / 3), (0.01 + 0.01 / 3) ** 2 / (0.0001 + (0.01 / 3) ** 2 / 2)
    assert result.low == pytest.approx(math.exp(0.5 - stdtrit(freedom, 0.975) * error))
    assert stats.difference([0.1], [0.2, 0.3]).low is None
    with pytest.raises(BadInput):
        stats.difference([], [0.1])


def test_two_thousand_slices_time_and_memory(rng: np.random.Generator) -> None:
    x, setups = rng.standard_t(3, 2000), [place // 100 for place in range(2000)]
    begin = time.process_time()
    stats.effect(x, setups, slices=True)
    took_s = time.process_time() - begin
    tracemalloc.start()
    stats.effect(x, setups, slices=True)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert took_s < 0.2
    assert peak_bytes < 50e6


def test_small_samples() -> None:
    with pytest.raises(BadInput, match="at least one"):
        stats.effect([])
    with pytest.raises(BadInput, match="finite"):
        stats.effect([0.1, math.nan])
    with pytest.raises(BadInput, match="set-up each"):
        stats.effect([0.1, 0.2], [1])
    one = stats.effect([0.1])
    assert (one.low, one.high, stats.half_width(one)) == (None, None, math.inf)
    assert stats.effect([0.1, 0.2, 0.15], slices=True).how == "Student's t over 3 slices"
    same = stats.effect([0.1] * 20, [0] * 10 + [1] * 10, slices=True)
    assert same.low == same.high == pytest.approx(math.exp(0.1))
    wild = stats.effect([-600.0, 600.0])
    assert (wild.low, wild.ratio, stats.half_width(wild)) == (0, 1, math.inf)


def test_baseline_measured_twice_is_averaged(rng: np.random.Generator) -> None:
    arm, control = stats.log_ratios([8.0, 8.0, 8.0], [1.0, math.nan, 2.0], [4.0, 2.0, math.nan])
    assert np.exp(arm) == pytest.approx([4, 4, 4])
    assert np.exp(control[:1]) == pytest.approx([4])
    assert np.isnan(control[1:]).all()
    ratio, again = normal_rounds(rng, 20000, 0.03, 1)
    assert ratio.var() / again.var() == pytest.approx(0.75, rel=0.05)
    assert abs(np.corrcoef(ratio, again)[0, 1]) < 0.03
    with pytest.raises(BadInput, match="no ratio"):
        stats.log_ratios([1.0], [0.0])
    with pytest.raises(BadInput, match="equal numbers"):
        stats.log_ratios([1.0], [1.0, 2.0])


def effect(ratio: float, low: float | None, high: float | None, setups: int | None = None) -> Effect:
    return Effect(ratio, low, high, 10, "Student's t over 10 rounds", setups_count=setups)


def band(low: float, high: float) -> Effect:
    """Return a control with this interval."""
    return replace(QUIET, low=low, high=high, wide_low=0.8, wide_high=1.2)


DIFFERS = replace(QUIET, ratio=1.1, wide_low=1.01, wide_high=1.2)
SLIGHTLY = replace(
    QUIET, ratio=1.013, wide_low=1.005, wide_high=1.021
)  # says nothing against a ratio of 0.057
ONCE = replace(QUIET, low=None, high=None, wide_low=None, wide_high=None)
ONLY = replace(DIFFERS, low=1.01, high=1.2, wide_low=None, wide_high=None)


def test_verdict_words() -> None:
    for result, control, word, says in (
        (effect(1.09, 1.06, 1.13), QUIET, "faster", "m is 9 % faster than v [6 %, 13 %]"),
        (effect(0.91, 0.87, 0.94), QUIET, "slower", "m is 9 % slower than v [6 %, 13 %]"),
        (effect(1.02, 1.01, 1.03), QUIET, "faster", "(Student's t over 10 rounds), a difference below 5 %"),
        (effect(1.01, 0.98, 1.04), QUIET, "no difference beyond 5 %", "no difference beyond 5 % between m and v:"),
        (effect(1.01, 0.9, 1.1), QUIET, "no evidence", "no evidence of a difference between m and v: ratio 1.01 ["),
        (effect(1.0, 1e-4, 36), QUIET, "no evidence", "ratio 1 [wider than a factor of 100]"),
        (effect(1.01, None, None), QUIET, "no evidence", "a single measurement has no interval; measured ratio 1.01"),
        (effect(1.2, 1.1, 1.3, setups=1), QUIET, "no evidence", "all slices come from one set-up"),
        (effect(1.5, 1.4, 1.6), None, "no evidence", "v was not measured twice"),
        (effect(1.5, 1.4, 1.6), ONCE, "no evidence", "measured twice in one round only"),
        (effect(1.5, 1.4, 1.6), DIFFERS, "no evidence", "because v differs from itself: ratio 1.1 [1.01, 1.2] at 99 %"),
        (effect(1.5, 1.4, 1.6), ONLY, "no evidence", "v differs from itself"),
        (effect(0.057, 0.053, 0.061), SLIGHTLY, "slower", "widened"),
        (effect(0.9, 0.837, 0.963), SLIGHTLY, "no evidence", "widened"),
        (effect(1.1, 1.023, 1.177), SLIGHTLY, "no evidence", "widened"),
        # Significant, but the baseline differs from itself by as much.
        (effect(1.07, 1.06, 1.08), band(0.9, 1.12), "no evidence", "differs from itself by as much"),
        (effect(1.07, 1.06, 1.08), band(0.95, 1.06), "faster", "m is 7 % faster"),
        (effect(0.94, 0.93, 0.95), band(0.93, 1.05), "no evidence", "differs from itself by as much"),
        (effect(0.94, 0.93, 0.95), band(0.96, 1.05), "slower", "m is 6 % slower"),
    ):  # fmt: skip
        verdict = stats.verdict(result, control, 0.05, True, arm="m", baseline="v")
        assert (verdict.word, says in verdict.sentence) == (word, True), verdict.sentence
    for result, word, says in (
        (effect(0.8, 0.7, 0.9), "faster", "m is faster than v: it takes 20 % less time [10 %, 30 %]"),
        (effect(1.2, 1.1, 1.3), "slower", "m is slower than v: it takes 20 % more time [10 %, 30 %]"),
    ):
        verdict = stats.verdict(result, QUIET, 0.05, False, arm="m", baseline="v")
        assert (verdict.word, says in verdict.sentence) == (word, True), verdict.sentence
    assert stats.verdict(effect(1.01, 0.99, 1.02), QUIET, 0.0225, True).word == "no difference beyond 2.25 %"
    with pytest.raises(BadInput, match="margin"):
        stats.verdict(result, QUIET, 1)


def test_an_interval_is_widened_by_the_disagreement() -> None:
    """A disagreement widens by what Student's t of one degree of freedom makes of it."""
    for ratio in (0.057, 1.1):
        wide = stats.widened(effect(ratio, ratio * 0.93, ratio * 1.07), SLIGHTLY)
        assert wide.low == pytest.approx(ratio * 0.93 / 1.013**12.706, rel=1e-3)


def normal_arms(rng: np.random.Generator, disagreement: float, ratio: float) -> tuple[Floats, Floats]:
    """Return log-ratios of ten rounds whose arms also differ for as long as the run lasts."""
    own = rng.normal(0, disagreement, 3)[:, None] + rng.normal(0, 0.03, (3, 10))
    base, again, arm = own
    return arm + math.log(ratio) - (base + again) / 2, again - base


@pytest.mark.parametrize("disagreement", [0.0, 0.03])
def test_widening_claims_no_more_than_a_veto(rng: np.random.Generator, disagreement: float) -> None:
    """Equal arms get no more verdicts than where a control that differs from itself excludes every verdict."""
    made = [normal_arms(rng, disagreement, 1) for _ in range(COUNT)]
    judged = [(stats.verdict(*map(stats.effect, one)).word in FOUND, stats.effect(one[1])) for one in made]
    alarms = sum(found for found, _control in judged)
    vetoed = sum(found and not stats.differs_from_itself(control) for found, control in judged)
    assert alarms - vetoed <= 0.01 * COUNT
