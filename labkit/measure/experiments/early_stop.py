"""The early stop: measuring ends when the half-width of every ratio to the baseline is small enough.

This rule only decides when to stop. `labkit.analysis.stats` computes the verdict from the rows. The measuring wing
imports no numpy, and a median needs none.
"""

import math
import statistics
from collections import defaultdict
from typing import Any

from labkit.measure.experiments.datapaths_parameters import DatapathParameters

# Checking the interval to decide when to stop raises the false alarm rate: to 7.6 % from 5 rounds, to 6.3 % from 8.
MIN_ROUNDS = 8
# Slices that were not placed on CPUs have so many degrees of freedom fewer, as in the verdict (METHOD,
# "The noise").
LOST_FREEDOM = 2
# Student's t at 97.5 % from MIN_ROUNDS - 1 - LOST_FREEDOM degrees of freedom on; 2.1 beyond the table
T = (2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)
Seen = dict[tuple[int, int | None], dict[str, float]]


class History:
    """The logarithm of the metric of every arm, round and slice; decides whether these are enough.

    `latency`: the column by which verdicts judge round trips and transactions; None: the usual one.
    """

    def __init__(
        self, parameters: DatapathParameters, rows: list[dict[str, Any]], latency: str | None = None
    ) -> None:
        self._parameters = parameters
        usual = parameters.load_generator.capabilities.metric
        self._metric = usual if latency is None or usual.startswith("throughput") else latency
        self._method = "slice" if parameters.slices else "whole"
        # By pairs, and by the place of requests' ends.
        self._seen: dict[tuple[int, str | None], Seen] = defaultdict(lambda: defaultdict(dict))
        self._rounds: dict[int, set[int]] = defaultdict(set)  # also those of which no row is valid
        self._lost_freedom = 0
        self._baseline: dict[str, str] = {}  # the arms that are the baseline and its control
        self.add(rows)

    def add(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["round"] is not None:
                self._rounds[row["pairs"]].add(row["round"])
            value = row[self._metric]
            if row["status"] == "ok" and row["method"] == self._method and value:
                if row["method"] == "slice" and row.get("placement") is None:
                    self._lost_freedom = LOST_FREEDOM
                seen = self._seen[row["pairs"], row.get("ends_on")]
                seen[row["round"], row["slice"]][row["arm"]] = math.log(value)
                self._baseline[row["role"]] = row["arm"]

    def enough(self, pairs: int) -> str | None:
        """Return why no more rounds are needed, or None.

        None before MIN_ROUNDS rounds, and without a comparison.
        """
        if not {"baseline", "control"} <= self._baseline.keys():
            return None
        both = (self._baseline["baseline"], self._baseline["control"])
        widths = [
            self._half_width(seen, name, both)
            for (own_pairs, _), seen in self._seen.items()
            for name in sorted({arm for arms in seen.values() for arm in arms} - {*both})
            if own_pairs == pairs
        ]
        if not widths or max(widths) > self._parameters.half_width:
            return None
        width = f"{self._parameters.half_width * 100:g} %"
        done = len(self._rounds[pairs])
        return f"every half-width was below {width} after {done} of {self._parameters.rounds} rounds"

    def _half_width(self, seen: Seen, name: str, both: tuple[str, str]) -> float:
        """Return the wider of two half-widths: over all slices, and over rounds, which also differ by their set-up."""
        ratios: dict[int, list[float]] = defaultdict(list)
        for (number, _slice), arms in seen.items():
            if {name, *both} <= arms.keys():
                ratios[number].append(arms[name] - (arms[both[0]] + arms[both[1]]) / 2)
        if len(ratios) < MIN_ROUNDS:
            return math.inf
        middles = [statistics.median(own) for own in ratios.values()]
        place = len(middles) - MIN_ROUNDS + LOST_FREEDOM - self._lost_freedom
        t = T[place] if place < len(T) else 2.1
        over_rounds = t * statistics.stdev(middles) / math.sqrt(len(middles))
        every = [one for own in ratios.values() for one in own]
        # The quartiles stand for the spread: slices have heavy tails (the Hodges-Lehmann interval is as
        # wide).
        low, _middle, high = statistics.quantiles(every, n=4)
        return max(
            over_rounds,
            2.1 * (high - low) / 1.349 / math.sqrt(len(every)) if len(every) > len(middles) else 0,
        )
