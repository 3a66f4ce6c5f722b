"""How long functions of the kernel took on both sides of `labkit why`, as function_times saw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit import figures
from labkit.flame.runs import observed
from labkit.flame.spread import compared
from labkit.why.counts import NOT, said
from labkit.why.sides import Point

TITLE = "Function times"
OBSERVER = "function_times"
WORDS = (
    "Means of the rounds, with 95 % intervals; a time is from a function's first instruction to its return, with what"
    " it calls, what interrupts it, and the tracer's own cost in it; times of functions that call each other overlap."
)
NS, US = 1e9, 1e6
Rounds = list[tuple[dict[str, Any], pd.Series]]


def pieces(point: Point) -> list[str | pd.DataFrame | go.Figure]:
    """Words, a table and a figure; words alone where a side was not timed."""
    sides: dict[str, tuple[pd.DataFrame, Rounds]] = {}
    for name, rows in list(point.named())[:2]:
        own = rows[rows["observer"].eq(OBSERVER) & rows["status"].eq("ok")]
        told = [(observed(row["observed"]), row) for _, row in own.iterrows()]
        told = [(each, row) for each, row in told if each.get("functions")]
        if not told:
            return [NOT.format(OBSERVER)]
        sides[name] = (own, told)
    seen = {name: (rows, [each for each, _ in told]) for name, (rows, told) in sides.items()}
    doubts = dict.fromkeys(
        f"Of {name}: {doubt}."
        for name, (_, told) in sides.items()
        for _, row in told
        for doubt in _doubts(row.get("doubts"))
    )
    words = " ".join([WORDS, *doubts])
    return [words, table(list(sides), [told for _, told in sides.values()]), figures.function_times(seen)]


def _doubts(text: Any) -> list[str]:
    wanted = ("disturbed:", "the trace buffer overflowed")
    return [one for one in text.split("; ") if one.startswith(wanted)] if isinstance(text, str) else []


def table(heads: Sequence[str], sides: Sequence[Rounds]) -> pd.DataFrame:
    """Each function: calls and ns per packet that arrived, mean, p50 and p99 of a call in µs, of both sides; and by how
    many ns per packet the right one is dearer."""
    names = list(dict.fromkeys(name for rounds in sides for told, _ in rounds for name in told["functions"]))
    columns: dict[str, list[str]] = {}
    totals, each = [], []
    for head, rounds in zip(heads, sides, strict=True):
        packets = np.array([float(row["received_count"] or np.nan) for _, row in rounds])
        functions = [[told["functions"].get(name, {}) for told, _ in rounds] for name in names]
        columns[f"calls per packet, {head}"] = _means([_of(one, "count") / packets for one in functions])
        for quantity in ("mean", "p50", "p99"):
            values = [_of(one, f"{quantity}_s") * US for one in functions]
            columns[f"{quantity}, µs, {head}"] = _means(values)
        totals.append(np.rint(np.array([_of(one, "total_s") for one in functions]) * NS).astype(np.int64))
        each.append(1 / packets)
    found = compared(totals[0], each[0], totals[1], each[1])
    for head, side in zip(heads, (found.left, found.right), strict=True):
        columns[f"ns per packet, {head}"] = said(side.mean, side.half)
    columns["difference, ns per packet"] = said(found.difference, found.half, sign=True)
    columns["stands out"] = ["yes" if one else "no" for one in found.stands_out]
    return pd.DataFrame(columns, index=pd.Index(names))


def _of(rounds: Sequence[Mapping[str, Any]], name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    nothing = 0.0 if name in ("count", "total_s") else np.nan
    return np.array([nothing if one.get(name) is None else float(one[name]) for one in rounds])


def _means(values: Sequence[np.ndarray[Any, np.dtype[np.float64]]]) -> list[str]:
    means = [float(np.nanmean(one)) if np.isfinite(one).any() else None for one in values]
    return ["–" if mean is None else f"{mean:.3g}" for mean in means]
