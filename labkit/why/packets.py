"""The calls of one packet on both sides of `labkit why`, one below the other on one scale of time."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from labkit import flame
from labkit.errors import BadInput
from labkit.why.sides import Point

TITLE = "The calls of one packet"


def pieces(point: Point) -> Iterator[str | flame.Flame | pd.DataFrame]:
    """Words, figures and tables in their order; words alone where a side was not traced."""
    try:
        both = [flame.packets(rows, name) for name, rows in list(point.named())[:2]]
    except BadInput as error:
        yield f"{error}."
        return
    if doubts := point.doubts(flame.packet.OBSERVER):
        yield " ".join(doubts)
    yield from flame.beside(both)
