"""State how much longer round trips take under load: for each arm in seconds, and as verdicts about the increase."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.analysis import load, verdicts
from labkit.analysis.displays import show
from labkit.analysis.run_figures import of_part
from labkit.common.schema import LATENCIES
from labkit.common.units import si
from studies.latency_under_load import figure
from studies.latency_under_load.figure import WAYS
from studies.linear_fit import interval, mean


def increase_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts (`verdicts.verdicts`) about the increase of the judged percentile instead of its value.

    In its group, an arm without an increase in some measurement has no ratio, so it is left out (`without_increase`).
    """
    without = set(without_increase(rows))
    kept = [
        group[[(key, arm) not in without for arm in group["topology"]]] for key, group in load.groups(rows)
    ]
    longer = pd.concat([rows[:0], *kept])
    return verdicts.verdicts(longer.assign(metric=_increase(rows)))


def without_increase(rows: pd.DataFrame) -> list[tuple[load.Key, str]]:
    """Return the group and arm of which some measurement had no longer round trips under load, or one has no time."""
    ok = rows[rows["status"].eq("ok") & rows[_increase(rows)].fillna(0.0).le(0)]
    return [(key, str(arm)) for key, group in load.groups(ok) for arm in group["topology"].unique()]


def _increase(rows: pd.DataFrame) -> str:
    return f"increase_{load.percentile_of(rows)}_s"


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return for each group and arm the judged percentile in each phase and the throughput, as text for people.

    With 95 % intervals over rounds.
    """
    name = load.percentile_of(rows)
    columns = {
        "idle": f"idle_{name}_s", "under load": f"latency_{name}_s", "after": f"after_{name}_s",
        "increase": _increase(rows),
    }  # fmt: skip
    lines = []
    for key, group in load.groups(rows[rows["status"].eq("ok")]):
        for arm, own in group.groupby("arm", sort=False):
            times = {words: _estimate(own[column]) for words, column in columns.items()}
            rates = {way: _rate(own[f"{way}_bps"]) for way in WAYS}
            lines.append({"load": load.group_text(key), "arm": arm, **times, **rates})
    return pd.DataFrame(lines, columns=["load", "arm", *columns, *WAYS])


def _estimate(values: pd.Series[float]) -> str:
    known = values.dropna()
    if not len(known):
        return "unknown (a lost probe)"
    text = interval(mean(known.to_numpy(float)))
    lost = f" (in {len(known)} of {len(values)} rounds; in the others it is a lost probe)"
    return text if len(known) == len(values) else text + lost


def _rate(values: pd.Series[float]) -> str:
    return si(values.mean(), "bit/s") if values.notna().any() else ""


def findings(rows: pd.DataFrame, _profiles: pd.DataFrame | None = None) -> list[str]:
    """Return the sentences about all rows."""
    what, lines = LATENCIES[load.percentile_of(rows)][1], list[str]()
    for one in table(rows).to_dict("records"):
        rates = " and ".join(f"{one[way]} {way}" for way in WAYS if one[way])
        lines.append(
            f"**{one['arm']}**, {one['load']}: the {what} (mean of the rounds) is {one['idle']} before the load,"
            f" {one['under load']} under load ({rates}) and {one['after']} after it; the increase is {one['increase']}."
        )
    lines += [
        f"{arm}, {load.group_text(key)}: in some measurement the {what} did not increase, or is a lost probe, so there"
        " is no ratio of its increase."
        for key, arm in without_increase(rows)
    ]
    compared = increase_verdicts(rows)
    known = compared.loc[compared["ratio"].notna(), "sentence"]
    return [*lines, *(f"Increase of the {what}: {sentence}." for sentence in known)]


def show_increase(rows: pd.DataFrame) -> None:
    """Show the round-trip times in each phase, and what they say."""
    show(table(rows), findings(rows))


FIGURES: dict[str, Any] = {
    "over_time": of_part("cost", figure.over_time),
    "latency_cdf": of_part("cost", figure.latency_cdf),
    "latency_box": of_part("cost", figure.latency_box),
}
