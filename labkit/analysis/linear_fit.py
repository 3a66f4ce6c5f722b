"""Straight lines through what was measured in rounds: each round is fitted by itself, and what the rounds' coefficients
agree on has Student's t interval. So whatever a round has in common (a set-up, the machine's mood) is in the interval.

The noise of a duration grows with it, therefore sizes are weighted by one over the square of their mean. Whether a line
is what the points lie on is asked by the classical test of lack of fit (Draper and Smith, Applied Regression Analysis,
3rd ed., section 2.1): how far the mean residuals of the sizes are from 0, against how much they scatter over rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import fdtrc, stdtr, stdtrit

from labkit.analysis import stats
from labkit.common.errors import BadInput

Floats = npt.NDArray[np.float64]
EXACT = 1e-18  # of squared relative residuals: no more than rounding
MISFIT_BELOW = 0.01  # a line that fits is said not to in one of a hundred fits


@dataclass(frozen=True)
class Estimate:
    """A mean over rounds with its interval, and how often chance alone would lead so far from 0 (`p`); without them
    (None) after a single round."""

    value: float
    low: float | None
    high: float | None
    rounds_count: int
    p: float | None = None

    @property
    def excludes_zero(self) -> bool:
        """Whether the sign is known."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Fit:
    """A fit of each round: `coefficients` (rounds x regressors), and `residuals` (rounds x sizes) relative to the mean
    of the size. `misfit_p`: how often points on a line would lie so far off it by chance; None where nothing can be
    told."""

    coefficients: Floats
    residuals: Floats
    misfit_p: float | None

    @property
    def misfits(self) -> bool:
        """Whether the points do not lie on a line."""
        return self.misfit_p is not None and self.misfit_p < MISFIT_BELOW


def mean(values: npt.ArrayLike, confidence: float = stats.CONFIDENCE) -> Estimate:
    """The mean of one value for each round. Raises BadInput for none, or one that is not finite."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not x.size or not np.all(np.isfinite(x)):
        raise BadInput("a mean over rounds needs at least one value, and every one finite")
    middle = float(x.mean())
    if x.size < 2:
        return Estimate(middle, None, None, 1)
    error = float(x.std(ddof=1)) / math.sqrt(x.size)
    half = float(stdtrit(x.size - 1, (1 + confidence) / 2)) * error
    p = 2 * float(stdtr(x.size - 1, -abs(middle) / error)) if error else float(middle == 0)
    return Estimate(middle, middle - half, middle + half, x.size, p)


def fit(design: Floats, values: Floats) -> Fit:
    """Fit `values` (rounds x sizes, all above 0) by `design` (sizes x regressors), round by round.

    Raises BadInput where the sizes do not tell the regressors apart.
    """
    sizes_count, count = design.shape
    if values.ndim != 2 or values.shape[1] != sizes_count or not np.all(values > 0):
        raise BadInput("a fit needs a value above 0 of every size in every round")
    scale = values.mean(axis=0)
    scaled, wanted = design / scale[:, None], values / scale
    # Regressors are of very different sizes (1, and up to 65507): the rank is of what is scaled alike.
    if np.linalg.matrix_rank(scaled / np.linalg.norm(scaled, axis=0)) < count:
        raise BadInput(f"{sizes_count} sizes do not tell {count} coefficients apart")
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
