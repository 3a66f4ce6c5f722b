"""Show the calls of one packet on both sides of `labkit why`, one below the other on the same time scale."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from labkit.analysis import flame
from labkit.analysis.why.selection import ProfiledPoint
from labkit.common.errors import BadInput

TITLE = "The calls of one packet"


def pieces(point: ProfiledPoint) -> Iterator[str | flame.Flame | pd.DataFrame]:
    """Yield text, figures and tables in their order, or only text if a side was not traced."""
    try:
        both = [flame.packets(rows, name) for name, rows in list(point.named_sides())[:2]]
    except BadInput as error:
        yield f"{error}."
        return
    if doubts := point.doubts(flame.packet_calls.OBSERVER):
        yield " ".join(doubts)
    yield from flame.side_by_side(both)
