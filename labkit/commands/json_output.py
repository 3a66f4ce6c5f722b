"""The JSON output of commands (--json), and the meaning of each field. `labkit COMMAND --help` lists them.

Numbers are in base units, as in columns. Unknown values are null.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.analysis import gate, load, protocols, verdicts
from labkit.analysis.change_effects import all_verdicts
from labkit.analysis.claims import JudgedClaim


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as plain values, with null for missing ones."""
    return [
        {str(name): None if pd.isna(value) else getattr(value, "item", lambda value=value: value)()
         for name, value in line.items()}
        for line in table.to_dict("records")
    ]  # fmt: skip


def judged(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return verdicts as plain values, with the metric and whether a ratio above 1 means that it is better."""
    result = records(table)
    for line in result:
        line["higher_is_better"] = protocols.higher_is_better(str(line["metric"]))
    return result


def compared(
    table: pd.DataFrame, doubts: Sequence[str], claims: Sequence[JudgedClaim], points: Sequence[gate.Judged]
) -> dict[str, Any]:
    """Return the result of `labkit compare`, or of a gate of arms. points: what a gate judged; none without a gate."""
    gated = {"word": gate.overall(points), "points": list(map(dataclasses.asdict, points))}
    return {
        "lines": judged(table),
        "doubts": list(doubts),
        "gate": gated if points else None,
        "claims": list(map(dataclasses.asdict, claims)),
    }


def sweep_result(folder: Path, report: Path, failed: dict[str, str]) -> dict[str, Any]:
    """Return the result of `labkit sweep`."""
    rows = load.load(folder)
    table = all_verdicts(rows)
    return {
        "folder": str(folder),
        "report": str(report),
        "failed": failed,
        "verdicts": judged(table),
        "doubts": verdicts.doubts(rows, table=table),
    }
