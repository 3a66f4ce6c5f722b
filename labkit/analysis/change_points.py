"""Find where a series changes, and keep what the intervals of its points support."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from labkit.analysis.stats import Floats

LEAST = 4  # points of a series in which a change can be marked
SIDE = 2  # points on either side: a single run that is off is not a change
OFF = 4.0  # standard deviations between neighbours by which a single run is off
CONFIDENCE = 0.99
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

    jumpavg proposes changes. One stays if the 99 % interval of the ratio of the levels on both sides excludes 1. The
    error of a level is that of its points' own intervals, or of their scatter around the levels, whichever is larger.
    The weakest change is dropped first, and its two sides are then one. A single run that is off counts as its
    neighbour.
    """
    if len(y) < LEAST:
        return []
    y = _without_single(y)
    errors = (high - low) / (2 * float(ndtri(0.975)))
    known = errors[np.isfinite(errors)]
    errors = np.where(np.isfinite(errors), errors, np.median(known) if len(known) else 0.0)
    places = _proposed(y, errors)
    while places:
        found = _measured(y, errors, places)
        weakest = min(found, key=lambda one: one[1])
        if weakest[1] > 0:
            return [change for change, _ in found]
        places.remove(weakest[0].place)
    return []


def _without_single(y: Floats) -> Floats:
    """Return the series with each point that is far from both of its neighbours replaced by the nearer one."""
    # The first and the last point have two neighbours on one side.
    ends = np.concatenate([y[2:3], y, y[-3:-2]])
    near = np.median([ends[:-2], y, ends[2:]], axis=0)
    deviation = 1.4826 * float(np.median(np.abs(np.diff(y)))) / math.sqrt(2)
    return np.where(np.abs(y - near) > OFF * deviation, near, y)


def _proposed(y: Floats, errors: Floats) -> list[int]:
    """Return the places that jumpavg proposes: a run is three samples with its mean and its error."""
    from jumpavg import classify

    samples = np.exp((y - y.mean())[:, None] + errors[:, None] * math.sqrt(1.5) * np.array([-1, 0, 1]))
    sizes = [len(group.run_list) for group in classify(samples.tolist())]
    return [int(place) for place in np.cumsum(sizes)[:-1]]


def _measured(y: Floats, errors: Floats, places: Sequence[int]) -> list[tuple[Change, float]]:
    """Return each change, and by how much its interval is beside 1 (its logarithm); negative: not at all."""
    edges = [0, *places, len(y)]
    parts = [slice(*ends) for ends in itertools.pairwise(edges)]
    freedom = len(y) - len(parts)
    scatter = sum(float(((y[part] - y[part].mean()) ** 2).sum()) for part in parts) / max(freedom, 1)
    level = [float(y[part].mean()) for part in parts]
    variance = [max(float((errors[part] ** 2).mean()), scatter) / (part.stop - part.start) for part in parts]
    times = float(stdtrit(max(freedom, 1), (1 + CONFIDENCE) / 2))
    result = []
    for number, place in enumerate(places):
        step = level[number + 1] - level[number]
        half = times * math.sqrt(variance[number] + variance[number + 1])
        alone = min(part.stop - part.start for part in parts[number : number + 2]) < SIDE
        change = Change(place, *(math.exp(value) for value in (step, step - half, step + half)))
        result.append((change, -1.0 if alone else abs(step) - half))
    return result


def flapping(found: Sequence[Change]) -> str | None:
    """Return that changes undo each other, in words, or None."""
    signs = [one.ratio > 1 for one in found]
    if len(found) < FLAPS or any(one == other for one, other in itertools.pairwise(signs)):
        return None
    return f"its {len(found)} changes undo each other, so it flaps between levels, and nothing new need have changed it"
