"""Derive ratios from perf's events: cycles per instruction, and miss rates of accesses and branches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import stats
from labkit.analysis.flame.significance import (
    Estimate,
    RunVariation,
    beyond_control,
    estimate,
    half_interval,
    paired_mean,
)
from labkit.common import units

Rounds = Mapping[
    tuple[str, int], Mapping[str, float]
]  # the values of each round of a run, by folder and round
# Event, divisor and name of each ratio, with perf's event names (perf-list(1)); the modifier (`:k`) is kept
PARTS = (
    (r"cycles(:\w+)?", r"instructions\1", "cycles per instruction"),
    (r"(.+-(?:load|store))-misses(:\w+)?", r"\1s\2", ""),
    (r"(.+-prefetch)-misses(:\w+)?", r"\1es\2", ""),
    (r"branch-misses(:\w+)?", r"branches\1", ""),
    (r"cache-misses(:\w+)?", r"cache-references\1", ""),
)


def ratios(events: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each ratio of one round for which both events were counted."""
    for event, count in events.items():
        for form, divisor, name in PARTS:
            if not (match := re.fullmatch(form, event)):
                continue
            by = match.expand(divisor)
            if events.get(by):
                modifier = f" ({event.partition(':')[2]})" if name and ":" in event else ""
                yield f"{name}{modifier}" if name else f"{event} / {by}", count / events[by]


def by_round(seen: Sequence[tuple[Any, pd.Series]], values: Sequence[Mapping[str, float]]) -> Rounds:
    """Return the values of each round. seen: the report and the row of each."""
    return {(str(row["folder"]), int(row["round"])): of for (_, row), of in zip(seen, values, strict=True)}


def table(heads: list[str], sides: Sequence[Rounds], variation: RunVariation | None) -> pd.DataFrame:
    """Return a table of means over rounds with half their 95 % intervals, one row per ratio.

    sides: left, right, and left measured again (A/A), which may have no rounds. The column `ratio` is right divided by
    left with its interval. Within one run it is of the rounds that both sides have; between runs its interval includes
    their variation.
    """
    of = [{at: dict(ratios(events)) for at, events in rounds.items()} for rounds in sides]
    return means(heads, of, variation)


def means(heads: list[str], sides: Sequence[Rounds], variation: RunVariation | None) -> pd.DataFrame:
    """Return the table of `table` for values that both sides have in every round."""
    both = [each for rounds in sides[:2] for each in rounds.values()]
    result = {}
    for name in (name for name in both[0] if all(name in each for each in both)):
        values = [
            pd.Series({at: each[name] for at, each in rounds.items() if name in each}, dtype=float)
            for rounds in sides
        ]
        own = {
            head: units.plus_minus(float(of.mean()), half_interval(np.asarray(of, dtype=np.float64)))
            for head, of in zip(heads, values[:2], strict=True)
        }
        result[name] = {**own, "ratio": _ratio_text(values[0], values[1], values[2], variation)}
    return pd.DataFrame(result).T


def _ratio_text(left: pd.Series, right: pd.Series, again: pd.Series, variation: RunVariation | None) -> str:
    if min(left.min(), right.min()) <= 0 or (size := _log_ratio(left, right, variation)) is None:
        return "–"
    size = beyond_control(size, _log_ratio(left, again[again > 0], None))
    low, high = (None if np.isnan(one) else float(np.exp(one)) for one in (size.low, size.high))
    return stats.ratio_text(float(np.exp(size.difference)), low, high)


def _log_ratio(left: pd.Series, right: pd.Series, variation: RunVariation | None) -> Estimate | None:
    """Return the logarithm of right divided by left, or None if they are of one run and have no round in common."""
    if variation is not None:
        return estimate(np.log(left.to_numpy()), np.log(right.to_numpy()), replace(variation, absolute=True))
    paired = (right / left).dropna()  # pandas pairs by the index, that is by run and round
    return None if paired.empty else paired_mean(np.log(paired.to_numpy()))
