"""Loss that does not depend on the load, which no search for a rate can find.

A trial at a low load has few frames. A path that loses one frame of 500 at every load loses none in most trials of 200
frames. A search for the rate without loss then ends at such a low load, which says how short its trials are and nothing
about the path. Here the loss far below the rate found is compared with the loss far above it.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.measure.traffic.base import Trial

FAR_FACTOR = 2.0  # between the rate found and loads far above it, and far below it
LOST = 10  # frames that must be lost, or expected to be, before loss ratios are compared
EXPECTED_SHARE = 0.5  # of LOST that must be expected: a generator may send a few frames less than it was to
# Loss in proportion to the load is at this limit: half the rate found loses a quarter of what twice the rate loses. It
# is above the goal at both, so there is no rate in either case.
ALIKE_FACTOR = 4.0
RISE_FACTOR = 2.0  # between a load's loss ratio and that of lower loads, from which it depends on the load
# A path with a greatest rate passes a smaller share the higher the load is. Up to this factor it is the same share.
SAME_PASSED_SHARE = 0.9


@dataclass(frozen=True)
class ConstantLoss:
    """Loss above the goal at loads far below the rate found and far above it.

    `loss_ratio`: of all frames at loads from `min_pps` to `max_pps`. `low_loss_ratio`: of those at loads up to
    `low_pps`, which are far below the rate.
    """

    loss_ratio: float
    low_loss_ratio: float
    low_pps: float
    min_pps: float
    max_pps: float


@dataclass(frozen=True)
class _Load:
    pps: float
    offered_count: int
    lost_count: int


class Comparison:
    """The loss far below the rate that a search found, beside the loss far above it.

    `trials`: undisturbed ones. `found_pps`: the rate, or the lowest load where that lost too much. `min_pps`: the
    lowest load. `goal`: the loss ratio that was searched for.
    """

    def __init__(self, trials: Sequence[Trial], found_pps: float, min_pps: float, goal: float) -> None:
        self._loads = _by_load(trials)
        self._goal = goal
        self.low_pps = max(min_pps, found_pps / FAR_FACTOR)  # far below the rate
        up_to_it = [one for one in self._loads if one.pps <= found_pps * 1.000001]
        self._low = [one for one in up_to_it if one.pps <= self.low_pps * 1.000001]
        self._far = [one for one in self._loads if one.pps >= found_pps * FAR_FACTOR]
        self._loss_ratio = _min_ratio(self._far)
        passed = 1 - self._loss_ratio
        self._is_possible = self._loss_ratio > goal and passed >= SAME_PASSED_SHARE * (1 - _ratio(up_to_it))

    def frames_needed(self) -> int:
        """Return how many more frames at `low_pps` decide whether as much is lost there as far above; 0 if it is known
        that the loss depends on the load."""
        if not self._is_possible:
            return 0
        # a bit more than three standard deviations between the two
        needed = 1 + LOST * self._loss_ratio / (self._loss_ratio - self._goal) ** 2
        return max(0, math.ceil(needed) - sum(one.offered_count for one in self._low))

    def loss(self) -> ConstantLoss | None:
        """Return the loss of a path that loses as much far below the rate as far above it, if that is more than the
        goal; else None."""
        here = _ratio(self._low)
        expected = self._loss_ratio * sum(one.offered_count for one in self._low)
        if (
            not self._is_possible
            or expected < EXPECTED_SHARE * LOST
            or here <= self._goal
            or here < self._loss_ratio / ALIKE_FACTOR
        ):
            return None
        alike = [*itertools.takewhile(self._is_alike, self._far)]
        if not alike:
            return None
        every = [one for one in self._loads if one.pps <= alike[-1].pps]
        return ConstantLoss(_ratio(every), here, self.low_pps, every[0].pps, every[-1].pps)

    def _is_alike(self, load: _Load) -> bool:
        most = RISE_FACTOR * self._loss_ratio * load.offered_count
        passed = 1 - _ratio([load])
        return load.lost_count <= most + 3 * math.sqrt(most) and passed >= SAME_PASSED_SHARE * (
            1 - self._loss_ratio
        )


def _by_load(trials: Sequence[Trial]) -> list[_Load]:
    """Return what was offered and lost at each load, the lowest first."""
    by_pps: dict[float, list[Trial]] = defaultdict(list)
    for one in trials:
        by_pps[one.rate_pps or one.offered_pps].append(one)
    return [
        _Load(pps, sum(one.offered_count for one in some), sum(one.lost_count for one in some))
        for pps, some in sorted(by_pps.items())
    ]


def _ratio(loads: Sequence[_Load]) -> float:
    offered_count = sum(one.offered_count for one in loads)
    return sum(one.lost_count for one in loads) / offered_count if offered_count else 0.0


def _min_ratio(far: list[_Load]) -> float:
    """Return the loss ratio of the lower ones of these loads that together lost enough, where it is least; or 0."""
    some = [far[:count] for count in range(1, len(far) + 1)]
    return min((_ratio(one) for one in some if sum(load.lost_count for load in one) >= LOST), default=0.0)
