"""Durations of kernel functions by datagram size (observer `function_times`), and a test of a claim about them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from labkit.analysis import load, stats
from labkit.analysis.flame.load_profiles import observed, work
from labkit.analysis.stats import Effect

OBSERVER = "function_times"
BY = [name for name in load.GROUP if name != "length_bytes"]
KEYS = [*BY, "arm", "role", "topology", "length_bytes", "function"]
TIMES = ("p50_s", "mean_s", "p99_s", "max_s")
COLUMNS = [*KEYS, "setup", "round", *TIMES, "count", "per_packet", "overhead_ratio", "tracer"]
# The claim that FUNCTION takes RATIO times as long for the first of LENGTHS (bytes of a datagram) as for the second
FUNCTION, RATIO, LENGTHS = "ip_rcv", 0.5, (800, 400)
SOURCE = "ECE 792 report, part 2: 28.897 µs against 55.84 µs, a call each"
NEAR = 1.25  # a ratio within this factor of the claimed one supports the claim
SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"


@dataclass(frozen=True)
class ClaimJudgement:
    """The verdict on a claim for one arm of one point.

    `effect` is the ratio of the medians, over rounds. `why` is the reason for an undecided verdict, else "".
    """

    key: load.Key
    arm: str
    word: str
    why: str
    effect: Effect
    lengths_s: tuple[float, float]  # medians at the two sizes of the claim
    overhead_ratio: float | None


def times(profiles: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each point, arm, size, round and timed function.

    Columns: KEYS, TIMES, `count`, `per_packet` (calls per received datagram), `overhead_ratio`, `tracer`, `setup`,
    `round`.
    """
    table = load.complete(profiles)
    if "observed" not in table:
        return pd.DataFrame(columns=COLUMNS)
    seen = table[table["observer"].eq(OBSERVER) & table["status"].eq("ok") & table["observed"].notna()]
    result = []
    names = [*KEYS[:-1], "round", "overhead_ratio", "folder", "observed", "received_count", "window_s"]
    for row in seen[names].to_dict("records"):
        of: dict[Any, Any] = {name: row[name] for name in [*KEYS[:-1], "round", "overhead_ratio"]}
        of["setup"] = f"{row['folder']}:{row['round']}"
        report = observed(row["observed"])
        of["tracer"], packets = report.get("tracer"), work(row, report)
        for name, one in report["functions"].items():
            if one["count"]:
                called = {"count": one["count"], "per_packet": one["count"] / packets}
                result.append({**of, "function": name, **{at: one[at] for at in TIMES}, **called})
    return pd.DataFrame(result, columns=COLUMNS)


def why_not(profiles: pd.DataFrame) -> list[str]:
    """Return the reasons why functions were not timed."""
    table = load.complete(profiles)
    missing = table[table["observer"].eq(OBSERVER) & table["status"].ne("ok")]
    result = list(load.group_similar(missing["reason"].fillna("no reason was recorded").astype("str")))
    if times(table)["p50_s"].eq(0).any():
        result.append("a median was 0 s, so the kernel's clock is too coarse")
    return list(dict.fromkeys(result))


def judge_claim(result: pd.DataFrame) -> list[ClaimJudgement]:
    """Judge the claim for each point and arm that timed the function at both sizes.

    If the baseline differs from its own control, the interval is widened.
    """
    of = result[result["function"].eq(FUNCTION)]
    # A median of 0 s means that the clock is too coarse; it has no ratio.
    sizes = of[of["length_bytes"].isin(LENGTHS) & of["p50_s"].gt(0)]
    judged = []
    for key, group in load.groups(sizes, BY):
        wide = group.pivot_table(index=["role", "arm", "setup"], columns="length_bytes", values="p50_s")
        if not set(LENGTHS) <= set(wide.columns):
            continue
        logs = wide.astype(float).map(math.log)
        control = _control(logs)
        for role, arm in dict.fromkeys(index[:2] for index in wide.index):
            if role == "control":
                continue
            own = logs[logs.index.get_level_values("arm") == arm]
            both = own[[*LENGTHS]].dropna()
            if not len(both):
                continue
            large, small = (both[size] for size in LENGTHS)
            effect = stats.widened(stats.effect((large - small).to_numpy(float)), control)
            word, why = _word(effect)
            lengths_s = math.exp(large.mean()), math.exp(small.mean())
            overhead = group.loc[group["arm"].eq(arm), "overhead_ratio"].median()
            left = None if pd.isna(overhead) else float(overhead)
            judged.append(ClaimJudgement(key, str(arm), word, why, effect, lengths_s, left))
    return judged


def _control(logs: pd.DataFrame) -> Effect | None:
    """Return the ratio of the baseline's control to the baseline, over both sizes; None if the control was not
    timed."""
    first, again = (
        logs[logs.index.get_level_values("role") == role]
        .droplevel(["arm", "role"])
        .mean(axis="columns", skipna=False)
        for role in ("baseline", "control")
    )
    both = (again - first).dropna().tolist()
    return stats.effect(both) if both else None


def _word(effect: Effect) -> tuple[str, str]:
    if effect.low is None or effect.high is None:
        return UNDECIDED, "one round has no interval"
    low, high = RATIO / NEAR, RATIO * NEAR
    if low <= effect.low and effect.high <= high:
        return SUPPORTED, ""
    if effect.high < low or effect.low > high:
        return CONTRADICTED, ""
    return UNDECIDED, f"the interval lies partly inside {low:.2g} to {high:.2g} and partly outside"
