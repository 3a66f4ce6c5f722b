"""What casts doubt on profiles: the doubts of rows beside an observer that are its own, and those of them that do not
count."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.analysis import load
from labkit.analysis.flame.load_profiles import observed
from labkit.common import units

BPF = (
    "times are by BPF, not by function_graph: p50, p90 and p99 are interpolated within powers of two, of calls within"
    " each other only the inner one is counted, and calls that found no room are not told"
)


def doubts(rows: pd.DataFrame, observer: str) -> list[str]:
    """What casts doubt on one observer's rows of an arm, with how often; what is also said of rows without an observer
    (in the same table) is not the observer's. Doubts that differ in numbers alone are one."""
    parameters = rows[rows["observer"].eq(observer)]
    own = parameters[parameters["status"].eq("ok")]
    usual = set(load.bare(load.each_doubt(rows[rows["observer"].isna()])))
    seen = own.get("observed", ())
    by_bpf = sum(observed(profile_doubts).get("tracer") == "bpf" for profile_doubts in seen)
    each = pd.concat([load.each_doubt(own), pd.Series([BPF] * by_bpf, dtype="str")])
    each = each[~load.bare(each).isin(usual)]
    lines = [
        f"{doubt} (in {count} of {units.many(len(own), 'row')})"
        for doubt, count in load.group_similar(each).value_counts(sort=False).items()
    ]
    if count := len(failed := _not_set_up(rows)):
        reasons = load.group_similar(failed["reason"].fillna("no reason was recorded").astype("str"))
        rounds = rows.loc[rows["method"].eq(load.PROFILE), ["folder", "round"]].drop_duplicates()
        what = "; ".join(dict.fromkeys(reasons))
        lines.append(
            f"{count} of {units.many(len(rounds), 'round')} of profiles failed in the set-up: {what}"
        )
    if not len(own):
        return lines  # nothing of it is shown, and where it would be the reason is told
    left = parameters.drop(own.index)
    reasons = left["status"] + ": " + left["reason"].fillna("no reason was recorded").astype("str")
    for reason, count in load.group_similar(reasons).value_counts(sort=False).items():
        lines.append(f"{count} of {units.many(len(parameters), 'row')} left out as {reason}")
    return lines


def _not_set_up(rows: pd.DataFrame) -> pd.DataFrame:
    """The failed rows of rounds of profiles in which an arm was not set up: no observer has a row in them."""
    rows = rows[rows["method"].eq(load.PROFILE)]
    keys = pd.Series(list(rows[["folder", "point", "arm"]].itertuples(index=False, name=None)), rows.index)
    seen = set(keys[rows["observer"].notna()])
    return rows[rows["status"].eq("failed") & ~keys.isin(seen)]


def not_set_up(profiles: pd.DataFrame) -> list[str]:
    """A sentence for each arm and reason for which rounds of profiles failed before an observer could see anything."""
    failed = _not_set_up(profiles)
    reasons = (
        failed["topology"] + ": " + load.group_similar(failed["reason"].fillna("no reason was recorded"))
    )
    return [
        f"{words} ({units.many(count, 'round')} of profiles failed in the set-up)"
        for words, count in reasons.value_counts(sort=False).items()
    ]


def profile_doubts(
    profiles: pd.DataFrame, measured: pd.DataFrame, observers: Sequence[str] | None = None
) -> list[str]:
    """Every doubt about profiles (of all observers, or of some), for each host, observer and arm; `measured`: the rows
    that measure, which are without an observer."""
    if not len(profiles):
        return []
    there = load.hosts(pd.concat([load.complete(measured), load.complete(profiles)], ignore_index=True))
    result = []
    for host, rows in there:
        names = list(rows["observer"].dropna().unique())
        if not names and observers is None:
            words = f"{host}: " if len(there) > 1 else ""
            result += [f"{words}{sentence}" for sentence in not_set_up(rows)]
        for observer in observers or names:
            for topology, arm in rows.groupby("topology", sort=False):
                words = ", ".join([*[host] * (len(there) > 1), str(observer), str(topology)])
                result += [f"{words}: {doubt}" for doubt in doubts(arm, str(observer))]
    return result
