"""Histograms of durations with bins of equal relative width, so that memory is bounded for any number of them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

FINE_BITS, COARSE_BITS = 6, 3  # bins per power of two: 64 for quantiles (error below 1 %), 8 in a row
NS = 1e-9
QUANTILES = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}


def bin_of(value: int, bits: int = FINE_BITS) -> tuple[int, int]:
    """Return the bin of a value: lower bound and width."""
    shift = max(0, value.bit_length() - bits - 1)
    return value >> shift << shift, 1 << shift


def sums(count: int, total_ns: int, max_ns: int, quantile_s: Callable[[float], float]) -> dict[str, Any]:
    """Return the summary of these durations in seconds; without any, mean and quantiles are None."""
    result: dict[str, Any] = {"count": count, "mean_s": None, **dict.fromkeys(QUANTILES), "max_s": None}
    if count:
        result |= {"mean_s": total_ns / count * NS, "max_s": max_ns * NS}
        result |= {name: quantile_s(share) for name, share in QUANTILES.items()}
    return {**result, "total_s": total_ns * NS}


class Distribution:
    """Durations in whole nanoseconds."""

    def __init__(self) -> None:
        self.count = self.total_ns = self.max_ns = 0
        self._bins: Counter[tuple[int, int]] = Counter()

    def add(self, value_ns: int, count: int = 1) -> None:
        """Add a duration `count` times."""
        self.count += count
        self.total_ns += value_ns * count
        self.max_ns = max(self.max_ns, value_ns)
        self._bins[bin_of(value_ns)] += count

    def quantile_s(self, share: float) -> float:
        """Return the quantile `share` in seconds: the middle of its bin."""
        left = share * self.count
        for (low, width), count in sorted(self._bins.items()):
            left -= count
            if left <= 0:
                return min(low + (width - 1) / 2, self.max_ns) * NS
        return self.max_ns * NS

    def report(self) -> dict[str, Any]:
        """Return the summary and the histogram, in seconds."""
        return {
            **sums(self.count, self.total_ns, self.max_ns, self.quantile_s),
            "histogram": self.histogram(),
        }

    def brief(self) -> dict[str, Any]:
        """Return the short summary for one CPU or process."""
        report = self.report()
        return {name: report[name] for name in ("count", "mean_s", "p50_s", "p99_s", "max_s", "total_s")}

    def histogram(self) -> list[list[float]]:
        """Return the non-empty bins: from, to (seconds), count."""
        coarse: Counter[tuple[int, int]] = Counter()
        for (low, _width), count in self._bins.items():
            coarse[bin_of(low, COARSE_BITS)] += count
        return [[low * NS, (low + width) * NS, count] for (low, width), count in sorted(coarse.items())]
