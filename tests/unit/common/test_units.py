"""Numbers as text: three digits, and the prefix that fits them."""

from __future__ import annotations

import random
import re

import pytest

from labkit.common import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999.96e6, "1 Gbit/s"),
        (999.4e6, "999 Mbit/s"),
        (-999.96e6, "-1 Gbit/s"),
        (0.99996, "1 bit/s"),
        (0, "0 bit/s"),
    ],
)
def test_rounding_across_a_prefix(value: float, text: str) -> None:
    assert units.si(value, "bit/s") == text


def test_no_number_needs_an_exponent() -> None:
    rng = random.Random(5)
    for _ in range(5000):
        value = rng.choice((-1, 1)) * 10 ** rng.uniform(-8.9, 20.9)
        assert re.fullmatch(r"-?[1-9]\d{0,2}(\.\d+)? [EPTGMkmµn]?B", units.si(value, "B")), value
