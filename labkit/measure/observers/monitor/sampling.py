"""Which of the selected packets are looked at: a sampler is made from its name and numbers, such as `one_in:100`.

Schemes of RFC 5475: count-based and time-based systematic sampling, and uniform probabilistic sampling.
"""

import math
import random
from collections.abc import Callable

from labkit.common.errors import BadInput

Sampler = Callable[[int, int, bytes], bool]  # time in ns, bytes of the whole packet, key of its flow
MAX_FLOWS = 65_536  # whose bytes so far are remembered; beyond that all are forgotten, and each begins again


def _one_in(count: float) -> Sampler:
    at = 0

    def sample(_time_ns: int, _length: int, _flow: bytes) -> bool:
        nonlocal at
        at += 1
        if at < count:
            return False
        at = 0
        return True

    return sample


def _random(probability: float, seed: float | None = None) -> Sampler:
    draw = random.Random(seed).random
    return lambda _time_ns, _length, _flow: draw() < probability


def _interval(count: float, seconds: float) -> Sampler:
    interval_ns = round(seconds * 1e9)
    current, taken = -1, 0

    def sample(time_ns: int, _length: int, _flow: bytes) -> bool:
        nonlocal current, taken
        if (number := time_ns // interval_ns) != current:
            current, taken = number, 0
        taken += 1
        return taken <= count

    return sample


def _first(limit_bytes: float) -> Sampler:
    flows: dict[bytes, int] = {}

    def sample(_time_ns: int, length: int, flow: bytes) -> bool:
        before = flows.get(flow, 0)
        if before >= limit_bytes:
            return False
        if len(flows) >= MAX_FLOWS:
            flows.clear()
        flows[flow] = before + length
        return True

    return sample


COUNTS, BYTES, TIMES_S = range(1, 10**9 + 1), range(1, 10**12 + 1), (0.001, 86_400)
# Each: how it is made, its form, for each of its numbers the least and the greatest (a range: only whole numbers), and
# how many of these are needed.
SAMPLERS: dict[str, tuple[Callable[..., Sampler], str, tuple[tuple[float, float] | range, ...], int]] = {
    "all": (lambda: lambda *_: True, "all", (), 0),
    "one_in": (_one_in, "one_in:N (1 packet in N)", (COUNTS,), 1),
    "random": (_random, "random:P (with probability P; random:P:SEED)", ((0, 1), range(10**9 + 1)), 1),
    "interval": (_interval, "interval:N:S (the first N packets of every S seconds)", (COUNTS, TIMES_S), 2),
    "first": (_first, "first:B (packets that begin in the first B bytes of a flow)", (BYTES,), 1),
}


def _is_within(number: float, limits: tuple[float, float] | range) -> bool:
    if isinstance(limits, range):  # a range looks for a float number by number
        return number.is_integer() and int(number) in limits
    return limits[0] <= number <= limits[1]


def sampler(text: str) -> Sampler:
    """Make a sampler from a text such as `all`, `one_in:100`, `random:0.01`, `interval:10:1` or `first:4096`. Raises
    BadInput for another text."""
    name, *words = text.split(":")
    make, _form, limits, least = SAMPLERS.get(name, SAMPLERS["all"])
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = [math.nan]
    fits = least <= len(numbers) <= len(limits)
    if name not in SAMPLERS or not fits or not all(map(_is_within, numbers, limits)):
        forms = ", ".join(form for _make, form, _limits, _least in SAMPLERS.values())
        raise BadInput(f"sample={text[:100]!r} is no way to sample: choose {forms}")
    return make(*numbers)
