"""Histograms of durations with bins of equal relative width, so that memory is bounded for any number of them."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

FINE_BITS, COARSE_BITS = 6, 3  # bins per power of two: 64 for quantiles (error below 1 %), 8 in a row
NS = 1e-9
QUANTILES = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}


def bin_of(value: int, bits: int = FINE_BITS) -> tuple[int, int]:
    """Return the bin of a value: lower bound and width."""
    shift = max(0, value.bit_length() - bits - 1)
    return value >> shift << shift, 1 << shift


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
        """Return the summary and the histogram, in seconds; without any duration, mean and quantiles are None."""
        result: dict[str, Any] = {
            "count": self.count,
            "mean_s": None,
            **dict.fromkeys(QUANTILES),
            "max_s": None,
        }
        if self.count:
            result |= {"mean_s": self.total_ns / self.count * NS, "max_s": self.max_ns * NS}
            result |= {name: self.quantile_s(share) for name, share in QUANTILES.items()}
        return {**result, "total_s": self.total_ns * NS, "histogram": self.histogram()}

    def brief(self) -> dict[str, Any]:
        """Return the short summary for one CPU or process."""
        return {name: value for name, value in self.report().items() if name != "histogram"}

    def histogram(self) -> list[list[float]]:
        """Return the non-empty bins: from, to (seconds), count."""
        coarse: Counter[tuple[int, int]] = Counter()
        for (low, _width), count in self._bins.items():
            coarse[bin_of(low, COARSE_BITS)] += count
        return [[low * NS, (low + width) * NS, count] for (low, width), count in sorted(coarse.items())]


class Powers(Distribution):
    """Durations in bins that are powers of two: the quantiles are interpolated within them."""

    def merge(self, count: int, total_ns: int, max_ns: int, bins: Mapping[int, int]) -> None:
        """Add so many durations. `bins`: lower bound, a power of two or 0, to count."""
        self.count += count
        self.total_ns += total_ns
        self.max_ns = max(self.max_ns, max_ns)
        self._bins.update({(low, max(1, low)): number for low, number in bins.items() if number})

    def quantile_s(self, share: float) -> float:
        left = share * self._bins.total()
        for (low, width), count in sorted(self._bins.items()):
            if left <= count:
                return min(low + width * left / count, self.max_ns) * NS
            left -= count
        return self.max_ns * NS

    def histogram(self) -> list[list[float]]:
        return [[low * NS, (low + width) * NS, count] for (low, width), count in sorted(self._bins.items())]


Kind = TypeVar("Kind", bound=Distribution)


class Collected(Generic[Kind]):
    """Calls by function, and for each function by CPU and by process."""

    def __init__(self, names: Sequence[str], kind: type[Kind]) -> None:
        self.all = {name: kind() for name in names}
        self.cpus = {name: defaultdict[str, Kind](kind) for name in names}
        self.processes = {name: defaultdict[str, Kind](kind) for name in names}

    def parts(self, name: str, cpu: str, process: str) -> tuple[Kind, Kind, Kind]:
        """Return all that a call of this function is part of."""
        return self.all[name], self.cpus[name][cpu], self.processes[name][process]

    def report(self) -> dict[str, Any]:
        """Return the form that a row has."""
        return {
            name: {
                **one.report(),
                "cpus": {cpu: part.brief() for cpu, part in sorted(self.cpus[name].items())},
                "processes": {of: part.brief() for of, part in sorted(self.processes[name].items())},
            }
            for name, one in self.all.items()
        }
