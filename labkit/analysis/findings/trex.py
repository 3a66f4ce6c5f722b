"""What load tests with TRex found, in sentences: the greatest rate, how far it fills the line, why the test ended."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.common.units import percent, si


def report(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each load test. rows: those of the experiments with TRex."""
    return [_sentence(row) for _, row in rows[rows["part"].eq("cost")].iterrows()]


def _sentence(row: pd.Series[Any]) -> str:
    what = f"{row['frame']} through the device at {row['trex_server']}, test {int(row['round']) + 1}"
    if row["status"] != "ok":
        return f"{what}: {row['reason']}."
    share = ""
    if pd.notna(row["line_pps"]) and row["line_pps"] > 0:
        directions = 2 if row["direction"] == "all" and row["senders_count"] == 2 * row["pairs"] else 1
        most = directions * row["pairs"] * row["line_pps"]
        share = f", {percent(row['throughput_pps'] / most)} of what the lines carry ({si(most, 'pps')}: {row['line']})"
    return f"{what}: {si(row['throughput_pps'], 'pps')} arrived within the loss limit{share}; {row['ended']}."
