"""Print tables in the terminal: rows, verdicts with their doubts, and comparisons of two runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd
from rich.table import Table

from labkit.analysis import load, profile_doubts, protocols, verdict_cells, verdicts
from labkit.analysis.answer import answer
from labkit.analysis.change_effects import all_verdicts
from labkit.analysis.claims import JudgedClaim
from labkit.analysis.findings import registry
from labkit.commands.console import new_console, new_table
from labkit.common import units

TEXTS = ("protocol", "topology", "against", "verdict")  # columns without numbers
ROLES = {"baseline": 0, "control": 1}  # the arms that come first


def show_observations(df: pd.DataFrame) -> pd.DataFrame:
    """Print the doubts about the parts of an experiment that are not compared, and return the rows that are."""
    is_cost = df["part"].fillna("cost").eq("cost")
    _print_list(registry.doubts(df[~is_cost]))
    return df[is_cost]


def _print_list(sentences: Iterable[str]) -> None:
    """Print sentences as the items of a list."""
    console = new_console()
    for sentence in sentences:
        console.print(f"- {sentence}")


def show_rows(df: pd.DataFrame) -> None:
    """Print the verdicts if there was a comparison, and the measurements, a table for each host.

    A table has a row for each topology and number of pairs.
    """
    show_verdicts(df, _show_medians)
    _print_list(verdicts.contradicting_medians(df))


def _show_medians(df: pd.DataFrame) -> None:
    console = new_console()
    order = load.complete(df)
    order = order.assign(_rank=order["role"].map(ROLES).fillna(len(ROLES)))
    for suffix, rows in _hosts(order.sort_values(["_rank", "length_bytes"], kind="stable")):
        percentile = load.percentile_of(order)
        of = f" of each run's {percentile}" if percentile != "p50" and load.timed(order).any() else ""
        console.print(_medians(f"Medians{of}{suffix}", rows))
        console.print()
        points = rows.groupby(["arm", *load.GROUP], sort=False, dropna=False)
        lost = points.filter(lambda own: not own["status"].eq("ok").any())
        # A variant has a verdict that says why.
        lost = lost[lost["role"].ne("variant") & lost["reason"].notna()]
        for sentence in dict.fromkeys(lost["arm"] + ": " + lost["reason"]):
            console.print(f"- {sentence}\n")


def show_findings(df: pd.DataFrame, profiles: pd.DataFrame) -> None:
    """Print the findings of experiments beside verdicts, in sentences."""
    console = new_console()
    for sentence in registry.sentences(df, lambda: profiles):
        console.print(_plain(sentence))


def _plain(sentence: str) -> str:
    """Return a sentence as a list item for the terminal, without Markdown."""
    text = sentence.lstrip()
    return f"{sentence[: -len(text)]}- {text.removeprefix('- ').replace('**', '').replace('`', '')}"


def show_profiles(profiles: pd.DataFrame) -> None:
    """Print a sentence for each failure under observers, and for each observer that this machine cannot use."""
    failed = profiles[profiles["status"].eq("failed") & profiles["observer"].notna()]
    reasons = failed["reason"].fillna("no reason was recorded").astype("str")
    reasons = reasons.groupby(failed["topology"], group_keys=False).transform(load.group_similar)
    seen = (failed["topology"] + ": " + reasons).value_counts(sort=False).items()
    _print_list(profile_doubts.not_set_up(profiles))
    _print_list(f"{words} ({units.counted(count, 'profile')} failed)" for words, count in seen)
    _print_list(profile_doubts.without_results(profiles[profiles["status"].ne("failed")]))


def _hosts(df: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the hosts' rows, each with a suffix for its table's title; "" for a single host without emulation."""
    there = load.hosts(df)
    names_host = len(there) > 1 or any("emulated" in name for name, _ in there)
    return [(f": {name}" if names_host else "", rows) for name, rows in there]


def _medians(title: str, df: pd.DataFrame) -> Table:
    groups = [
        (str(arm), verdict_cells.group_of(pd.Series(dict(zip(load.GROUP, values, strict=True)))), rows)
        for (arm, *values), rows in df.groupby(["arm", *load.GROUP], sort=False, dropna=False)
    ]
    varying, same = verdict_cells.varying_and_same([verdict_cells.point_cells(of) for _, of, _ in groups])
    table = _table(title + same, (*varying, "topology", "measured", "rate", "CPU", "n"))
    for arm, of, rows in groups:
        protocol = protocols.of(rows)
        ok = rows[rows["status"].eq("ok") & ~load.unsupported_rates(rows)]
        ok = ok[ok["method"].eq("slice")] if ok["method"].eq("slice").any() else ok
        # A percentile that is a lost round trip is the longest.
        values = ok[protocol.metric].mask(load.timed(ok) & ok[protocol.metric].isna(), math.inf)
        middle = values.median() if len(ok) else None
        measured = "lost" if middle == math.inf else units.si(middle, protocol.metric_unit)
        # TCP counters count frames of up to 64 KB because of offloads, so there is no packet rate
        in_packets = protocol.work == "packet"
        rate = units.si(ok["throughput_pps"].median() if len(ok) and in_packets else None, "pps")
        busy, window_s = "–", ok["window_s"].where(ok["cpu_s"].notna()).sum()
        if window_s > 0:
            busy = f"{(ok['cpu_s'].sum() / window_s):.2f} of {rows['cpus_count'].iloc[0]:g}"
        point = verdict_cells.point_cells(of)
        table.add_row(*(point[name] for name in varying), arm, measured, rate, busy, str(len(ok)))
    return table


def _table(title: str, names: Sequence[str]) -> Table:
    return new_table(title, [(name, name not in TEXTS) for name in names])


def show_verdicts(df: pd.DataFrame, more: Callable[[pd.DataFrame], None] = lambda _df: None) -> None:
    """Print the answer, a table of verdicts for each host with its reasons, what `more` prints, then all doubts.

    What is the same in all lines of a table stands in its title.
    """
    console = new_console()
    every = all_verdicts(df)
    for sentence in answer(every):
        console.print(f"{sentence}.\n", style="bold")
    for suffix, result in _hosts(every):
        names, cells, same, reasons = verdict_cells.table(result)
        table = _table(f"Verdicts{suffix}{same}", names)
        for line in cells:
            table.add_row(*line)
        console.print(table)
        console.print()
        _print_list(reasons)
        if reasons:
            console.print()
    more(df)
    first, rest = verdicts.weightiest(verdicts.doubts(df, table=every))
    _print_list(first)
    if rest:
        _print_list([f"and {units.counted(len(rest), 'lesser doubt')}: `labkit report RUN` lists them"])


def show_comparison(df: pd.DataFrame, sentences: Sequence[str]) -> None:
    """Print the comparison of two runs: a sentence for each point, then the general ones."""
    _print_list([*df.get("sentence", []), *sentences])


def show_claims(claims: Sequence[JudgedClaim], left: Path, right: Path) -> None:
    """Print the verdicts about claims by two runs, if there are any, and which of them are not the same."""
    if not claims:
        return
    console = new_console()
    title = "Claims of docs/FINDINGS.md, judged by each of the two runs alone"
    table = new_table(title, [(name, False) for name in ("claim", f"by {left}", f"by {right}")])
    for one in claims:
        judged = (f"{by.word}: {by.evidence}" for by in (one.left, one.right))
        table.add_row(one.name, *judged)
    console.print()
    console.print(table)
    console.print()
    other = [one.name for one in claims if one.left.word != one.right.word]
    last = f"; not: {', '.join(other)}" if other else ""
    count = len(claims) - len(other)
    console.print(f"- the same verdict by both runs: {count} of {units.counted(len(claims), 'claim')}{last}")
