"""Numbers as text. labkit computes in base units; only texts and axes use these functions."""

import math
import time
from collections.abc import Sequence

_STEPS = (
    (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"),
    (1e-9, "n"),
)  # fmt: skip


def si(value: float | None, unit: str) -> str:
    """Format a value with an SI prefix: 1.23e10 and `bit/s` give `12.3 Gbit/s`. None and NaN give a dash."""
    if value is None or value != value:
        return "–"
    for step, prefix in _STEPS:
        if float(f"{abs(value) / step:.3g}") >= 1:  # 999.96e6 is 1 G, not 1e+03 M
            return f"{value / step:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def duration(seconds: float) -> str:
    """Format seconds: `4 min 10 s`, `12 s`, `0.4 s`."""
    if seconds < 1:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def time_of_day(time_ns: int) -> str:
    """Return the local time of day of a packet: `12:34:56.789012`."""
    return f"{time.strftime('%H:%M:%S', time.localtime(time_ns // 10**9))}.{time_ns % 10**9 // 1000:06d}"


def counted(count: int, thing: str) -> str:
    """Format a count with its noun: `1 round`, `2 rounds`, `2 searches`."""
    ending = "" if count == 1 else "es" if thing.endswith("ch") else "s"
    return f"{count} {thing}{ending}"


def listed(words: Sequence[str]) -> str:
    """Join words as a sentence does: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def shortened(words: Sequence[str], most: int, joint: str = ", ") -> str:
    """Join the first words, and say how many more there are: `a, b and 3 more`."""
    return joint.join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def digits(value: float, sign: bool = False) -> str:
    """Format a number with three significant digits and no exponent: 20234 gives `20,200`, 0.7684 gives `0.768`."""
    return f"{float(f'{value:.3g}'):{'+' if sign else ''},.15g}"


def percent(share: float) -> str:
    """Format a share in per cent: 0.153 gives `15 %`, 0.0153 gives `1.5 %`, 0.0002 gives `0.02 %`."""
    number = f"{100 * share:.1f}".removesuffix(".0") if abs(share) < 0.0995 else f"{100 * share:.0f}"
    if 1e-6 <= abs(share) < 0.0005:  # not 0, and more than an error of rounding
        number = f"{float(f'{100 * share:.1g}'):.6f}".rstrip("0")
    return f"{number if share < 100 else f'{100 * share:.2g}'} %"


def exact_percent(share: float) -> str:
    """Format a share that somebody chose, with all its digits: 0.0125 gives `1.25 %`."""
    return f"{100 * share:.12g} %"


def plus_minus(middle: float, half: float, sign: bool = False) -> str:
    """Format a number with half the width of its interval: `12.3 ± 1.4`.

    It has as many digits as the interval makes certain, and one more. Without an interval (NaN or 0) the result is the
    number alone; NaN gives a dash.
    """
    if math.isnan(middle):
        return "–"
    least = half if half > 0 else abs(middle) / 1000 or 1.0
    decimals = max(0, 1 - math.floor(math.log10(least)))
    text = f"{middle:{'+' if sign else ''},.{decimals}f}"
    return text if math.isnan(half) or half == 0 else f"{text} ± {half:,.{decimals}f}"
