"""Numbers and lists of words as text: significant digits, and the prefix that fits them."""

import math
import random
import re

from labkit.common import units


def test_text_of_numbers_and_words() -> None:
    for written, text in (
        *((units.si(value, "bit/s"), text) for value, text in (
            (999.96e6, "1 Gbit/s"), (999.4e6, "999 Mbit/s"), (-999.96e6, "-1 Gbit/s"), (0.99996, "1 bit/s"),
            (0, "0 bit/s"),
        )),
        *((units.percent(share), text) for share, text in (
            (0.153, "15 %"), (0.0153, "1.5 %"), (0.05, "5 %"), (0, "0 %"), (9, "900 %"), (-0.153, "-15 %"),
            (0.0002, "0.02 %"), (-0.000012, "-0.001 %"), (1e-12, "0 %"),
        )),
        *((units.digits(value), text) for value, text in (
            (2281.4, "2,280"), (663_210, "663,000"), (0.76841, "0.768"), (1.0, "1"), (1.23e6, "1,230,000"),
        )),
        *((units.plus_minus(middle, half), text) for middle, half, text in (
            (0.0123, 2e-05, "0.012300 ± 0.000020"), (1234.5, 17.0, "1,234 ± 17"), (2.0, 0.0, "2.0000"),
            (2.5, math.nan, "2.5000"), (math.nan, 1.0, "–"),
        )),
        *((units.listed(words), text) for words, text in (
            (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c"),
        )),
    ):  # fmt: skip
        assert written == text


def test_no_number_needs_an_exponent() -> None:
    rng = random.Random(5)
    for _ in range(5000):
        value = rng.choice((-1, 1)) * 10 ** rng.uniform(-8.9, 20.9)
        assert re.fullmatch(r"-?[1-9]\d{0,2}(\.\d+)? [EPTGMkmµn]?B", units.si(value, "B")), value
