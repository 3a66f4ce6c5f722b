"""The calls of one packet on both sides of `labkit why`, one below the other on one scale of time."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from labkit import flame
from labkit.errors import BadInput
from labkit.units import si
from labkit.why.sides import Point

ALIKE = 1.2  # the shortest calls of both sides
TITLE = "The calls of one packet"
TABLE = (
    "What functions took themselves (self time) in these two packets: what only one of them called stands first. One"
    " packet each shows what is called; how much dearer it is, the profiles tell."
)


def pieces(point: Point) -> Iterator[str | flame.Flame | pd.DataFrame]:
    """Words, figures and tables in their order; words alone where a side was not traced."""
    try:
        left, right = (
            {packet.root: packet for packet in flame.packets(rows, name)}
            for name, rows in list(point.named())[:2]
        )
    except BadInput as error:
        yield f"{error}."
        return
    yield "One scale of time for both sides."
    for root in dict.fromkeys([*left, *right]):
        there = [side[root] for side in (left, right) if root in side]
        span_s = max(packet.tree.root.total_ns for packet in there) / 1e9
        yield from (packet.drawn(span_s) for packet in there)
        if len(there) == 2:
            yield TABLE + _mood(there[0].shortest_s, there[1].shortest_s)
            yield flame.packets_compared(there[0], there[1])
        else:
            yield f"Only {there[0].arm} has calls of {root} that were recorded."


def _mood(left_s: float, right_s: float) -> str:
    """What to think of both sides' times, if the machine was faster on one of them."""
    if min(left_s, right_s) <= 0 or max(left_s, right_s) / min(left_s, right_s) < ALIKE:
        return ""
    return (
        f" Of all calls the shortest took {si(left_s, 's')} on one side and {si(right_s, 's')} on the other: the"
        " machine or its tracer was not equally fast in both, so times cannot be compared; what was called can."
    )
