"""Doubts about profiles: those in the rows of an observer, and those about rows that do not count."""

from collections.abc import Sequence

import pandas as pd

from labkit.analysis import load
from labkit.common import units

BPF = (
    "BPF took the times, not function_graph: it interpolates p50, p90 and p99 within powers of two, counts only the"
    " inner one of nested calls of a function, and does not report calls for which its map had no room"
)


def doubts(rows: pd.DataFrame, observer: str) -> list[str]:
    """Return the doubts about one observer's rows of an arm, with their numbers of rows.

    Doubts that also occur in rows without an observer (in the same table) are left out. Doubts that differ only in
    numbers are grouped.
    """
    observed_rows = rows[rows["observer"].eq(observer)]
    own = observed_rows[observed_rows["status"].eq("ok")]
    usual = set(load.without_numbers(load.each_doubt(rows[rows["observer"].isna()])))
    seen = own.get("observed", ())
    from labkit.analysis.flame.load_profiles import observed  # what only profiles need

    by_bpf = sum(observed(value).get("tracer") == "bpf" for value in seen)
    each = pd.concat([load.each_doubt(own), pd.Series([BPF] * by_bpf, dtype="str")])
    each = each[~load.without_numbers(each).isin(usual)]
    lines = [
        f"{doubt} (in {count} of {units.counted(len(own), 'row')})"
        for doubt, count in load.group_similar(each).value_counts(sort=False).items()
    ]
    if count := len(failed := _not_set_up(rows)):
        reasons = load.group_similar(failed["reason"].fillna("no reason was recorded").astype("str"))
        rounds = rows.loc[rows["method"].eq(load.PROFILE), ["folder", "round"]].drop_duplicates()
        what = f"of profiles could not be set up: {'; '.join(dict.fromkeys(reasons))}"
        lines.append(f"{count} of {units.counted(len(rounds), 'round')} {what}")
    if not len(own):
        return lines  # none of its results is shown, and the reason appears in their place
    left = observed_rows.drop(own.index)
    reasons = load.group_similar(left["reason"].fillna("no reason was recorded").astype("str"))
    for reason, count in (left["status"] + ": " + reasons).value_counts(sort=False).items():
        lines.append(f"{count} of {units.counted(len(observed_rows), 'row')} left out as {reason}")
    return lines


def _not_set_up(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the failed rows of rounds in which the set-up of an arm failed, so that no observer has a row."""
    rows = rows[rows["method"].eq(load.PROFILE)]
    keys = pd.Series(list(rows[["folder", "point", "arm"]].itertuples(index=False, name=None)), rows.index)
    seen = set(keys[rows["observer"].notna()])
    return rows[rows["status"].eq("failed") & ~keys.isin(seen)]


def not_set_up(profiles: pd.DataFrame) -> list[str]:
    """Return a sentence for each arm and reason for which rounds of profiles failed in the set-up."""
    failed = _not_set_up(profiles)
    reasons = load.group_similar(failed["reason"].fillna("no reason was recorded"))
    return [
        f"{words} ({units.counted(count, 'round')} of profiles could not be set up)"
        for words, count in (failed["topology"] + ": " + reasons).value_counts(sort=False).items()
    ]


def without_results(profiles: pd.DataFrame) -> list[str]:
    """Return a sentence for each observer without any valid row: why it recorded nothing, or why its rows are
    invalid."""
    result = []
    for observer, rows in profiles[profiles["observer"].notna()].groupby("observer", sort=False):
        if not rows["status"].eq("ok").any():
            reasons = load.group_similar(rows["reason"].fillna("no reason was recorded").astype("str"))
            what = "has only invalid rows" if rows["status"].eq("invalid").any() else "recorded nothing"
            result.append(f"{observer} {what}: {'; '.join(dict.fromkeys(reasons))}")
    return result


def profile_doubts(
    profiles: pd.DataFrame, measured: pd.DataFrame, observers: Sequence[str] | None = None
) -> list[str]:
    """Return all doubts about profiles, of all or of the given observers, for each host, observer and arm.

    `measured` has the rows without observers.
    """
    if not len(profiles):
        return []
    there = load.hosts(pd.concat([load.complete(measured), load.complete(profiles)], ignore_index=True))
    result = []
    for host, rows in there:
        names = list(rows["observer"].dropna().unique())
        if observers is None:
            text = f"{host}: " if len(there) > 1 else ""
            sentences = without_results(rows) if names else not_set_up(rows)
            result += [f"{text}{sentence}" for sentence in sentences]
        for observer in observers or names:
            for topology, arm in rows.groupby("topology", sort=False):
                text = ", ".join([*[host] * (len(there) > 1), str(observer), str(topology)])
                result += [f"{text}: {doubt}" for doubt in doubts(arm, str(observer))]
    return result
