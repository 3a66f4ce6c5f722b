"""What a change does to each topology: verdicts against its own unchanged arm, and whether it matters more for one.

A changed arm of another topology than the baseline's differs from the baseline in two things. Both ratios of this
module leave one of them out. All arms of a round are measured in turn, so each ratio is paired as those of `verdicts`.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from labkit.analysis import protocols, stats, verdicts
from labkit.analysis.load import GROUP, complete, groups
from labkit.analysis.verdicts import MARGIN, MEASUREMENT, RATIOS

_PAIRED = [*MEASUREMENT, "setup"]


def change_ratios(df: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return paired log-ratios between changed arms; the columns are those of `verdicts.ratios`, and `change`.

    `pairs`: the `verdicts.ratios` of the table. An arm `vxlan+gro` has a row with its unchanged arm `vxlan` as
    baseline, unless that is the baseline of its group. If several topologies have the change, each but the first also
    has the ratio of its two ratios to the first one's: topology `gro on vxlan`, baseline `gro on veth_bridge`, change
    `gro`; `change` is null in the other rows.
    """
    found = df.loc[df["change"].notna(), ["topology", "change", "status"]]
    arms = [
        ChangedArm(
            str(arm), str(arm).removesuffix(f"+{change}"), str(change), bool(rows["status"].eq("equal").all())
        )
        for (arm, change), rows in found.groupby(["topology", "change"], sort=False)
        if str(arm).endswith(f"+{change}")  # one topology and endpoint: the arm has the name of its change
    ]
    result = [one for _, group in groups(pairs) for one in _of_group(group, arms)] if arms else []
    return pd.concat(result, ignore_index=True) if result else pairs.iloc[:0].assign(change=None)


@dataclass(frozen=True)
class ChangedArm:
    """A changed arm and its unchanged arm; `equal`: the change has no effect on it."""

    name: str
    unchanged: str
    change: str
    equal: bool


def _of_group(group: pd.DataFrame, changed: Sequence[ChangedArm]) -> Iterator[pd.DataFrame]:
    arms = {str(name): rows for name, rows in group.groupby("topology", sort=False)}
    baseline = str(group["baseline"].iloc[0])
    # Its rows are of some other arm; what starved of the baseline is in the rows of every changed arm.
    neutral = {"log_ratio": 0.0, "starved": False, "placed": True}
    arms[baseline] = group.drop_duplicates(_PAIRED).assign(topology=baseline, **neutral)
    first: dict[str, tuple[str, pd.DataFrame]] = {}
    for arm in sorted(changed, key=lambda one: one.unchanged != baseline):
        unchanged, change = arm.unchanged, arm.change
        if arm.equal:
            own = arms[unchanged].assign(log_ratio=0.0) if unchanged in arms else None
        else:
            own = difference(arms.get(arm.name), arms.get(unchanged), arm.name, unchanged)
            if own is not None and unchanged != baseline:
                yield own
        if own is None:
            continue
        name, reference = first.setdefault(change, (unchanged, own))
        if name != unchanged:
            both = difference(own, reference, f"{change} on {unchanged}", f"{change} on {name}", change)
            if both is not None:
                yield both


def difference(
    own: pd.DataFrame | None,
    other: pd.DataFrame | None,
    topology: str,
    baseline: str,
    change: str | None = None,
) -> pd.DataFrame | None:
    """Return the first log-ratios less the second ones of the same measurements; None if there are none in common."""
    if own is None or other is None:
        return None
    of_other = other[[*_PAIRED, "log_ratio", "starved", "placed"]]
    both = own.merge(of_other, on=_PAIRED, suffixes=("", "_of_other"))
    result = both.assign(
        change=change,
        topology=topology,
        baseline=baseline,
        log_ratio=both["log_ratio"] - both["log_ratio_of_other"],
        starved=both["starved"] | both["starved_of_other"],
        placed=both["placed"] & both["placed_of_other"],
    )
    return result[[*GROUP, *RATIOS, "change"]] if len(result) else None


def change_verdicts(df: pd.DataFrame, pairs: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the verdicts about `change_ratios`, in the columns of `verdicts.verdicts`; empty without any.

    `pairs`: the `verdicts.ratios` of the table, if they are known. The control of all of them is the group's baseline
    that is measured twice.
    """
    df = complete(df)
    pairs = verdicts.ratios(df) if pairs is None else pairs
    lines: list[dict[str, Any]] = []
    by_group, rows_of = dict(groups(pairs)), dict(groups(df[[*GROUP, *verdicts.JUDGED]]))
    for key, group in groups(change_ratios(df, pairs)):
        metric = rows_of[key]["metric"].iloc[0]
        of, higher = dict(zip(GROUP, key, strict=True)), protocols.higher_is_better(metric)
        control = functools.cache(functools.partial(verdicts.column_effect, by_group[key], "log_control"))
        for (topology, baseline), mine in group.groupby(["topology", "baseline"], sort=False):
            names, change = (str(topology), str(baseline)), mine["change"].iloc[0]
            ends = [one.removeprefix(f"{change} on ") for one in names]
            if why := two_modes(rows_of[key], *names, change):
                line = verdicts.no_evidence(*names, why)
            else:
                line = verdicts.verdict_line(mine, control, *names, MARGIN, higher)
            if change is not None and line["word"] in ("faster", "slower"):
                line["sentence"] = interaction(line, change, *ends)
            arms = {"topology": topology, "baseline": baseline, "change": change}
            lines.append({**of, **arms, "metric": metric, **line})
    return verdicts.verdict_table(lines)


def two_modes(rows: pd.DataFrame, topology: str, baseline: str | None, change: str | None) -> str | None:
    """Return why an arm that a ratio of `change_ratios` compares has no mean (`verdicts.two_modes`), or None."""
    ends = [one.removeprefix(f"{change} on ") for one in (topology, baseline) if one is not None]
    arms = [*ends, *(f"{one}+{change}" for one in ends if change is not None)]
    modes = (verdicts.two_modes(rows[rows["topology"].eq(one)]) for one in arms)
    return next(filter(None, modes), None)


def interaction(line: Mapping[str, Any], change: str, one: str, other: str) -> str:
    """Return the sentence of a verdict that the change speeds up one topology more than another, or slows it down
    more."""
    does, undoes = "speeds up", "slows it down"
    if line["word"] != "faster":
        does, undoes = "slows down", "speeds it up"
    shown = stats.ratio_text(line["ratio"], line["low"], line["high"])
    return f"{change} {does} {one} more than {other}, or {undoes} less: both effects have the {shown} ({line['how']})"


def all_verdicts(df: pd.DataFrame) -> pd.DataFrame:
    """Return `verdicts.verdicts` of a table, then its `change_verdicts`: every answer that its rows give."""
    df = complete(df)
    pairs = verdicts.ratios(df)
    changes = change_verdicts(df, pairs=pairs)
    table = verdicts.verdicts(df, pairs=pairs)
    change = dict(zip(df["topology"], df["change"], strict=True))
    for row in table.index[table["word"].eq("equal")]:
        name = str(table.loc[row, "topology"])
        # With one topology, the arm has the name of its change, and its baseline is right.
        if name.endswith(end := f"+{change[name]}"):
            table.loc[row, "baseline"] = name.removesuffix(end)  # what it equals
    return pd.concat([table, changes], ignore_index=True) if len(changes) else table
