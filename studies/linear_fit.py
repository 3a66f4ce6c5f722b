"""Fit lines to measurements, round by round.

Each round is fitted separately, and the mean of the coefficients over rounds has Student's t interval. So the interval
includes the variation between rounds, for example between set-ups.

The noise of a duration grows with the duration, so sizes are weighted by the inverse square of their means. The
classical test of lack of fit (Draper and Smith, Applied Regression Analysis, 3rd ed., section 2.1) checks whether the
points lie on a line. It compares the distance of the sizes' mean residuals from 0 with their scatter over rounds.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import fdtrc, stdtr, stdtrit

from labkit.analysis import stats
from labkit.common.errors import BadInput
from labkit.common.units import si

Floats = npt.NDArray[np.float64]
EXACT = 1e-18  # squared relative residuals below this are rounding errors
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
MISFIT_BELOW = 0.01  # false alarm rate of the test of lack of fit


@dataclass(frozen=True)
class Estimate:
    """A mean over rounds with its interval, and the two-sided p value against 0.

    low, high and p are None for a single round.
    """

    value: float
    low: float | None
    high: float | None
    rounds_count: int
    p: float | None = None

    @property
    def half(self) -> float:
        """Return half the width of the interval of a mean, or 0 without one."""
        return 0.0 if self.high is None else self.high - self.value

    @property
    def excludes_zero(self) -> bool:
        """Return whether the interval excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def seconds(value: float) -> str:
    """Return a time in words. It may be less than a nanosecond, such as the cost of a byte."""
    return si(value, "s") if abs(value) >= 1e-9 or not value else f"{value * 1e9:.2g} ns"


def interval(one: Estimate) -> str:
    """Return `22.1 µs [20, 24.3]`: all numbers in the unit that suits the largest of them."""
    if one.low is None or one.high is None:
        return seconds(one.value)
    largest = max(abs(one.value), abs(one.low), abs(one.high))
    scale, unit = next(((scale, unit) for scale, unit in UNITS if largest >= scale), UNITS[-1])
    return with_interval(one, ".3g", f" {unit}", scale)


def with_interval(one: Estimate, form: str, unit: str = "", scale: float = 1.0) -> str:
    """Return the value with its unit, and the ends of its interval in the same unit if it has one."""
    known = (value for value in (one.value, one.low, one.high) if value is not None)
    middle, *ends = (f"{value / scale:{form}}".replace("-", "−") for value in known)
    return f"{middle}{unit}" + (f" [{', '.join(ends)}]" if ends else "")


@dataclass(frozen=True)
class Fit:
    """The fits of all rounds.

    `coefficients` is rounds x regressors. `residuals` is rounds x sizes, relative to the mean of the size. `misfit_p`
    is the p value of the test of lack of fit, or None if there are too few rounds or sizes.
    """

    coefficients: Floats
    residuals: Floats
    misfit_p: float | None

    @property
    def misfits(self) -> bool:
        """Return whether the test rejects a line."""
        return self.misfit_p is not None and self.misfit_p < MISFIT_BELOW


def mean(values: npt.ArrayLike, confidence: float = stats.CONFIDENCE) -> Estimate:
    """Return the mean of one value per round. Raises BadInput if there is no value or one is not finite."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not x.size or not np.all(np.isfinite(x)):
        raise BadInput("a mean over rounds needs at least one value, and all values must be finite")
    middle = float(x.mean())
    if x.size < 2:
        return Estimate(middle, None, None, 1)
    error = float(x.std(ddof=1)) / math.sqrt(x.size)
    half = float(stdtrit(x.size - 1, (1 + confidence) / 2)) * error
    p = 2 * float(stdtr(x.size - 1, -abs(middle) / error)) if error else float(middle == 0)
    return Estimate(middle, middle - half, middle + half, x.size, p)


def fit(design: Floats, values: Floats) -> Fit:
    """Fit `values` (rounds x sizes, positive) by `design` (sizes x regressors), round by round.

    Raises BadInput if the sizes do not determine the coefficients.
    """
    sizes_count, count = design.shape
    if values.ndim != 2 or values.shape[1] != sizes_count or not np.all(values > 0):
        raise BadInput("a fit needs a value above 0 of every size in every round")
    scale = values.mean(axis=0)
    scaled, wanted = design / scale[:, None], values / scale
    # The scales of the regressors differ widely (1 to 65507), so they are normalised before the rank is computed.
    if np.linalg.matrix_rank(scaled / np.linalg.norm(scaled, axis=0)) < count:
        raise BadInput(f"{sizes_count} sizes are too few to determine {count} coefficients")
    result, *_ = np.linalg.lstsq(scaled, wanted.T, rcond=None)
    residuals = wanted - (scaled @ result).T
    return Fit(result.T, residuals, _misfit(residuals, sizes_count - count))


def _misfit(residuals: Floats, freedom: int) -> float | None:
    rounds_count = residuals.shape[0]
    if freedom < 1 or rounds_count < 2:
        return None
    middle = residuals.mean(axis=0)
    off = rounds_count * float((middle**2).sum()) / freedom
    scatter = float(((residuals - middle) ** 2).sum()) / (freedom * (rounds_count - 1))
    if off + scatter < EXACT:
        return None
    return float(fdtrc(freedom, freedom * (rounds_count - 1), off / max(scatter, EXACT)))
