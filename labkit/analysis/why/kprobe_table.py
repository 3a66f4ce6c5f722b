"""Tabulate what kprobe recorded on both sides of `labkit why`: calls by process, and a function's return values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from labkit.analysis.why.counter_tables import Table, observed_by
from labkit.analysis.why.selection import ProfiledPoint
from labkit.common import units

OBSERVER = "kprobe"
MAX_LISTED = 8  # processes shown, and values shown


def tables(point: ProfiledPoint) -> Iterator[Table]:
    """Yield one table with both sides, or nothing if kprobe ran on neither."""
    sides = [[report for report, _ in rounds] for rounds in observed_by(point, OBSERVER)[:2]]
    if not any(sides):
        return
    functions = sorted({str(report["function"]) for rounds in sides for report in rounds})
    heads = [name for name, _ in list(point.named_sides())[:2]]
    columns = {head: _shares(rounds) for head, rounds in zip(heads, sides, strict=True)}
    text = (
        f"Calls of {' and '.join(functions)} on the whole machine: the mean of the rounds. The shares of processes and"
        " values are of the events that the kernel's buffer kept. The process is the one that ran at the call. An"
        " interrupt can come during any process."
    )
    doubts = point.doubts(OBSERVER, with_control=False)
    yield "Calls that kprobe recorded", " ".join([text, *doubts]), pd.DataFrame(columns).fillna("–")


def _shares(rounds: list[dict[str, Any]]) -> dict[str, str]:
    if not rounds:
        return {}
    result = {"calls": f"{sum(report['calls_count'] for report in rounds) / len(rounds):,.0f}"}
    for kind in ("processes", "values"):
        counts = Counter[str]()
        for report in rounds:
            counts.update(report[kind])
        for name, count in counts.most_common(MAX_LISTED):
            place = f"returned {name}" if kind == "values" else f"in {name}"
            result[place] = units.percent(count / counts.total())
    return result
