"""When to stop early: the half-width of every ratio to the baseline is small enough.

A rule for stopping, not the verdict: that is computed by `labkit.stats` from the rows. This wing has no numpy, and needs none for a median.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.experiments.datapaths import Datapaths

LEAST_ROUNDS = 3
METRIC = {"tcp": "throughput_bps", "udp": "throughput_bps", "ping": "latency_p50_s"}
# Student's t at 97.5 % for 2 to 14 degrees of freedom (METHOD: t for fewer than 15 rounds); 2.1 beyond
T = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)


class History:
    """The log metric of every arm of every round and slice, and whether it is enough."""

    def __init__(self, asked: Datapaths, rows: list[dict[str, Any]]) -> None:
        self._asked = asked
        self._method = "slice" if asked.slices else "whole"
        self._seen: dict[int, dict[tuple[int, int | None], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        self.add(rows)

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Take in rows."""
        for row in rows:
            value = row[METRIC[self._asked.protocol]]
            if row["status"] == "ok" and row["method"] == self._method and value:
                self._seen[row["pairs"]][row["round"], row["slice"]][row["arm"]] = math.log(value)

    def enough(self, pairs: int) -> str | None:
        """Why no more rounds are needed, or None. Never before three rounds, never without a comparison."""
        seen = self._seen[pairs]
        rounds = len({number for number, _slice in seen})
        names = sorted({arm for arms in seen.values() for arm in arms})
        baseline = next((name.removesuffix(" (again)") for name in names if name.endswith(" (again)")), None)
        if rounds < LEAST_ROUNDS or baseline is None:
            return None
        both = (baseline, f"{baseline} (again)")
        widths = [self._half_width(seen, name, both) for name in names if name not in both]
        if not widths or max(widths) > self._asked.half_width:
            return None
        return f"every half-width was below {self._asked.half_width * 100:g} % after {rounds} of {self._asked.rounds} rounds"

    @staticmethod
    def _half_width(seen: dict[tuple[int, int | None], dict[str, float]], name: str, both: tuple[str, str]) -> float:
        ratios = [arms[name] - (arms[both[0]] + arms[both[1]]) / 2 for arms in seen.values() if {name, *both} <= arms.keys()]
        if len(ratios) < LEAST_ROUNDS:
            return math.inf
        if len(ratios) - 3 < len(T):
            return T[len(ratios) - 3] * statistics.stdev(ratios) / math.sqrt(len(ratios))
        # The quartiles stand for the spread, because slices have heavy tails: the interval of the median of Walsh averages is about this wide.
        low, _middle, high = statistics.quantiles(ratios, n=4)
        return 2.1 * (high - low) / 1.349 / math.sqrt(len(ratios))
