"""What casts doubt on profiles: the doubts of rows beside an observer that are its own, and those of them that do not
count."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit import loading, units
from labkit.flame.runs import observed

BPF = (
    "times are by BPF, not by function_graph: p50, p90 and p99 are interpolated within powers of two, of calls within"
    " each other only the inner one is counted, and calls that found no room are not told"
)


def doubts(rows: pd.DataFrame, observer: str) -> list[str]:
    """What casts doubt on one observer's rows of an arm, with how often; what is also said of rows without an observer
    (in the same table) is not the observer's. Doubts that differ in numbers alone are one."""
    asked = rows[rows["observer"].eq(observer)]
    own = asked[asked["status"].eq("ok")]
    usual = set(loading.bare(loading.each_doubt(rows[rows["observer"].isna()])))
    seen = own.get("observed", ())
    by_bpf = sum(observed(told).get("tracer") == "bpf" for told in seen)
    each = pd.concat([loading.each_doubt(own), pd.Series([BPF] * by_bpf, dtype="str")])
    each = each[~loading.bare(each).isin(usual)]
    said = [
        f"{doubt} (in {count} of {units.many(len(own), 'row')})"
        for doubt, count in loading.alike(each).value_counts(sort=False).items()
    ]
    if not len(own):
        return said  # nothing of it is shown, and where it would be the reason is told
    left = asked.drop(own.index)
    reasons = left["status"] + ": " + left["reason"].fillna("no reason was recorded").astype("str")
    for reason, count in loading.alike(reasons).value_counts(sort=False).items():
        said.append(f"{count} of {units.many(len(asked), 'row')} left out as {reason}")
    return said


def told(profiles: pd.DataFrame, measured: pd.DataFrame, observers: Sequence[str] | None = None) -> list[str]:
    """Every doubt about profiles (of all observers, or of some), for each host, observer and arm; `measured`: the rows
    that measure, which are without an observer."""
    if not len(profiles):
        return []
    there = loading.hosts(
        pd.concat([loading.complete(measured), loading.complete(profiles)], ignore_index=True)
    )
    found = []
    for host, rows in there:
        for observer in observers or rows["observer"].dropna().unique():
            for topology, arm in rows.groupby("topology", sort=False):
                words = ", ".join([*[host] * (len(there) > 1), str(observer), str(topology)])
                found += [f"{words}: {doubt}" for doubt in doubts(arm, str(observer))]
    return found
