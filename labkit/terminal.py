"""Tables in the terminal: rows, verdicts with their doubts, two runs compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from labkit import tables, units

WIDTH = 110  # where standard output is no terminal


def _console() -> Console:
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=WIDTH)


def _table(title: str, columns: Sequence[tuple[str, bool]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name, is_number in columns:
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    return table


def show_rows(df: pd.DataFrame) -> None:
    """What was measured, a line for each topology and number of pairs, and the verdicts if there was a comparison."""
    console = _console()
    columns = [
        ("topology", False),
        ("protocol", False),
        ("pairs", True),
        ("MTU", True),
        ("measured", True),
        ("rate", True),
        ("CPU", True),
        ("n", True),
        ("", False),
    ]
    table = _table("Medians", columns)
    for (arm, protocol, pairs, mtu), rows in df.groupby(["arm", "protocol", "pairs", "mtu_bytes"], sort=False):
        ok = rows[rows["status"].eq("ok")]
        ok = ok[ok["method"].eq("slice")] if ok["method"].eq("slice").any() else ok
        metric = tables.METRIC[protocol][0]
        measured = units.si(ok[metric].median(), "s" if metric.endswith("_s") else "bit/s") if len(ok) else "–"
        words = next((str(reason) for reason in rows["reason"].dropna()), "")
        rate = units.si(ok["throughput_pps"].median() if len(ok) else None, "pps")
        busy = f"{(ok['cpu_s'].sum() / ok['window_s'].sum()):.2f} of {rows['cpus_count'].iloc[0]}" if len(ok) else "–"
        table.add_row(arm, protocol, str(pairs), str(mtu), measured, rate, busy, str(len(ok)), words)
    console.print(table)
    show_verdicts(df)


def show_verdicts(df: pd.DataFrame) -> None:
    """The table of verdicts, and every doubt after it."""
    console = _console()
    found = tables.verdicts(df)
    if len(found):
        names = ("protocol", "pairs", "MTU", "topology", "against", "ratio", "95 % interval", "verdict")
        table = _table("Verdicts", [(name, name in ("pairs", "MTU", "ratio", "95 % interval")) for name in names])
        for _, line in found.sort_values(["protocol", "mtu_bytes", "pairs"], kind="stable").iterrows():
            table.add_row(*_cells(line))
        console.print()
        console.print(table)
    doubts = tables.doubts(df)
    if doubts:
        console.print()
        for doubt in doubts:
            console.print(f"- {doubt}")


def _cells(line: pd.Series[Any]) -> list[str]:
    known = line["ratio"] == line["ratio"]
    return [
        str(line["protocol"]),
        str(line["pairs"]),
        str(line["mtu_bytes"]),
        str(line["topology"]),
        str(line["baseline"]),
        f"{line['ratio']:.3f}" if known else "–",
        f"{line['low']:.3f} – {line['high']:.3f}" if known and line["low"] == line["low"] else "–",
        str(line["word"] if known else line["sentence"]),
    ]


def show_comparison(df: pd.DataFrame, sentences: Sequence[str]) -> None:
    """Two runs point by point: a sentence for each point, then what holds for all."""
    console = _console()
    for sentence in df["sentence"] if "sentence" in df else []:
        console.print(f"- {sentence}")
    for sentence in sentences:
        console.print(f"- {sentence}")
