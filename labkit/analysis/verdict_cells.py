"""The cells of a table of verdicts, for the terminal and for reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import load, stats

POINT = ("protocol", "pairs", "MTU")


def table(result: pd.DataFrame) -> tuple[list[str], list[list[str]], str, list[str]]:
    """Return the names of the columns, the cells of each verdict with a ratio, what is the same in all verdicts, and
    why there is no evidence where the cells do not show it."""
    varying, same = varying_and_same([point_cells(group_of(line)) for _, line in result.iterrows()])
    known = result[result["ratio"].notna()]
    lines = [
        [*(point_cells(group_of(line))[name] for name in varying), *_cells(line)]
        for _, line in known.sort_values(["protocol", "mtu_bytes", "pairs"], kind="stable").iterrows()
    ]
    hidden = known["low"].isna() | known["control_low"].isna() | known["rounds_count"].eq(1)
    reasons = [
        f"{line['protocol']}, pairs {point_cells(group_of(line))['pairs']}: {line['sentence']}"
        for _, line in known[known["word"].eq("no evidence") & hidden].iterrows()
    ]
    names = ["topology", "against", "ratio", "95 % interval", "baseline with itself", "verdict"]
    return [*varying, *names], lines, same, list(dict.fromkeys(reasons))


def varying_and_same(points: Sequence[dict[str, str]]) -> tuple[list[str], str]:
    """Return the columns in which points differ, and what is the same in all of them: ` (protocol tcp, pairs 1)`."""
    varying = [name for name in POINT if len({one[name] for one in points}) > 1]
    same = [f"{name} {points[0][name]}" for name in POINT if points and name not in varying]
    return varying, f" ({', '.join(same)})" if same else ""


def group_of(line: pd.Series[Any]) -> dict[str, Any]:
    """Return the group of a row, with None for null."""
    return {name: None if pd.isna(line[name]) else line[name] for name in load.GROUP}


def point_cells(group: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a group: the protocol with parameters that are not defaults, the number of pairs, the MTU."""
    numbers = ["–" if group[name] is None else f"{group[name]:g}" for name in ("pairs", "mtu_bytes")]
    protocol = ", ".join([str(group["protocol"]), *load.non_defaults(group)])
    return dict(zip(POINT, [protocol, *numbers], strict=True))


def _cells(line: pd.Series[Any]) -> list[str]:
    def between(low: float, high: float) -> str:
        return stats.interval_text(low, high, ".3f", " – ") if low == low else "–"

    size = f"{line['ratio']:.3f}", between(line["low"], line["high"])
    control = between(line["control_low"], line["control_high"])
    return [str(line["topology"]), str(line["baseline"]), *size, control, str(line["word"])]
