"""How long something took: counts in bins of equal relative width, so that memory is bounded however many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

FINE_BITS, COARSE_BITS = 6, 3  # bins per power of two: 64 for quantiles (off by less than 1 %), 8 in a row
NS = 1e-9
QUANTILES = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}


def bin_of(value: int, bits: int = FINE_BITS) -> tuple[int, int]:
    """The bin of a value: its lower bound, and its width."""
    shift = max(0, value.bit_length() - bits - 1)
    return value >> shift << shift, 1 << shift


def sums(count: int, total_ns: int, max_ns: int, quantile_s: Callable[[float], float]) -> dict[str, Any]:
    """What is told of so many times, in seconds; times of nothing are null."""
    result: dict[str, Any] = {"count": count, "mean_s": None, **dict.fromkeys(QUANTILES), "max_s": None}
    if count:
        result |= {"mean_s": total_ns / count * NS, "max_s": max_ns * NS}
        result |= {name: quantile_s(share) for name, share in QUANTILES.items()}
    return {**result, "total_s": total_ns * NS}


class Distribution:
    """Times in whole nanoseconds."""

    def __init__(self) -> None:
        self.count = self.total_ns = self.max_ns = 0
        self._bins: Counter[tuple[int, int]] = Counter()

    def add(self, value_ns: int, count: int = 1) -> None:
        """Count a time, so many times."""
        self.count += count
        self.total_ns += value_ns * count
        self.max_ns = max(self.max_ns, value_ns)
        self._bins[bin_of(value_ns)] += count

    def quantile_s(self, share: float) -> float:
        """The time that this share of all is not above; the middle of its bin."""
        left = share * self.count
        for (low, width), count in sorted(self._bins.items()):
            left -= count
            if left <= 0:
                return min(low + (width - 1) / 2, self.max_ns) * NS
        return self.max_ns * NS

    def report(self) -> dict[str, Any]:
        """All of it, in seconds; times of nothing are null."""
        return {
            **sums(self.count, self.total_ns, self.max_ns, self.quantile_s),
            "histogram": self.histogram(),
        }

    def brief(self) -> dict[str, Any]:
        """What is told of a part: a CPU's, a process's."""
        report = self.report()
        return {name: report[name] for name in ("count", "mean_s", "p50_s", "p99_s", "max_s", "total_s")}

    def histogram(self) -> list[list[float]]:
        """Bins that are not empty: from, to (both in seconds), count."""
        coarse: Counter[tuple[int, int]] = Counter()
        for (low, _width), count in self._bins.items():
            coarse[bin_of(low, COARSE_BITS)] += count
        return [[low * NS, (low + width) * NS, count] for (low, width), count in sorted(coarse.items())]
