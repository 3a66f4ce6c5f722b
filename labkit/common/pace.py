"""How long the rest of a plan takes, from what its beginning took."""

from __future__ import annotations

PRIOR_S = 10.0  # for so long the plan is believed, before what was seen outweighs it


def pace(done_s: float, elapsed_s: float) -> float:
    """Return the seconds that a planned second takes: `done_s` planned seconds have taken `elapsed_s`."""
    return (elapsed_s + PRIOR_S) / (done_s + PRIOR_S)
