"""Estimate how long the rest of a plan takes, from the time that its beginning took."""

PRIOR_S = 10.0  # weight of the plan: the observed pace dominates after this many planned seconds


def pace(done_s: float, elapsed_s: float) -> float:
    """Return the real seconds per planned second, given that `done_s` planned seconds took `elapsed_s`."""
    return (elapsed_s + PRIOR_S) / (done_s + PRIOR_S)
