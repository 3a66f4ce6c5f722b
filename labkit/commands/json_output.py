"""The JSON output of commands (--json), and the meaning of each field. docs/COMMANDS.md contains these tables.

Numbers are in base units, as in columns. Unknown values are null.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from labkit.analysis import load, verdicts
from labkit.common.printable import printable_json
from studies.documents import document
from studies.documents.repeated import Repeated


def text(content: Any) -> str:
    """Return indented JSON, safe for a terminal."""
    return printable_json(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as plain values, with null for missing ones."""
    return [
        {str(name): None if pd.isna(value) else getattr(value, "item", lambda value=value: value)()
         for name, value in line.items()}
        for line in table.to_dict("records")
    ]  # fmt: skip


def compared(table: pd.DataFrame, doubts: Sequence[str], claims: Sequence[Repeated]) -> dict[str, Any]:
    """Return the result of `labkit compare`."""
    judged = [
        {
            "name": one.claim.name,
            "sentence": one.claim.sentence,
            "left": {"word": one.left.word, "evidence": document.ratio_summary(one.left)},
            "right": {"word": one.right.word, "evidence": document.ratio_summary(one.right)},
        }
        for one in claims
    ]
    return {"lines": records(table), "doubts": list(doubts), "claims": judged}


def sweep_result(folder: Path, report: Path, failed: dict[str, str]) -> dict[str, Any]:
    """Return the result of `labkit sweep`."""
    rows = load.load(folder)
    return {
        "folder": str(folder),
        "report": str(report),
        "failed": failed,
        "verdicts": records(verdicts.verdicts(rows)),
        "doubts": verdicts.doubts(rows),
    }
