"""Texts of the `overlay` figures: titles, hosts, gaps, and numbers in words."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.load import each_doubt, emulated, group_similar

WRONG = "≠"  # marks what is not as expected
ROUTES = ("static", "metric", "ecmp")  # in drawing order
Rows = list[dict[Any, Any]]


def finish(
    figure: go.Figure, table: pd.DataFrame, title: str, subtitle: str, notes: Sequence[str], below_px: int
) -> go.Figure:
    """Add the title, with a mark for emulated CPUs, and notes about rows that are not drawn, `below_px` below it."""
    text = "emulated CPU" if len(table) and emulated(table).any() else ""
    theme.titled(figure, title, theme.plain(subtitle), text)
    theme.add_notes(figure, [*notes, *gaps(table)], below_px)
    return figure


def ok(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that can be drawn."""
    return table[table["status"].eq("ok")] if len(table) else table


def gaps(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each reason why rows are not ok, for each doubt, and for an empty table."""
    if not len(table):
        return ["There is nothing to draw: the table is empty."]
    left = table[table["status"].ne("ok")]
    reasons = group_similar(left["reason"].fillna(left["status"]).astype("str"))
    lines = [f"{topology}: {reason}" for topology, reason in zip(left["topology"], reasons, strict=True)]
    return list(dict.fromkeys([*lines, *(f"Doubt: {doubt}" for doubt in each_doubt(ok(table)))]))


def micro(seconds: float) -> str:
    """Format seconds as µs with the significant decimals: `4.2`, `812`, `12 400`."""
    value = seconds * 1e6
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:,.0f}".replace(",", "\u202f")


def path_lists(paths: Any) -> list[list[str]]:
    """Return the paths of a cell as lists of names; null gives an empty list."""
    return [list(path) for path in paths] if isinstance(paths, list | tuple) else []


def path_text(path: Any) -> str:
    """Format a path: `cs1 → lc1 → cs5`."""
    return " → ".join(str(node) for node in path) if isinstance(path, list | tuple) and path else "no path"


def routes_order(routes: Any) -> tuple[int, str]:
    """Return a sort key for kinds of routes."""
    return (ROUTES.index(routes) if routes in ROUTES else len(ROUTES), str(routes))
