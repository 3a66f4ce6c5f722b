"""The price list of changes: the cost of each in CPU time, per gigabyte (TCP), packet (UDP), request or connection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import load, stats
from labkit.analysis.figures.forest_plot import forest
from labkit.analysis.load import GROUP
from labkit.analysis.protocols import PROTOCOLS
from labkit.common import units
from studies.linear_fit import Estimate, interval, seconds

# The units of work that have a price, by protocol
PRICED = {name: one.unit for name, one in PROTOCOLS.items() if one.work != "cpu_second"}
# For the words of `stats.verdict` about something that is better if less
WORDS = {"slower": "more expensive", "faster": "cheaper"}
COLUMNS = [
    "topology", "baseline", "ratio", "low", "high", "control_low", "control_high", "cost_s", "baseline_s",
    "rounds_count", "word", "sentence",
]  # fmt: skip


def prices(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the cost of each arm relative to the baseline, a row for each group and arm; columns GROUP and COLUMNS.

    `ratio`, `low`, `high`: the ratio of the whole machine's CPU time per unit (PRICED) received, paired by round, with
    the 95 % interval of Student's t; `word`: what `stats.verdict` concludes. `cost_s`: the difference in seconds per
    unit, from the ratio and the geometric mean of both measurements of the baseline (`baseline_s`). A round's value is
    the sum of its CPU time divided by that of its received units, over slices if there are any, else over whole runs.
    """
    result = [
        line
        for key, group in load.groups(_per_round(rows))
        for line in _lines(group, dict(zip(GROUP, key, strict=True)))
    ]
    numbers = [name for name in COLUMNS if name.endswith(("ratio", "low", "high", "_s", "_count"))]
    return pd.DataFrame(result, columns=[*GROUP, *COLUMNS]).astype(dict.fromkeys(numbers, float))


def _per_round(rows: pd.DataFrame) -> pd.DataFrame:
    ok = load.measured_rows(load.complete(rows))
    ok = ok[ok["protocol"].isin(list(PRICED))]
    slices = ok["method"].eq("slice")
    ok = ok[slices | ~slices.groupby([ok["setup"], ok["protocol"]]).transform("any")]
    arrived = pd.Series(np.nan, ok.index)
    for name, unit in PRICED.items():
        arrived = arrived.mask(ok["protocol"].eq(name), ok[unit.work] / unit.one)
    # The generator counts requests in a time of its own, so their rate gives those in the window of the CPU time.
    rate = ok["transaction_rate"]
    arrived = arrived.mask(rate.notna(), rate * ok["window_s"])
    placed = ok["method"].ne("slice") | ok["placement"].notna()
    by = ok.assign(arrived=arrived, placed=placed).groupby(
        [*GROUP, "role", "topology", "setup"], dropna=False, sort=False
    )
    sums = by[["cpu_s", "arrived"]].sum(min_count=1).assign(placed=by["placed"].all()).reset_index()
    sums = sums[sums["arrived"].gt(0) & sums["cpu_s"].gt(0)]
    return sums.assign(log=np.log(sums["cpu_s"] / sums["arrived"]))


def _lines(group: pd.DataFrame, of: dict[str, Any]) -> list[dict[str, Any]]:
    base, again = (
        group[group["role"].eq(role)].set_index("setup")["log"] for role in ("baseline", "control")
    )
    names = group.loc[group["role"].eq("baseline"), "topology"]
    if base.empty:
        return []
    placed = bool(group["placed"].all())
    control = _effect(again - base, placed)
    both = pd.concat([base, again], axis=1).mean(axis=1)
    unit = PRICED[str(of["protocol"])].short
    result = []
    for arm, own in group[group["role"].eq("variant")].groupby("topology", sort=False):
        effect, baseline_s = _effect(own.set_index("setup")["log"] - both, placed), float(np.exp(both.mean()))
        if effect is None:
            continue
        word = stats.verdict(effect, control, higher_is_better=False).word
        effect, cost_s = stats.widened(effect, control), baseline_s * (effect.ratio - 1)
        result.append({
            **of, "topology": arm, "baseline": names.iloc[0], "ratio": effect.ratio, "low": effect.low,
            "high": effect.high, "control_low": control and control.low, "control_high": control and control.high,
            "cost_s": cost_s, "baseline_s": baseline_s, "rounds_count": effect.n_count, "word": WORDS.get(word, word),
            "sentence": f"{arm}: {_price(cost_s, baseline_s, effect, unit)}",
        })  # fmt: skip
    return result


def _effect(logs: pd.Series[float], placed: bool) -> stats.Effect | None:
    known = np.asarray(logs.dropna(), np.float64)
    return stats.effect(known, lost=stats.lost_freedom(len(known), placed)) if len(known) else None


def _price(cost_s: float, baseline_s: float, effect: stats.Effect, unit: str) -> str:
    low, high = (None if end is None else baseline_s * (end - 1) for end in (effect.low, effect.high))
    cost = interval(Estimate(cost_s, low, high, effect.n_count))
    return f"{cost} of CPU time for each {unit}; the unchanged topology takes {seconds(baseline_s)}"


def price_sentences(prices: pd.DataFrame) -> list[str]:
    """Return sentences about the price of each change, the most expensive first, then the changes without evidence."""
    lines = []
    for key, group in load.groups(prices):
        known = group[group["word"].ne("no evidence")].sort_values("cost_s", ascending=False)
        lines += [f"{load.group_text(key)}: {sentence}." for sentence in known["sentence"]]
        if unknown := list(group.loc[group["word"].eq("no evidence"), "topology"]):
            arms = units.listed(unknown)
            lines.append(f"{load.group_text(key)}: no evidence that {arms} cost more or less CPU time.")
    return lines


def price_list(prices: pd.DataFrame) -> go.Figure:
    """Draw the forest plot of `prices`: CPU time per GB (TCP), packet (UDP), request or connection, as a ratio to the
    baseline."""
    return forest(
        prices,
        "CPU time for each GB (TCP), packet (UDP), request and connection",
        "the whole machine's CPU time, paired by round",
        reading="right of 1 costs more",
    )
