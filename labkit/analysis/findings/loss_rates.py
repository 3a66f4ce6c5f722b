"""State the rates at which datapaths begin to lose packets (experiment `throughput`).

Each rate has its interval over the searches, and the latencies under load follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import load, stats
from labkit.analysis.load import GROUP, HOST, generator_limited, groups, unsupported_rates, varying
from labkit.common import schema
from labkit.common.units import counted, percent, si

# The parameters of a search beside its goal; searches that differ in one of them have rates of their own.
_FIRST = ("frame", "flows_count", "pairs", "mtu_bytes", "family")
BY = (*_FIRST, *(name for name in GROUP[len(HOST) :] if name not in (*_FIRST, "loss_goal_ratio")))
COLUMNS = [
    "status", "reason", "throughput_pps", "lower_bound_pps", "constant_loss_ratio", "repeated_count", "trials_count",
    "exceed_ratio",
]  # fmt: skip
MIN_SEARCHES = 3  # searches needed for an interval
PHASE = r"latency at ([\d.]+) %"


def rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rates found: one row per arm, traffic (BY) and goal (`loss_goal_ratio`).

    rows: `load.load` of a run of the experiment. Columns: `mean_pps` (geometric); `low_pps` and `high_pps` (95 % by
    Student's t on logarithms; NaN below three searches); `spread_ratio` (greatest divided by least, minus 1);
    `searches_count`; `all_count` (all searches); `limited_count` (searches that ended at the generator's limit);
    `max_pps` (the greatest lower bound of these, NaN without any); `constant_loss_ratio` (the share lost at every load,
    of searches without a rate for that reason: their median; NaN without any); `constant_count` (how many these are; if
    they are half of the searches or more, there is no rate); `reason` (why a search found no rate, or None);
    `repeated_ratio` (`repeated_count` divided by `trials_count`); `exceed_ratio` (the greatest share of the trial time
    in which the loss may be above the goal; NaN in rows of another labkit).
    """
    result = []
    some = rows[rows["loss_goal_ratio"].notna()]
    # Of rates below the generator's limit the sentence says that they may be higher.
    unsupported = unsupported_rates(some, some["constant_loss_ratio"].notna())
    some = some[["arm", *BY, "loss_goal_ratio", *COLUMNS]]  # selecting rows of a wide table is slow
    for key, group in groups(some, ["arm", *BY, "loss_goal_ratio"]):
        line: dict[str, Any] = dict(zip(["arm", *BY, "loss_goal_ratio"], key, strict=True))
        with_rate = group["status"].eq("ok") & ~unsupported[group.index]
        values = group.loc[with_rate, "throughput_pps"].dropna().to_numpy(float)
        limited = generator_limited(group)
        without = group[group["status"].ne("ok") & group["reason"].notna()].sort_values("constant_loss_ratio")
        mean = stats.effect(np.log(values)) if len(values) else None
        low, high = (mean.low, mean.high) if mean and len(values) >= MIN_SEARCHES else (math.nan, math.nan)
        repeated, trials = group["repeated_count"].sum(), max(1.0, group["trials_count"].sum())
        line |= {
            "mean_pps": mean.ratio if mean else math.nan,
            "low_pps": low,
            "high_pps": high,
            "spread_ratio": float(values.max() / values.min() - 1) if len(values) else math.nan,
            "searches_count": len(values),
            "limited_count": int(limited.sum()),
            "max_pps": float(group.loc[limited, "lower_bound_pps"].max()) if limited.any() else math.nan,
            "all_count": len(group),
            "constant_count": int(group["constant_loss_ratio"].notna().sum()),
            "constant_loss_ratio": float(group["constant_loss_ratio"].median()),
            "reason": str(without["reason"].iloc[0]) if len(without) else None,
            "repeated_ratio": float(repeated / trials),
            "exceed_ratio": float(group["exceed_ratio"].max()),
        }
        result.append(line)
    return pd.DataFrame(result)


def goal_name(loss_ratio: float) -> str:
    """Return the name of a loss goal: `NDR` or `PDR 0.5 %`."""
    return load.in_words("loss_goal_ratio", loss_ratio)


def report(rows: pd.DataFrame, trials: pd.DataFrame) -> list[str]:
    """Return a sentence for each result of the searches. trials: `load.load` with part "trials"."""
    result = rates(rows)
    several = varying(result, BY[2:])
    lines = [_rate(line, several) for line in result.to_dict("records")]
    if len(result) and result["exceed_ratio"].notna().any():
        lines.append(
            "The exceed ratio is the share of the trial time in which the loss may be above the goal (RFC 9971)."
        )
    phases = trials["phase"].astype("str").str.extract(PHASE, expand=False)
    by, latencies = ["arm", *BY, "share"], {name: f"latency_{name}_s" for name in schema.LATENCIES}
    beside = trials[[*by[:-1], *latencies.values()]].assign(share=phases)
    for key, some in groups(beside[phases.notna() & trials["status"].eq("ok")], by):
        of = dict(zip(by, key, strict=True))
        medians = {name: si(some[column].median(), "s") for name, column in latencies.items()}
        quantiles = ", ".join(f"{name} {median}" for name, median in medians.items())
        what = f"one-way latency at {of['share']} % of the rate found"
        among = f"medians of {counted(len(some), 'trial')}"
        lines.append(f"{of['arm']}, {traffic_text(of, several)}: {what}: {quantiles} ({among})")
    return lines


def traffic_text(of: Mapping[Any, Any], several: Sequence[str]) -> str:
    """Return the traffic of a search in words. several: the parameters, beside frames and flows, that vary."""
    more = [
        f"{name.removesuffix('_bytes').replace('_', ' ')} {load.value_text(of[name])}" for name in several
    ]
    return ", ".join([f"frames {of['frame']}", f"{load.value_text(of['flows_count'])} flows", *more])


def _rate(line: Mapping[Any, Any], several: Sequence[str]) -> str:
    where = f"{line['arm']}, {traffic_text(line, several)}: {goal_name(line['loss_goal_ratio'])}"
    if not line["searches_count"]:
        if line["constant_count"]:
            some = line["constant_count"] < line["all_count"]
            of_all = f" (in {line['constant_count']} of {line['all_count']} searches)" if some else ""
            return f"{where} was not found: {line['reason']}{of_all}"
        if line["limited_count"]:
            reached = si(line["max_pps"], "pps")
            return f"{where} is not known: the generator was the limit, without such loss up to {reached}"
        return f"{where} was not found" + (f": {line['reason']}" if line["reason"] else "")
    text = f"{where} {si(line['mean_pps'], 'pps')}"
    if math.isnan(line["low_pps"]):
        text += f" ({counted(line['searches_count'], 'search')}: no interval)"
    else:
        text += f" [{si(line['low_pps'], 'pps')}, {si(line['high_pps'], 'pps')}]"
        text += f" over {line['searches_count']} searches, which spread by {percent(line['spread_ratio'])}"
    if line["constant_count"]:
        some = f"{line['constant_count']} of {line['all_count']} searches"
        text += f", but {some} found no rate: {line['reason']}"
    if line["limited_count"]:
        text += (
            f", and {line['limited_count']} of {line['all_count']} searches found no loss up to the generator's limit"
            f" ({si(line['max_pps'], 'pps')}), so it may be higher"
        )
    if not math.isnan(line["exceed_ratio"]):
        text += f"; exceed ratio {percent(line['exceed_ratio'])}"
    if line["repeated_ratio"]:
        text += f"; {percent(line['repeated_ratio'])} of the attempts were repeats of disturbed trials"
    return text
