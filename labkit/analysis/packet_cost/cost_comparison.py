"""In which part of what a datagram costs (`sizes`) an arm differs from the baseline: arm less baseline, round by round.

A report compares every part of every cost of every arm, so at 95 % each a false "dearer" would stand in a third of all
reports in which nothing differs. Of the p values (Student's t over rounds) those count that Benjamini and Hochberg's
procedure keeps of all that were compared. test_cost_comparison.py counts how often that is a false alarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkit.analysis import linear_fit, stats
from labkit.analysis.linear_fit import Estimate
from labkit.analysis.packet_cost.cost_model import PARTS, Curve
from labkit.analysis.stats import FEWEST_SETUPS

SAME, NO_EVIDENCE = "no difference that stands out", "no evidence"


@dataclass(frozen=True)
class Comparison:
    """By how much an arm's costs differ from the baseline's, round by round, in seconds: `parts` (PARTS)
    at 95 %. `why`: why nothing can be told of a part; `stands_out`: the parts that differ, of all that were compared
    in the report."""

    curve: Curve
    baseline: Curve
    parts: dict[str, Estimate]
    why: dict[str, str]
    stands_out: frozenset[str] = frozenset()

    @property
    def judged(self) -> list[str]:
        """The parts of which something can be told."""
        return [part for part in self.parts if part not in self.why]

    def word(self, part: str) -> str:
        """`dearer`, `cheaper`, `no difference that stands out`, or `no evidence`."""
        if part in self.why:
            return NO_EVIDENCE
        if part not in self.stands_out:
            return SAME
        return "dearer" if self.parts[part].value > 0 else "cheaper"


def comparisons(result: Sequence[Curve]) -> list[Comparison]:
    """Every fitted variant against the baseline of its point, in rounds that both have; the baseline is the mean of
    both its measurements."""
    made = [one for curve in result if (one := _comparison(curve, result)) is not None]
    comparison_sentences = [(place, part) for place, one in enumerate(made) for part in one.judged]
    kept = stats.discoveries(
        np.array([made[place].parts[part].p for place, part in comparison_sentences], dtype=float)
    )
    out = {which for which, keep in zip(comparison_sentences, kept, strict=True) if keep}
    return [
        Comparison(one.curve, one.baseline, one.parts, one.why, frozenset(p for at, p in out if at == place))
        for place, one in enumerate(made)
    ]


def _comparison(curve: Curve, result: Sequence[Curve]) -> Comparison | None:
    beside = {
        one.role: one for one in result if (one.key, one.cost) == (curve.key, curve.cost) and not one.why
    }
    baseline, control = beside.get("baseline"), beside.get("control")
    if curve.role != "variant" or curve.why or baseline is None:
        return None
    base = _by_setup(baseline)
    again = base if control is None else _by_setup(control)
    parts = _differences(_by_setup(curve) - (base + again).dropna() / 2, stats.CONFIDENCE)
    own = {} if control is None else _differences(again - base, stats.CONTROL_CONFIDENCE)
    whys = {part: _why(curve, baseline, part, one, own.get(part)) for part, one in parts.items()}
    return Comparison(curve, baseline, parts, {part: why for part, why in whys.items() if why})


def _why(curve: Curve, baseline: Curve, part: str, result: Estimate, same: Estimate | None) -> str:
    """Why nothing can be told of a part, else empty."""
    if result.rounds_count < FEWEST_SETUPS:  # intervals are then so wide that only strange rounds stand out
        return f"fewer than {FEWEST_SETUPS} rounds have both"
    if same is None or same.low is None:
        return "the baseline was not measured twice"
    if same.excludes_zero:
        return "the baseline differs from itself"
    fits = {one.arm: one.line if part in PARTS[:2] else one.steps for one in (baseline, curve)}
    bent = [arm for arm, fit in fits.items() if fit is not None and fit.misfits]
    return f"no line describes {' and '.join(bent)}" if bent else ""


def _by_setup(curve: Curve) -> pd.DataFrame:
    return pd.DataFrame(curve.coefficients, curve.setups, PARTS[: curve.coefficients.shape[1]])


def _differences(table: pd.DataFrame, confidence: float) -> dict[str, Estimate]:
    both = table.dropna(axis="columns", how="all").dropna()
    return (
        {str(name): linear_fit.mean(values, confidence) for name, values in both.items()} if len(both) else {}
    )
