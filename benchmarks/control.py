"""Count how often a verdict is wrong, and how often an effect is found, where the baseline differs from itself.

The arms are those of recordings: an equal arm is macvlan_bridge without its long-run ratio, so that its set-ups vary as
they did, and an effect is that arm times a ratio. Of simulated arms it is known how much they differ for a whole run.
Three rules are compared: no rule at all, no verdict where the control differs from itself, and labkit's (the interval
is widened by that difference, `stats.widened`).
"""

import gzip
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.promise import NotMeasuredError, Promise
from labkit.analysis import stats
from labkit.analysis.stats import Effect, Floats
from labkit.common.units import counted

SAMPLES = Path(__file__).resolve().parents[1] / "tests" / "samples"
SETUPS = 10
DRAWS = 1000
NOISE = 0.03
RATIOS = (0.057, 0.228, 0.9, 1.1, 2.0)
FOUND = ("faster", "slower")
ALARMS = 0.05  # of comparisons of equal arms
QUIET = Effect(1.0, 1.0, 1.0, SETUPS, "")  # a control that excludes nothing

# The log-ratios of the arm and of the control, and the set-up of each.
Comparison = tuple[Floats, Floats, list[int]]


@dataclass(frozen=True)
class Source:
    """Where comparisons of equal arms come from, and whether their numbers are of slices."""

    name: str
    draw: Callable[[np.random.Generator], Comparison]
    slices: bool


@dataclass(frozen=True)
class Rates:
    """Shares of the comparisons: with a verdict by each rule, with a control that differs from itself, and with an
    interval that contains the true ratio, before and after it is widened."""

    without: float
    vetoed: float
    widened: float
    differs: float
    covered: float
    covered_widened: float


def promises(quick: bool) -> Iterator[Promise]:
    """Yield the false alarms and the power of each source (a minute; a fifth of that with --quick)."""
    draws = DRAWS // 5 if quick else DRAWS
    for source in [*recordings(), *map(simulation, (0.0, 0.005, 0.03, 0.1))]:
        for ratio in (1.0, *RATIOS):
            one = rates(source, ratio, draws)
            equal = ratio == 1.0
            yield Promise(
                f"equal arms with a verdict, {source.name}"
                if equal
                else f"ratio {ratio:g} found, {source.name}",
                f"{one.widened:.1%}", "", one.widened,
                f"<= {ALARMS:.0%} or as a veto" if equal else "as many as with a veto",
                one.widened <= max(ALARMS, one.vetoed + 0.01) if equal else one.widened >= one.vetoed - 0.01,
                f"with a veto {one.vetoed:.1%}, with neither {one.without:.1%}; the control differs from itself in"
                f" {one.differs:.1%}; intervals contain the ratio: {one.covered:.1%}, widened"
                f" {one.covered_widened:.1%}",
            )  # fmt: skip


def simulation(disagreement: float) -> Source:
    """Return rounds of normal noise whose arms also differ by `disagreement` for as long as a run lasts."""

    def draw(rng: np.random.Generator) -> Comparison:
        arm, base, again = rng.normal(0, disagreement, 3)[:, None] + rng.normal(0, NOISE, (3, SETUPS))
        return arm - (base + again) / 2, again - base, list(range(SETUPS))

    return Source(f"simulated, arms differ by {disagreement:.1%}", draw, slices=False)


def recordings() -> Iterator[Source]:
    """Yield the recorded comparisons: SETUPS consecutive set-ups from a random place, as one run would have them."""
    for name, arm, control, setups in recorded():
        long_run = np.array([stats.centre(arm[setups == one]) for one in np.unique(setups)]).mean()
        yield Source(f"recorded, {name}", _consecutive(arm - long_run, control, setups), slices=True)


def _consecutive(arm: Floats, control: Floats, setups: Floats) -> Callable[[np.random.Generator], Comparison]:
    def draw(rng: np.random.Generator) -> Comparison:
        labels = np.unique(setups)
        first = int(rng.integers(0, labels.size - SETUPS + 1))
        some = np.isin(setups, labels[first : first + SETUPS])
        return arm[some], control[some], [int(one) for one in setups[some]]

    return draw


def recorded() -> Iterator[tuple[str, Floats, Floats, Floats]]:
    try:
        scheduled = pd.read_csv(SAMPLES / "udp_one_pair_slices.csv.gz")
        placed = pd.read_csv(SAMPLES / "four_loads_slices.csv.gz")
    except (OSError, gzip.BadGzipFile) as error:
        raise NotMeasuredError(str(error)) from None
    wide = scheduled.pivot_table("throughput_bps", ["round", "slice"], "arm").dropna().reset_index()
    yield _ratios("udp, 1 pair, placed by the scheduler", wide)
    for (protocol, pairs), rows in placed.astype({"pairs": str}).groupby(["protocol", "pairs"], sort=False):
        yield _ratios(f"{protocol}, {counted(int(str(pairs)), 'pair')}", rows)


def _ratios(name: str, rows: pd.DataFrame) -> tuple[str, Floats, Floats, Floats]:
    columns = (rows[one].to_numpy(float) for one in ("macvlan_bridge", "veth_bridge", "veth_bridge_again"))
    arm, control = stats.log_ratios(*columns)
    return name, arm, control, rows["round"].to_numpy()


def rates(source: Source, ratio: float, draws: int) -> Rates:
    """Return the rates of an arm that is `ratio` times the baseline."""
    rng = np.random.default_rng(20261127)
    each = []
    for _ in range(draws):
        arm, control, setups = source.draw(rng)
        effect = stats.effect(arm + math.log(ratio), setups, source.slices)
        own = stats.effect(control, setups, source.slices)
        differs = stats.differs_from_itself(own)
        found = _is_found(effect, QUIET, ratio)
        beside = _is_found(effect, own, ratio)
        covered = (_contains(one, ratio) for one in (effect, stats.widened(effect, own)))
        each.append((found, not differs and beside, beside, differs, *covered))
    return Rates(*(float(share) for share in np.mean(each, axis=0)))


def _is_found(effect: Effect, control: Effect, ratio: float) -> bool:
    """Return whether the verdict is what a ratio is (any verdict for equal arms)."""
    word = stats.verdict(effect, control).word
    return word in FOUND if ratio == 1.0 else word == ("faster" if ratio > 1 else "slower")


def _contains(effect: Effect, ratio: float) -> bool:
    return effect.low is None or effect.high is None or effect.low <= ratio <= effect.high
