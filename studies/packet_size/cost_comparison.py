"""Compare the parts of the cost of a datagram (`cost_model`) between an arm and the baseline, paired by round.

A report compares every part of every cost of every arm. At 95 % each, a third of all reports without any difference
would contain a false "more expensive". Therefore the Benjamini-Hochberg procedure selects among the p values (Student's
t over rounds) of all comparisons. test_cost_comparison.py measures the rate of false alarms.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from labkit.analysis import stats
from labkit.analysis.stats import MIN_SETUPS
from studies import linear_fit
from studies.linear_fit import Estimate
from studies.packet_size.cost_model import PARTS, Curve

SAME, NO_EVIDENCE = "no difference that stands out", "no evidence"


@dataclass(frozen=True)
class Comparison:
    """The differences between an arm's costs and the baseline's, paired by round, in seconds.

    `parts`: the difference of each of PARTS with its 95 % interval. `why`: the reason for each part without evidence.
    `stands_out`: the parts that differ after the correction for all comparisons of the report.
    """

    curve: Curve
    baseline: Curve
    parts: dict[str, Estimate]
    why: dict[str, str]
    stands_out: frozenset[str] = frozenset()

    @property
    def judged(self) -> list[str]:
        """Return the parts for which there is evidence."""
        return [part for part in self.parts if part not in self.why]

    def word(self, part: str) -> str:
        """Return `more expensive`, `cheaper`, `no difference that stands out`, or `no evidence`."""
        if part in self.why:
            return NO_EVIDENCE
        if part not in self.stands_out:
            return SAME
        return "more expensive" if self.parts[part].value > 0 else "cheaper"


def comparisons(curves: Sequence[Curve]) -> list[Comparison]:
    """Compare every fitted variant with the baseline of its point, in the rounds that both have.

    If the baseline was measured twice, the mean of both measurements is used.
    """
    made = [one for curve in curves if (one := _comparison(curve, curves)) is not None]
    judged_parts = [(place, part) for place, one in enumerate(made) for part in one.judged]
    kept = stats.discoveries(
        np.array([made[place].parts[part].p for place, part in judged_parts], dtype=float)
    )
    out = {which for which, keep in zip(judged_parts, kept, strict=True) if keep}
    return [
        replace(one, stands_out=frozenset(part for at, part in out if at == place))
        for place, one in enumerate(made)
    ]


def _comparison(curve: Curve, curves: Sequence[Curve]) -> Comparison | None:
    beside = {
        one.role: one for one in curves if (one.key, one.cost) == (curve.key, curve.cost) and not one.why
    }
    baseline, control = beside.get("baseline"), beside.get("control")
    if curve.role != "variant" or curve.why or baseline is None:
        return None
    base = _by_setup(baseline)
    again = base if control is None else _by_setup(control)
    parts = _differences(_by_setup(curve) - (base + again) / 2, stats.CONFIDENCE)
    own = {} if control is None else _differences(again - base, stats.CONTROL_CONFIDENCE)
    whys = {part: _why(curve, baseline, part, one, own.get(part)) for part, one in parts.items()}
    return Comparison(curve, baseline, parts, {part: why for part, why in whys.items() if why})


def _why(curve: Curve, baseline: Curve, part: str, difference: Estimate, same: Estimate | None) -> str:
    """Return why there is no evidence about a part, or ""."""
    if difference.rounds_count < MIN_SETUPS:  # then only atypical rounds stand out
        return f"fewer than {MIN_SETUPS} rounds have both"
    if same is None or same.low is None:
        return "the baseline was not measured twice"
    if same.excludes_zero:
        return "the baseline differs from itself"
    fits = {one.arm: one.line if part in PARTS[:2] else one.steps for one in (baseline, curve)}
    bent = [arm for arm, fit in fits.items() if fit is not None and fit.misfits]
    return f"the costs of {' and '.join(bent)} do not lie on a line" if bent else ""


def _by_setup(curve: Curve) -> pd.DataFrame:
    return pd.DataFrame(curve.coefficients, curve.setups, PARTS[: curve.coefficients.shape[1]])


def _differences(table: pd.DataFrame, confidence: float) -> dict[str, Estimate]:
    both = table.dropna(axis="columns", how="all").dropna()
    return {part: linear_fit.mean(both[part], confidence) for part in PARTS if len(both) and part in both}
