"""Intervals of `labkit why`: the rate of false alarms without an effect."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.analysis.why import work


@pytest.mark.parametrize("count", [2, 3, 5])
def test_paired_rounds_false_alarm_rate(count: int) -> None:
    """Differences of paired rounds around 0 are significant as rarely as their interval says (5 %), for any number of
    rounds."""
    rng = np.random.default_rng(12)
    draws = 4000
    alarms = 0
    for _ in range(draws):
        estimate = work.paired(rng.normal(size=count))
        alarms += abs(estimate.difference) > estimate.half
    assert 0.04 < alarms / draws < 0.06


def test_paired_rounds_interval() -> None:
    """Student's t with one degree of freedom is 12.706 times the standard error."""
    estimate = work.paired(np.array([-0.1, 0.3]))
    assert estimate.difference == pytest.approx(0.1)
    assert estimate.half == pytest.approx(12.706 * 0.2, rel=1e-3)
