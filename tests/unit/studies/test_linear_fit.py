"""Linear fits of simulated rounds: intervals reach their nominal coverage, a planted cost per byte is found, and points
that lie on no line are detected."""

import numpy as np
import pytest

from labkit.common.errors import BadInput
from studies import linear_fit

SIZES = np.array([16.0, 64, 200, 400, 800, 1472])
LINE = np.column_stack([np.ones_like(SIZES), SIZES])
FIXED, BYTE = 5e-6, 0.3e-9  # s, s a byte


def rounds(rng: np.random.Generator, expected: linear_fit.Floats, mood: float = 0.05) -> linear_fit.Floats:
    """Return rounds with this expected cost. Noise grows with the cost, and each round has its own common factor."""
    each = 1 + mood * rng.standard_normal((5, 1)) + 0.04 * rng.standard_normal((5, expected.size))
    return expected * each


def test_interval_coverage() -> None:
    rng, hits, trials = np.random.default_rng(7), np.zeros(2), 600
    for _ in range(trials):
        result = linear_fit.fit(LINE, rounds(rng, FIXED + BYTE * SIZES))
        for place, planted in enumerate((FIXED, BYTE)):
            one = linear_fit.mean(result.coefficients[:, place])
            hits[place] += one.low <= planted <= one.high
    # 95 %, within 3.4 standard deviations of a count of 600
    assert np.all(np.abs(hits / trials - 0.95) < 0.03), hits / trials


def test_lack_of_fit_false_alarm_rate() -> None:
    rng, trials = np.random.default_rng(8), 600
    bent = FIXED + BYTE * SIZES + 1.2e-6 * (SIZES < 100)  # small ones cost more
    alarms = sum(linear_fit.fit(LINE, rounds(rng, FIXED + BYTE * SIZES)).misfits for _ in range(trials))
    seen = sum(linear_fit.fit(LINE, rounds(rng, bent)).misfits for _ in range(100))
    assert alarms <= 14, "1 % of 600 are 6"
    assert seen > 80


def test_weights_balance_large_and_small_values() -> None:
    """With 4 % noise at every size, 65507 bytes scatter by more than the whole cost of 16 bytes."""
    rng = np.random.default_rng(10)
    sizes = np.array([16.0, 400, 1472, 9000, 65507])
    design = np.column_stack([np.ones_like(sizes), sizes])
    errors = []
    for _ in range(100):
        values = rounds(rng, 1e-6 + 1e-9 * sizes, mood=0)
        weighted = linear_fit.fit(design, values).coefficients[:, 0].mean()
        plain = np.linalg.lstsq(design, values.T, rcond=None)[0][0].mean()
        errors.append((abs(weighted - 1e-6), abs(plain - 1e-6)))
    weighted_s, plain_s = np.mean(errors, axis=0)
    assert weighted_s < 0.1e-6
    assert weighted_s < plain_s / 3


def test_exact_points_give_exact_coefficients() -> None:
    values = np.array([FIXED + BYTE * SIZES, 2 * (FIXED + BYTE * SIZES)])
    result = linear_fit.fit(LINE, values)
    assert result.coefficients == pytest.approx(np.array([[FIXED, BYTE], [2 * FIXED, 2 * BYTE]]))
    assert result.misfit_p is None
    assert not result.misfits
    bent = values + np.array([1e-6, 0, 0, 0, 0, 0])
    assert linear_fit.fit(LINE, bent).misfits


def test_unfittable_data() -> None:
    for design, values, why in (
        (np.ones((2, 3)), np.ones((4, 2)), "2 sizes are too few to determine 3 coefficients"),
        (
            np.column_stack([np.ones(6), np.full(6, 400.0)]),
            np.ones((4, 6)),
            "6 sizes are too few to determine 2",
        ),
        (LINE, np.zeros((4, 6)), "above 0"),
    ):
        with pytest.raises(BadInput, match=why):
            linear_fit.fit(design, values)
    for none in ([], [1.0, np.nan]):
        with pytest.raises(BadInput, match="at least one value"):
            linear_fit.mean(none)
    one = linear_fit.mean([3.0])
    assert (one.value, one.low, one.high, one.excludes_zero) == (3.0, None, None, False)
    assert linear_fit.fit(LINE, (FIXED + BYTE * SIZES)[None, :]).misfit_p is None
