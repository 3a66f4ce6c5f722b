"""List the sections of the `labkit why` page, in their order. To show an observer's report, add an entry to SECTIONS.

A section names its observers and yields parts. A part is a title and its pieces: text, tables and figures. Numbers of
an observer without a section are shown unchanged (`counter_tables.others`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import flame
from labkit.analysis.flame import load_profiles
from labkit.analysis.why import (
    counter_tables,
    function_time_table,
    kprobe_table,
    loss_table,
)
from labkit.analysis.why.counter_tables import Table
from labkit.analysis.why.selection import ProfiledPoint
from labkit.common.errors import BadInput

Piece: TypeAlias = str | pd.DataFrame | go.Figure | flame.Flame
Part: TypeAlias = tuple[str, list[Piece]]  # title, pieces


@dataclass(frozen=True)
class Section:
    """A section of the page: its observers, and a function that makes its parts for a point.

    slows: whether its observers slow the traffic, so that the throughput beside them says nothing.
    """

    observers: tuple[str, ...]
    parts: Callable[[ProfiledPoint], Iterable[Part]]
    slows: bool = True


def _tables(make: Callable[[ProfiledPoint], Iterable[Table]]) -> Callable[[ProfiledPoint], Iterator[Part]]:
    """Return a function that makes one part per table, each with a title and text. If there is no table, the text says
    why."""

    def parts(point: ProfiledPoint) -> Iterator[Part]:
        for title, words, table in make(point):
            yield title, [words] if table is None else [words, table]

    return parts


def _packets(point: ProfiledPoint) -> Iterator[Piece]:
    """Yield the calls of one packet on both sides, on the same time scale, or only text if a side was not traced."""
    try:
        both = [flame.packets(rows, name) for name, rows in list(point.named_sides())[:2]]
    except BadInput as error:
        yield f"{error}."
        return
    if doubts := point.doubts(flame.packet_calls.OBSERVER, with_control=False):
        yield " ".join(doubts)
    yield from flame.side_by_side(both)


SECTIONS = (
    # The page begins with the flame graphs of perf_record.
    Section((load_profiles.OBSERVER,), lambda _point: (), slows=False),
    Section(("perf_stat",), _tables(counter_tables.events), slows=False),
    Section(("counters",), _tables(counter_tables.kernel), slows=False),
    Section(("switch",), _tables(counter_tables.switch)),
    Section(("kprobe",), _tables(kprobe_table.tables)),
    Section(("counters",), _tables(loss_table.tables), slows=False),
    Section(
        (function_time_table.OBSERVER, "guest_function_times"),
        lambda point: [(function_time_table.TITLE, list(function_time_table.pieces(point)))],
    ),
    Section(
        (flame.packet_calls.OBSERVER,),
        lambda point: [("The calls of one packet", list(_packets(point)))],
    ),
)
QUIET = frozenset(name for section in SECTIONS if not section.slows for name in section.observers)


def parts(point: ProfiledPoint) -> Iterator[Part]:
    """Yield all sections of a point, then the reports of other observers, then the overhead of observation."""
    for section in SECTIONS:
        yield from section.parts(point)
    known = {name for section in SECTIONS for name in section.observers}
    yield from _tables(lambda point: counter_tables.others(point, known))(point)
    yield from _tables(lambda point: [counter_tables.overhead(point)])(point)
