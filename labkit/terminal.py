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
    """What was measured, a line for each topology and number of pairs, and the verdicts if there was a
    comparison."""
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
    for key, rows in df.groupby(["arm", "protocol", "pairs", "mtu_bytes"], sort=False):
        arm, protocol, pairs, mtu = map(str, key)
        ok = rows[rows["status"].eq("ok")]
        ok = ok[ok["method"].eq("slice")] if ok["method"].eq("slice").any() else ok
        metric = tables.METRIC[protocol][0]
        measured = (
            units.si(ok[metric].median(), "s" if metric.endswith("_s") else "bit/s") if len(ok) else "–"
        )
        words = next((str(reason) for reason in rows["reason"].dropna()), "")
        # of TCP the counters know frames, which offloads make up to 64 KB long: no packets a second
        rate = units.si(ok["throughput_pps"].median() if len(ok) and protocol == "udp" else None, "pps")
        busy = (
            f"{(ok['cpu_s'].sum() / ok['window_s'].sum()):.2f} of {rows['cpus_count'].iloc[0]}"
            if len(ok)
            else "–"
        )
        table.add_row(arm, protocol, pairs, mtu, measured, rate, busy, str(len(ok)), words)
    console.print(table)
    show_verdicts(df)


def show_verdicts(df: pd.DataFrame) -> None:
    """The table of verdicts, and every doubt after it."""
    console = _console()
    found = tables.verdicts(df)
    if len(found):
        names = ("protocol", "pairs", "MTU", "topology", "against", "ratio", "95 % interval", "verdict")
        table = _table(
            "Verdicts", [(name, name in ("pairs", "MTU", "ratio", "95 % interval")) for name in names]
        )
        known = found["ratio"].notna()
        for _, line in found[known].sort_values(["protocol", "mtu_bytes", "pairs"], kind="stable").iterrows():
            table.add_row(*_cells(line))
        unclear = found[known & found["word"].eq("no evidence")]
        reasons: dict[str, None] = dict.fromkeys(
            f"{line['protocol']}, {line['pairs']} pairs: {line['sentence']}" for _, line in unclear.iterrows()
        )
        for key, lines in found[~known].groupby(["protocol", "mtu_bytes", "topology", "word"], sort=False):
            protocol, mtu, topology, word = map(str, key)
            pairs = ", ".join(map(str, lines["pairs"]))
            table.add_row(protocol, pairs, mtu, topology, str(lines["baseline"].iloc[0]), "–", "–", word)
            reasons[f"{topology}: {lines['sentence'].iloc[0]}"] = None
        console.print()
        console.print(table)
        console.print()
        for reason in reasons:
            console.print(f"- {reason}")
    doubts = tables.doubts(df)
    for doubt in doubts:
        console.print(f"- {doubt}")


def _cells(line: pd.Series[Any]) -> list[str]:
    interval = f"{line['low']:.3f} – {line['high']:.3f}" if line["low"] == line["low"] else "–"
    names = ("protocol", "pairs", "mtu_bytes", "topology", "baseline")
    return [*(str(line[name]) for name in names), f"{line['ratio']:.3f}", interval, str(line["word"])]


def show_comparison(df: pd.DataFrame, sentences: Sequence[str]) -> None:
    """Two runs point by point: a sentence for each point, then what holds for all."""
    console = _console()
    for sentence in df.get("sentence", []):
        console.print(f"- {sentence}")
    for sentence in sentences:
        console.print(f"- {sentence}")
