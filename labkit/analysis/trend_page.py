"""Make the page of `labkit track report`: each series with its changes, the runs beside them, and what explains them.

It works offline.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import compare_runs, report, stats, why
from labkit.analysis.figures.trend import trend
from labkit.analysis.history import PROVENANCE, History, Series, change_text
from labkit.analysis.report.notebook_cells import Cell, document, plain, prose_cell, shown_cell
from labkit.common.errors import LabkitError


def write(history: History, out: Path) -> Path:
    """Write the page, and return its path."""
    shown = [run for one in history.series for change in one.changes for run in one.beside(change)]
    shown += [one.points.iloc[-1] for one in history.series if len(one.points)]
    folders = dict.fromkeys(folder for run in shown if (folder := Path(str(run["folder"]))).is_dir())
    report.page([document(list(_cells(history)))], list(folders), out, "Trends")
    return out


def sentences(history: History) -> list[str]:
    """Return the changes of all series, or that there are none, in sentences."""
    found = [f"{one.title}: {one.sentence(change)}" for one in history.series for change in one.changes]
    return found or ["no change is marked"]


def figure(of: Series) -> go.Figure:
    """Draw a series with its changes."""
    texts = [change_text(change.ratio) for change in of.changes]
    places = [change.place for change in of.changes]
    return trend(of.points, of.title, places, texts, of.is_ratio)


def _cells(history: History) -> Iterator[Cell]:
    count = sum(bool(one.changes) for one in history.series)
    head = f"{count} of {len(history.series)} series changed."
    lines = [f"- {plain(one)}" for one in sentences(history) if count]
    yield prose_cell("## Changes", plain(head), "\n".join(lines))
    if history.doubts:
        yield prose_cell("## Doubts", "\n".join(f"- {plain(one)}" for one in history.doubts))
    yield prose_cell("## Series")
    for one in history.series:
        yield shown_cell(figure(one))
        for change in one.changes:
            before, after = one.beside(change)
            yield prose_cell(f"### {plain(one.sentence(change))}")
            yield shown_cell(_beside(before, after))
            lines = [f"- {plain(line)}" for line in explained(one, before, after)]
            yield prose_cell("\n".join(lines))


def _beside(before: pd.Series[Any], after: pd.Series[Any]) -> pd.DataFrame:
    """Return the two runs beside a change, and what labkit recorded of them that differs."""
    differ = [name for name in PROVENANCE if pd.notna(before[name]) and before[name] != after[name]]
    names = ["run", *(name for name in ("time",) if pd.notna(after[name])), *differ]
    table = pd.DataFrame({"before": before[names], "after": after[names]})
    table.loc["measured"] = [stats.estimate_text(*one[["y", "y_low", "y_high"]]) for one in (before, after)]
    return table


def explained(of: Series, before: pd.Series[Any], after: pd.Series[Any]) -> list[str]:
    """Return what `labkit compare` and `labkit why` say of the two runs, with their commands, in sentences."""
    folders = [Path(str(one["folder"])) for one in (before, after)]
    if gone := dict.fromkeys(str(one) for one in folders if not (one / "run.json").exists()):
        return [f"nothing more is known, because there is no run in {' and '.join(gone)}"]
    left, right = folders
    lines = [shlex.join(["labkit", "compare", str(left), str(right)])]
    try:
        table, _ = compare_runs.compare(left, right)
        lines += table.loc[table["topology"].eq(of.names["arm"]), "sentence"].tolist()
    except LabkitError as error:
        lines.append(str(error))
    sides = [f"{folder}:{of.names['arm']}" for folder in folders]
    try:
        return [*lines, shlex.join(["labkit", "why", *sides]), *why.explain(*sides).sentences()]
    except LabkitError as error:
        return [*lines, f"no cause is named: {error}"]
