"""Numbers for people. Everything inside labkit is in base units; only texts and axes use these."""

from __future__ import annotations

import math

_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def si(value: float | None, unit: str) -> str:
    """`12.3 Gbit/s` of 1.23e10 and `bit/s`; an absent value is a dash."""
    if value is None or value != value:
        return "–"
    for step, prefix in _STEPS:
        if abs(value) >= step:
            return f"{value / step:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def duration(seconds: float) -> str:
    """`4 min 10 s`, `12 s`, `0.4 s`."""
    if seconds < 1:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def many(count: int, thing: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{count} {thing}{'s' * (count != 1)}"


def percent(share: float) -> str:
    """A share in per cent for a sentence: 0.153 -> "15 %", 0.0153 -> "1.5 %"."""
    number = f"{100 * share:.1f}".removesuffix(".0") if abs(share) < 0.0995 else f"{100 * share:.0f}"
    return f"{number if share < 100 else f'{100 * share:.2g}'} %"


def give_or_take(middle: float, half: float, sign: bool = False) -> str:
    """`12.3 ± 1.4`: a number with half its interval, as many digits as that leaves sure and one more. The number alone
    where the interval is none or nothing; a dash where there is no number."""
    if math.isnan(middle):
        return "–"
    least = half if half > 0 else abs(middle) / 1000 or 1.0
    decimals = max(0, 1 - math.floor(math.log10(least)))
    text = f"{middle:{'+' if sign else ''},.{decimals}f}"
    return text if math.isnan(half) or half == 0 else f"{text} ± {half:,.{decimals}f}"
