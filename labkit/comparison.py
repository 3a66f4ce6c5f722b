"""Two runs, or two sweeps, point by point: `labkit compare`.

Two runs are not interleaved, so the machine's drift between them (2 to 5 % with nothing changed) is in every
plain ratio of the one to the other. Where both measured the same baseline, the ratios to it are compared
instead: the drift that arm and baseline share cancels out (a difference of differences of logarithms). What
is compared is one number for each fresh set-up, with Welch's t interval: measurements within a set-up are not
independent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit import stats, tables
from labkit.errors import BadInput
from labkit.loading import GROUP, METRIC, PROVENANCE, Key, differing, groups, measured, point

DRIFT = 0.05  # by so much two runs may differ with nothing changed (METHOD rule 2)
COLUMNS = [
    "topology", "baseline", "method", "metric", "left_median", "right_median", "left_setups_count",
    "right_setups_count", "ratio", "low", "high", "relative_ratio", "relative_low", "relative_high", "how",
    "word", "sentence",
]  # fmt: skip
_NUMBERS = [name for name in COLUMNS if name.endswith(("median", "count", "ratio", "low", "high"))]


@dataclass(frozen=True)
class Side:
    """One of the two: its name for sentences; all rows; those that count, and by group; paired ratios."""

    name: str
    rows: pd.DataFrame
    ok: pd.DataFrame
    points: dict[Key, pd.DataFrame]
    ratios: dict[Key, pd.DataFrame]


def compare(
    left_path: str | Path, right_path: str | Path, margin: float = 0.05
) -> tuple[pd.DataFrame, list[str]]:
    """Right to left, a line for each group and topology that both measured, and every doubt as a sentence.

    Columns GROUP and COLUMNS. ratio, low, high: of the metric itself, right to left, without an allowance for
    drift. relative_...: of the ratio to the baseline, NaN where the two have none in common. word and
    sentence are those of the relative ratio; where there is none, those of the plain one with its interval
    widened by DRIFT. Raises BadInput, naming the difference, for what is not comparable.
    """
    names = [Path(path).name for path in (left_path, right_path)]
    if names[0] == names[1]:
        names = [str(left_path), str(right_path)]
    left, right = (_side(path, name) for path, name in zip((left_path, right_path), names, strict=True))
    _refuse(left, right)
    found = [
        line for key, topology in _common(left, right) if (line := _line(left, right, key, topology, margin))
    ]
    if not found:
        raise BadInput(
            f"{left.name} and {right.name} have slices here and whole runs there: nothing to compare"
        )
    table = pd.DataFrame(found, columns=[*GROUP, *COLUMNS]).astype(dict.fromkeys(_NUMBERS, float))
    return table, _doubts(left, right, table)


def _side(path: str | Path, name: str) -> Side:
    rows = tables.load(path)
    ok = measured(rows)
    if ok.empty:
        raise BadInput(f"{path} has no valid measurement to compare")
    return Side(name, rows, ok, dict(groups(ok)), dict(groups(tables.ratios(rows))))


def _refuse(left: Side, right: Side) -> None:
    """Raise BadInput where rows of the same host differ in what matters."""
    both = pd.concat([left.ok, right.ok], ignore_index=True)
    for _, rows in both.groupby("where", dropna=False):
        if differ := differing(rows, PROVENANCE):
            said = "; ".join(f"{name}: {' and '.join(map(str, values))}" for name, values in differ.items())
            raise BadInput(f"{left.name} and {right.name} are not comparable, they differ in {said}")


def _common(left: Side, right: Side) -> list[tuple[Key, str]]:
    """Group and topology of every point that both have."""
    here, there = (
        [(key, topology) for key, rows in side.points.items() for topology in rows["topology"].unique()]
        for side in (left, right)
    )
    if common := [one for one in here if one in there]:
        return common
    apart = []
    for name in [*GROUP, "topology"]:
        one, other = _values(left.ok[name]), _values(right.ok[name])
        if not set(one) & set(other):
            apart.append(f"{name} ({', '.join(one)} and {', '.join(other)})")
    said = f": they differ in {', '.join(apart)}" if apart else ""
    raise BadInput(f"{left.name} and {right.name} have no point in common{said}")


def _values(column: pd.Series[Any]) -> list[str]:
    values = column.unique()
    return [
        "none" if pd.isna(v) else f"{v:g}" if isinstance(v, float | np.number) else str(v) for v in values
    ]


def _line(left: Side, right: Side, key: Key, topology: str, margin: float) -> dict[str, Any] | None:
    """One point; None if the one has it by slices only and the other by whole runs only."""
    arms = [rows[rows["topology"].eq(topology)] for rows in (left.points[key], right.points[key])]
    method = next((m for m in ("slice", "whole") if all(arm["method"].eq(m).any() for arm in arms)), None)
    if method is None:
        return None
    arms = [arm[arm["method"].eq(method)] for arm in arms]
    levels = [_by_setup(arm, "log") for arm in arms]
    plain = stats.difference(levels[0], levels[1])
    baseline, relative = _relative(left, right, key, topology, method)
    effect = _with_drift(plain) if relative is None else relative
    verdict = _verdict(left, right, key, topology, baseline, method, effect, margin)
    return {
        **dict(zip(GROUP, key, strict=True)), "topology": topology, "baseline": baseline, "method": method,
        "metric": METRIC[key[1]][0], "left_median": arms[0]["value"].median(),
        "right_median": arms[1]["value"].median(), "left_setups_count": len(levels[0]),
        "right_setups_count": len(levels[1]), "ratio": plain.ratio, "low": plain.low, "high": plain.high,
        "relative_ratio": relative and relative.ratio, "relative_low": relative and relative.low,
        "relative_high": relative and relative.high, "how": effect.how, "word": verdict.word,
        "sentence": f"{point(key)}: {verdict.sentence}",
    }  # fmt: skip


def _by_setup(rows: pd.DataFrame, column: str) -> stats.Floats:
    """One number for each fresh set-up: Hodges-Lehmann, because slices have heavy tails."""
    return np.array(
        [stats.centre(some[column].to_numpy(float)) for _, some in rows.groupby("setup", sort=False)]
    )


def _relative(
    left: Side, right: Side, key: Key, topology: str, method: str
) -> tuple[str | None, stats.Effect | None]:
    """The common baseline, and the effect on the ratio to it; (None, None) without."""
    parts = []
    for side in (left, right):
        if key not in side.ratios:
            return None, None
        lines = side.ratios[key]
        parts.append(lines[lines["topology"].eq(topology) & lines["method"].eq(method)])
    baselines = {str(name) for part in parts for name in part["baseline"]}
    if len(baselines) != 1 or any(part.empty for part in parts):
        return None, None
    here, there = (_by_setup(part, "log_ratio") for part in parts)
    return baselines.pop(), stats.difference(here, there)


def _with_drift(plain: stats.Effect) -> stats.Effect:
    """The interval widened by what two runs may differ by with nothing changed."""
    if plain.low is None or plain.high is None:
        return plain
    how = f"{plain.how}, widened by {stats.percent(DRIFT)} for drift between runs"
    return replace(plain, low=plain.low / (1 + DRIFT), high=plain.high * (1 + DRIFT), how=how)


def _verdict(
    left: Side, right: Side, key: Key, topology: str, baseline: str | None, method: str, effect: stats.Effect,
    margin: float,
) -> stats.Verdict:  # fmt: skip
    arm = f"{topology} in {right.name}" if baseline is None else f"{topology} to {baseline} in {right.name}"
    slices = method == "slice"
    controls = {
        side.name: tables.effect_of(side.ratios[key], "log_control", slices) if key in side.ratios else None
        for side in (left, right)
    }
    if why := _no_evidence(effect, controls, baseline):
        shown = stats.ratio_text(effect.ratio, effect.low, effect.high)
        sentence = f"no evidence about {arm} against {left.name}: {why}; measured {shown} ({effect.how})"
        return stats.Verdict("no evidence", sentence)
    # The controls of both have been heard, and a plain ratio is widened already: drift alone is left.
    drift = stats.Effect(1.0, 1 / (1 + DRIFT), 1 + DRIFT, 2, "drift between runs")
    return stats.verdict(effect, drift, margin, METRIC[key[1]][1], arm=arm, baseline=f"in {left.name}")


def _no_evidence(
    effect: stats.Effect, controls: dict[str, stats.Effect | None], baseline: str | None
) -> str | None:
    for name, control in controls.items():
        if control is not None and stats.vetoes(control):
            shown = stats.ratio_text(control.ratio, control.wide_low, control.wide_high)
            return f"in {name} the baseline differs from itself ({shown} at 99 %)"
        if baseline is not None and (control is None or control.low is None):
            return f"in {name} {baseline} was not measured twice, or only once, so nothing shows the noise"
    return "one of the two has a single set-up, thus no interval" if effect.low is None else None


def _doubts(left: Side, right: Side, table: pd.DataFrame) -> list[str]:
    count = len(table)
    said = [
        f"{count} point{'s' * (count != 1)} compared at 95 %: with no difference anywhere, about"
        f" {0.05 * count:.1g} of them would still show one",
        f"{left.name} and {right.name} were measured at different times, not interleaved",
    ]
    if plain := int(table["baseline"].isna().sum()):
        said.append(
            f"{plain} of {count} points have no common baseline: 2 to 5 % of drift between runs is normal,"
            f" so their verdicts need more than {stats.percent(DRIFT)}"
        )
    setups = table[["left_setups_count", "right_setups_count"]].min(axis=1)
    if few := int((setups < tables.FEWEST_SETUPS).sum()):
        said.append(f"{few} of {count} points have fewer than {tables.FEWEST_SETUPS} fresh set-ups on a side")
    both = pd.concat([left.ok, right.ok], ignore_index=True)
    for name, values in differing(both, tables.DOUBTFUL).items():
        said.append(f"{left.name} and {right.name} differ in {name}: {' and '.join(map(str, values))}")
    for side, other in ((left, right), (right, left)):
        if only := sorted(_points(side) - _points(other)):
            said.append(
                f"{len(only)} of {len(_points(side))} points are in {side.name} only: {', '.join(only)}"
            )
        said += [f"{side.name}: {doubt}" for doubt in tables.doubts(side.rows)]
    return said


def _points(side: Side) -> set[str]:
    return {
        f"{name} ({point(key)})" for key, rows in side.points.items() for name in rows["topology"].unique()
    }
