"""Compare how long kernel functions took on both sides of `labkit why`, as measured by function_times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import figures
from labkit.analysis.flame.load_profiles import observed, work
from labkit.analysis.flame.significance import compared
from labkit.analysis.protocols import CostUnit
from labkit.analysis.why.counter_tables import (
    LEFT_OUT,
    NOT,
    between_runs,
    has_known_work,
    number_texts,
    observed_by,
    work_unit,
)
from labkit.analysis.why.selection import ProfiledPoint

TITLE = "Function times"
OBSERVER = "function_times"
WORDS = (
    "Per {}. Means of the rounds; the total of all calls has its 95 % interval. A time is from a function's first"
    " instruction to its return. It includes callees, interrupts and the tracer's own cost, so times of functions that"
    " call each other overlap."
)
NS, US = 1e9, 1e6
MANY = 100  # from here on, means are shown without decimals, which carry no information
Rounds = list[tuple[dict[str, Any], pd.Series]]


def pieces(point: ProfiledPoint) -> list[str | pd.DataFrame | go.Figure]:
    """Return text, a table and a figure, or only text if a side was not timed."""
    sides: dict[str, tuple[pd.DataFrame, Rounds]] = {}
    nothing: list[str] = []
    of = work_unit(point)
    for name, rows in list(point.named_sides())[:2]:
        own = rows[rows["observer"].eq(OBSERVER) & rows["status"].eq("ok")]
        rounds = [(observed(row["observed"]), row) for _, row in own.iterrows()]
        rounds = [(each, row) for each, row in rounds if each.get("functions")]
        if not rounds:
            return [NOT.format(OBSERVER)]
        worked = [(each, row) for each, row in rounds if has_known_work(row[of.work])]
        if len(worked) < len(rounds):
            nothing.append(f"{len(rounds) - len(worked)} of {len(rounds)} rounds of {name}")
        rounds = worked or rounds  # without known work, costs are shown as "–"
        sides[name] = (own, rounds)
    again = [
        (report, row)
        for report, row in observed_by(point, OBSERVER)[2]
        if report.get("functions") and has_known_work(row[of.work])
    ]
    seen = {name: (rows, [each for each, _ in rounds]) for name, (rows, rounds) in sides.items()}
    text = " ".join([WORDS.format(of.description), *_tracers(sides), *point.doubts(OBSERVER)])
    if nothing:
        text += LEFT_OUT.format(" and ".join(nothing))
    return [
        text,
        table(list(sides), [*(rounds for _, rounds in sides.values()), again], of),
        figures.function_times(seen),
    ]


def _tracers(sides: Mapping[str, tuple[pd.DataFrame, Rounds]]) -> list[str]:
    """Return sentences about the tracers used. Times of different tracers cannot be compared."""
    by = {
        name: " and ".join(sorted({str(report["tracer"]) for report, _ in rounds if "tracer" in report}))
        for name, (_, rounds) in sides.items()
    }
    if len(set(by.values())) > 1:
        number_texts = ", ".join(f"{name} by {tracer or 'an unknown tracer'}" for name, tracer in by.items())
        return [f"Different tracers took the times, so do not compare them: {number_texts}."]
    return [f"Timed by {tracer}." for tracer in set(by.values()) if tracer]


def table(heads: Sequence[str], sides: Sequence[Rounds], of: CostUnit) -> pd.DataFrame:
    """Return one row per function.

    sides: the rounds of left, right, and left measured again (A/A), which may have none. Columns, for left and right:
    calls and time per unit of work; mean, p50 and p99 of a call in µs. Then the difference in time per unit (right
    minus left), and whether it stands out. TCP costs are not per packet, because offloads determine the size of a TCP
    packet.
    """
    names = list(
        dict.fromkeys(name for rounds in sides[:2] for report, _ in rounds for name in report["functions"])
    )
    columns: dict[str, list[str]] = {}
    totals, each, unit = [], [], of.description.removesuffix(" that arrived")
    for head, rounds in zip((*heads, None), sides, strict=True):
        worth = of.one / np.array([work(row, report, of.work) for report, row in rounds])
        functions = [[report["functions"].get(name, {}) for report, _ in rounds] for name in names]
        if head is not None:
            columns[f"calls per {unit}, {head}"] = _means([_of(one, "count") * worth for one in functions])
            for quantity in ("mean", "p50", "p99"):
                values = [_of(one, f"{quantity}_s") * US for one in functions]
                columns[f"{quantity}, µs, {head}"] = _means(values)
        totals.append(np.rint(np.array([_of(one, "total_s") for one in functions]) * NS).astype(np.int64))
        each.append(worth)
    result = compared(totals[0], each[0], totals[1], each[1], between_runs(sides), (totals[2], each[2]))
    by = of.unit_s * NS
    for head, side in zip(heads, (result.left, result.right), strict=True):
        columns[f"{of.unit} per {unit}, {head}"] = number_texts(side.mean / by, side.half / by)
    columns[f"difference, {of.unit} per {unit}"] = number_texts(
        result.difference / by, result.half / by, sign=True
    )
    columns["stands out"] = ["yes" if one else "no" for one in result.stands_out]
    return pd.DataFrame(columns, index=pd.Index(names))


def _of(rounds: Sequence[Mapping[str, Any]], name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    nothing = 0.0 if name in ("count", "total_s") else np.nan
    return np.array([nothing if one.get(name) is None else float(one[name]) for one in rounds])


def _means(values: Sequence[np.ndarray[Any, np.dtype[np.float64]]]) -> list[str]:
    means = [float(np.nanmean(one)) if np.isfinite(one).any() else None for one in values]
    return ["–" if mean is None else f"{mean:,.0f}" if mean >= MANY else f"{mean:.3g}" for mean in means]
