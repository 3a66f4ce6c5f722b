"""The cells of a table of verdicts, for the terminal and for reports, and the reasons below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import load, stats

POINT = ("protocol", "pairs", "MTU")


def table(result: pd.DataFrame) -> tuple[list[str], list[list[str]], str, list[str]]:
    """Return the names of the columns, the cells of the verdicts, what is the same in all verdicts, and why there is no
    evidence or no ratio where the cells do not show it.

    Verdicts without a ratio come last: a line for each protocol, MTU, topology, baseline and word, with all numbers of
    pairs.
    """
    varying, same = varying_and_same([point_cells(group_of(line)) for _, line in result.iterrows()])
    is_known, alike = result["ratio"].notna(), ["protocol", "mtu_bytes", "topology", "baseline", "word"]
    known = result[is_known].sort_values(["protocol", "mtu_bytes", "pairs"], kind="stable")
    several = [known.iloc[[place]] for place in range(len(known))]
    several += [rows for _, rows in result[~is_known].groupby(alike, sort=False, dropna=False)]
    lines = []
    for rows in several:
        each = [point_cells(group_of(line)) for _, line in rows.iterrows()]
        own = [", ".join(dict.fromkeys(point[name] for point in each)) for name in varying]
        lines.append([*own, *_cells(rows.iloc[0])])
    hidden = result["low"].isna() | result["control_low"].isna() | result["rounds_count"].eq(1)
    unclear = ~is_known | (result["word"].eq("no evidence") & hidden)
    names = ["topology", "against", "ratio", "95 % interval", "baseline with itself", "verdict"]
    return [*varying, *names], lines, same, reasons(result, unclear)


def reasons(result: pd.DataFrame, unclear: pd.Series[bool]) -> list[str]:
    """Return a sentence for each reason of the unclear verdicts, with the topologies.

    It names the points, unless the reason holds for every point of the topology.
    """
    topologies: dict[tuple[str, str], list[str]] = {}
    by = ["topology", "word", "sentence"]
    for key, rows in result[unclear].groupby(by, sort=False):
        topology, word, sentence = map(str, key)
        everywhere = len(rows) == result["topology"].eq(topology).sum()
        points = dict.fromkeys(load.group_text(point) for point, _ in load.groups(rows[load.GROUP]))
        at = "" if everywhere else f" ({'; '.join(points)})"
        # Without evidence, the sentence names the topology.
        topologies.setdefault((sentence, at), []).extend([topology] if word != "no evidence" else [])
    return [
        f"{', '.join(names)}{at}: {sentence}" if names else f"{sentence}{at}"
        for (sentence, at), names in topologies.items()
    ]


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

    ratio = f"{line['ratio']:.3f}" if line["ratio"] == line["ratio"] else "–"
    intervals = (between(line[f"{of}low"], line[f"{of}high"]) for of in ("", "control_"))
    return [str(line["topology"]), str(line["baseline"]), ratio, *intervals, str(line["word"])]
