"""What follows from perf's events together: cycles per instruction, shares of accesses and branches that missed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from labkit.analysis import stats
from labkit.analysis.flame.significance import half_interval
from labkit.common import units

Rounds = list[Mapping[str, float]]  # the events of each round
# What an event is a part of, or is divided by, as perf names them (perf-list(1)); a modifier (`:k`) stays
PARTS = (
    (r"cycles(:\w+)?", r"instructions\1", "cycles per instruction"),
    (r"(.+-(?:load|store))-misses(:\w+)?", r"\1s\2", ""),
    (r"(.+-prefetch)-misses(:\w+)?", r"\1es\2", ""),
    (r"branch-misses(:\w+)?", r"branches\1", ""),
    (r"cache-misses(:\w+)?", r"cache-references\1", ""),
)


def ratios(events: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Each with what it is called: of one round, as far as both events were counted."""
    for event, count in events.items():
        for form, divisor, name in PARTS:
            if not (result := re.fullmatch(form, event)):
                continue
            by = result.expand(divisor)
            if events.get(by):
                modifier = f" ({event.partition(':')[2]})" if name and ":" in event else ""
                yield f"{name}{modifier}" if name else f"{event} / {by}", count / events[by]


def table(heads: list[str], left: Rounds, right: Rounds) -> pd.DataFrame:
    """Means over rounds with half their 95 % intervals, and right to left with its interval, where rounds are pairs."""
    sides = [[dict(ratios(events)) for events in rounds] for rounds in (left, right)]
    names = [name for name in sides[0][0] if all(name in each for rounds in sides for each in rounds)]
    result = {}
    for name in names:
        values = [np.array([each[name] for each in rounds]) for rounds in sides]
        own = {
            head: units.give_or_take(float(of.mean()), half_interval(of))
            for head, of in zip(heads, values, strict=True)
        }
        paired = len(values[0]) == len(values[1]) and min(of.min() for of in values) > 0
        effect = stats.effect(np.log(values[1] / values[0])) if paired else None
        result[name] = {
            **own,
            "ratio": stats.ratio_text(effect.ratio, effect.low, effect.high) if effect else "–",
        }
    return pd.DataFrame(result).T
