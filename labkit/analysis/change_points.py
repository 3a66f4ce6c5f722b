"""Find where a series changes, and keep what the intervals of its points support."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from labkit.analysis.stats import Floats

LEAST = 4  # points of a series in which a change can be marked
TOGETHER = 250  # points that jumpavg gets: its time grows with their square
SIDE = 2  # points on either side: a single run that is off is not a change
OFF = 4.0  # standard deviations between neighbours by which a single run is off
CONFIDENCE = 0.999  # higher than of one comparison, because every place of a series could be marked
# Two levels must leave less of the scatter around them than a straight line leaves: else the series drifts. Of N points
# they leave less by chance as well: a share of exp(-DRIFT / N) is a likelihood ratio of e^2.
STEP, DRIFT = 0.9, 4.2
# Autocorrelated noise (AR(1)) looks like levels. Levels must explain a series better than such noise alone, by a
# likelihood ratio of e^5.5. Of 100 simulated series of 20, 40 and 80 points with an autocorrelation of 0.6, 3, 6 and 2
# have a false mark then, instead of 9, 20 and 15. Of steps by three standard deviations among 40 points, 70 % are found
# in such noise, instead of 80 %, and 98 % in white noise, as before.
AUTOCORRELATED = 11.0
FLAPS = 3  # changes that undo each other, from which on a series flaps


@dataclass(frozen=True)
class Change:
    """A change before the point at `place`: the ratio of the level after it to the level before, with its interval."""

    place: int
    ratio: float
    low: float
    high: float


def changes(y: Floats, low: Floats, high: Floats) -> list[Change]:
    """Return the changes of a series of logarithms with the ends of their 95 % intervals (NaN: not known).

    jumpavg proposes changes, where a run's error is at least half of the variance between neighbours. One stays if the
    99.9 % interval of the ratio of the levels on both sides excludes 1, and two levels fit better than a straight line
    and than autocorrelated noise. The error of a level is that of its points' own intervals, or of their scatter around
    the levels, whichever is larger; neighbours that resemble each other count as fewer points. The weakest change is
    dropped first, and its two sides are then one. A single run that is off counts as its neighbour.
    """
    if len(y) < LEAST:
        return []
    y = without_outliers(y)
    errors = np.fmax((high - low) / (2 * float(ndtri(0.975))), _deviation(y) / math.sqrt(2))
    places = _proposed(y, errors)
    while places:
        found = _measured(y, errors, places)
        weakest = min(found, key=lambda one: one[1])
        if weakest[1] > 0:
            return [change for change, _ in found]
        places.remove(weakest[0].place)
    return []


def without_outliers(y: Floats) -> Floats:
    """Return the series with each point that is far from both of its neighbours replaced by the nearer one; one that is
    too short as it is."""
    if len(y) < LEAST:
        return y
    # The first and the last point have two neighbours on one side.
    ends = np.concatenate([y[2:3], y, y[-3:-2]])
    near = np.median([ends[:-2], y, ends[2:]], axis=0)
    return np.where(np.abs(y - near) > OFF * _deviation(y), near, y)


def _deviation(y: Floats) -> float:
    """Return the standard deviation of a point, by the differences of neighbours, which a change hardly moves."""
    return 1.4826 * float(np.median(np.abs(np.diff(y)))) / math.sqrt(2)


def _proposed(y: Floats, errors: Floats) -> list[int]:
    """Return the places that jumpavg proposes: a run is three samples with its mean and its error."""
    from jumpavg import classify

    spread = errors[:, None] * math.sqrt(1.5) * np.array([-1, 0, 1])
    samples = np.exp((y - y.mean())[:, None] + spread).tolist()
    sizes = [
        len(group.run_list)
        for begin in range(0, len(y), TOGETHER)
        for group in classify(samples[begin : begin + TOGETHER])
    ]
    return [int(place) for place in np.cumsum(sizes)[:-1]]


def _measured(y: Floats, errors: Floats, places: Sequence[int]) -> list[tuple[Change, float]]:
    """Return each change, and by how much its interval is beside 1 (its logarithm); negative: not at all."""
    edges = [0, *places, len(y)]
    parts = [slice(*ends) for ends in itertools.pairwise(edges)]
    freedom = len(y) - len(parts)
    level = [float(y[part].mean()) for part in parts]
    rest = y - np.repeat(level, [part.stop - part.start for part in parts])
    square = float(rest @ rest)
    # The autocorrelation of neighbours, which residuals of many levels have too little of.
    alike = min(max(float(rest[1:] @ rest[:-1]) / square + len(parts) / len(y), 0.0), 0.9) if square else 0.0
    inflation = (1 + alike) / (1 - alike)
    scatter = square / max(freedom, 1) * inflation
    variance = [max(float((errors[part] ** 2).mean()), scatter) / (part.stop - part.start) for part in parts]
    times = float(stdtrit(max(freedom, 1), (1 + CONFIDENCE) / 2))
    result = []
    for number, place in enumerate(places):
        step = level[number + 1] - level[number]
        half = times * math.sqrt(variance[number] + variance[number + 1])
        both = parts[number : number + 2]
        around = slice(both[0].start, both[1].stop)
        line = np.polyval(np.polyfit(np.arange(len(y))[around], y[around], 1), np.arange(len(y))[around])
        share = max(STEP, math.exp(-DRIFT * inflation / len(line)))
        drifts = float((rest[around] ** 2).sum()) > share * float(((y[around] - line) ** 2).sum())
        noise, levels = (_innovations(one) for one in (y[around] - y[around].mean(), rest[around]))
        is_noise = noise < math.exp(AUTOCORRELATED / len(line)) * levels
        alone = min(part.stop - part.start for part in both) < SIDE
        change = Change(place, *(math.exp(value) for value in (step, step - half, step + half)))
        result.append((change, -1.0 if alone or drifts or is_noise else abs(step) - half))
    return result


def _innovations(y: Floats) -> float:
    """Return the sum of squared innovations of a series with mean 0, as an AR(1) process."""
    square = float(y[:-1] @ y[:-1])
    alike = min(max(float(y[1:] @ y[:-1]) / square, 0.0), 0.99) if square else 0.0
    left = y[1:] - alike * y[:-1]
    return float(left @ left) + (1 - alike * alike) * float(y[0]) ** 2


def flapping(found: Sequence[Change]) -> str | None:
    """Return that changes undo each other, in words, or None."""
    signs = [one.ratio > 1 for one in found]
    if len(found) < FLAPS or any(one == other for one, other in itertools.pairwise(signs)):
        return None
    return f"its {len(found)} changes undo each other, so it flaps between levels, and nothing new need have changed it"
