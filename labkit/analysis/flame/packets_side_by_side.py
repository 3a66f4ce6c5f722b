"""Show the calls of one packet of several arms, one below the other on the same time scale, with their self times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from labkit.analysis.flame.flame_graph import Flame
from labkit.analysis.flame.packet_calls import PacketCalls, packets_compared
from labkit.common.units import si

ALIKE = 1.2  # the largest ratio of the arms' shortest calls at which their times are comparable
TABLE = (
    "Self time of each function in these two packets. Functions that only one of them called come first. A single"
    " packet shows what is called. The profiles show how much more it costs."
)


def side_by_side(arms: Sequence[Sequence[PacketCalls]]) -> Iterator[str | Flame | pd.DataFrame]:
    """Yield text, figures and tables in their order, for the packets of each arm (`packets`).

    Each table compares the first arm with one of the others.
    """
    each = [{packet.root: packet for packet in arm} for arm in arms]
    if len(each) > 1:
        yield f"One scale of time for {'both' if len(each) == 2 else 'all'} sides."
    for root in dict.fromkeys(root for arm in each for root in arm):
        there = [arm[root] for arm in each if root in arm]
        span_s = max(packet.tree.root.total_ns for packet in there) / 1e9
        yield from (packet.icicle(span_s) for packet in there)
        for other in there[1:]:
            yield TABLE + _speed_warning(there[0].shortest_s, other.shortest_s)
            yield packets_compared(there[0], other)
        if len(there) == 1 < len(each):
            yield f"Calls of {root} were recorded for {there[0].arm} only."


def _speed_warning(left_s: float, right_s: float) -> str:
    """Return a warning if the machine was faster on one of the sides, or else an empty text."""
    if min(left_s, right_s) <= 0 or max(left_s, right_s) / min(left_s, right_s) < ALIKE:
        return ""
    return (
        f" The shortest call took {si(left_s, 's')} on one side and {si(right_s, 's')} on the other, so the"
        " machine or its tracer was not equally fast. Compare which functions were called, not their times."
    )
