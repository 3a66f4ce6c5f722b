"""From rows to verdicts: paired ratios, what may be concluded from them, and what is to be doubted.

Within a group (equal in the columns of GROUP) arms are compared with the baseline. Only valid rows enter;
what was left out, and every other reason for doubt, is a sentence of `doubts`, which is printed after every
result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import conditions, stats
from labkit.analysis.load import GROUP as GROUP
from labkit.analysis.load import METRIC as METRIC
from labkit.analysis.load import (
    PEER_RAN_ON,
    PROVENANCE,
    RAN_ON,
    complete,
    differing,
    each_doubt,
    group_similar,
    group_text,
    groups,
    hosts,
    measured,
)
from labkit.analysis.load import load as load
from labkit.common.errors import BadInput
from labkit.common.units import many

DOUBTFUL = ["microcode", "labkit", "git_revision", "duration_s", "omit_s"]
MEASUREMENT = ["folder", "round", "method", "slice"]  # with GROUP: what was measured side by side
VERDICTS = [
    "topology", "baseline", "ratio", "low", "high", "n_count", "rounds_count", "how", "word", "sentence",
    "control_ratio", "control_low", "control_high", "whole_ratio", "whole_low", "whole_high", "disagree",
    "vetoed", "guest_accelerator",
]  # fmt: skip
_NUMBERS = [name for name in VERDICTS if name.endswith(("ratio", "low", "high", "_count"))]
_NONE = pd.DataFrame({"topology": []})
ABSENT = ("unsupported", "isolated", "failed")  # a word of its own in the table of verdicts
MOST_STARVED = 0.25  # of the slices; beyond 29 % the Hodges-Lehmann estimate is no longer robust
FEWEST_SETUPS = 5  # with fewer, a difference of 5 % between set-ups mostly goes unseen


def ratios(df: pd.DataFrame) -> pd.DataFrame:
    """Paired log-ratios, a line for each variant topology, round and, where there are slices, slice.

    Columns: GROUP, MEASUREMENT, setup (label of the round), topology, baseline, log_ratio (to the mean of
    both measurements of the baseline, see `stats.log_ratios`), log_control (the baseline to itself; NaN where
    it was not measured twice), starved (next to nothing arrived at one of them).
    Raises BadInput for two different baselines in one group, and as `measured`
    does.
    """
    keys = [*GROUP, *MEASUREMENT, "setup"]
    ok = measured(complete(df))
    by_arm = ok[ok["log"].notna()].groupby([*keys, "role", "topology"], dropna=False)
    values = by_arm.agg(value=("log", "mean"), starved=("starved", "any")).reset_index()
    values["value"] = np.exp(values["value"])
    arms, base, again = (
        values[values["role"].eq(role)].drop(columns="role") for role in ("variant", "baseline", "control")
    )
    base = base.rename(columns={"topology": "baseline", "value": "first", "starved": "first_starved"})
    again = again.rename(columns={"topology": "baseline", "value": "second", "starved": "second_starved"})
    both = base.merge(again, "outer", [*keys, "baseline"])  # null matches null
    for key, group in groups(both):
        if several := differing(group, ["baseline"]):
            raise BadInput(
                f"arms of several baselines are not compared: {', '.join(several['baseline'])} ({group_text(key)})"
            )
    result = arms.merge(both, "inner", keys)
    numbers = (result[name].to_numpy(float) for name in ("value", "first", "second"))
    result["log_ratio"], result["log_control"] = stats.log_ratios(*numbers)
    result["starved"] = result[["starved", "first_starved", "second_starved"]].eq(True).any(axis=1)
    return result[[*keys, "topology", "baseline", "log_ratio", "log_control", "starved"]]


def verdicts(df: pd.DataFrame, margin: float = 0.05) -> pd.DataFrame:
    """A verdict for each group and each topology but the baseline; columns GROUP and VERDICTS.

    Slices decide where there are any; the whole runs' ratio stands beside it (whole_ratio, NaN where none),
    and if the two intervals do not overlap there is no evidence. control_low and control_high are the interval
    of the baseline against itself, in which a difference does not count. A topology that was not measured has
    its status as word and the reason as sentence, and NaN for numbers. Raises BadInput as `ratios` does.
    """
    df = complete(df)
    pairs = dict(groups(ratios(df)))
    result: list[dict[str, Any]] = []
    for key, group in groups(df):
        base = group[group["role"].isin(["baseline", "control"])]
        variants = group.drop(base.index)
        baseline = next(iter(base["topology"]), None)
        for topology, rows in variants.groupby("topology", sort=False):
            if baseline is None and variants["topology"].nunique() == 1:
                continue
            line: dict[str, Any] = dict(zip(GROUP, key, strict=True))
            line |= {"topology": topology, "baseline": baseline, "disagree": False, "vetoed": False}
            line["guest_accelerator"] = next(iter(rows["guest_accelerator"].dropna()), None)
            there = pairs.get(key, _NONE)
            if there["topology"].eq(topology).any():
                line |= _line(there, str(topology), str(baseline), margin, METRIC[line["protocol"]][1])
            else:
                word, sentence = _unmeasured(rows, base, str(topology), baseline)
                line |= {"word": word, "sentence": sentence}
            result.append(line)
    table = pd.DataFrame(result, columns=[*GROUP, *VERDICTS])
    return table.astype(dict.fromkeys(_NUMBERS, float)).astype({"disagree": bool, "vetoed": bool})


def _line(there: pd.DataFrame, topology: str, baseline: str, margin: float, higher: bool) -> dict[str, Any]:
    """What is found about one topology; there: the ratios of its group."""
    mine = there[there["topology"].eq(topology)]
    slices = bool(mine["method"].eq("slice").any())
    if why := starved(mine[mine["method"].eq("slice" if slices else "whole")], slices):
        sentence = f"no evidence about {topology} against {baseline}: {why}"
        return {"word": "no evidence", "sentence": sentence}
    effect, control = effect_of(mine, "log_ratio", slices), effect_of(there, "log_control", slices)
    assert effect is not None, "the caller has seen ratios"
    verdict = stats.verdict(effect, control, margin, higher, arm=topology, baseline=baseline)
    whole = effect_of(mine, "log_ratio", slices=False) if slices else None
    if whole is not None and _apart(effect, whole):
        lines = [f"{stats.ratio_text(e.ratio, e.low, e.high)} ({e.how})" for e in (effect, whole)]
        sentence = (
            f"no evidence about {topology} against {baseline}: slices and whole runs contradict each other"
        )
        verdict = stats.Verdict("no evidence", f"{sentence}, {lines[0]} and {lines[1]}")
    return {
        "ratio": effect.ratio, "low": effect.low, "high": effect.high, "n_count": effect.n_count,
        "rounds_count": effect.setups_count, "how": effect.how, "word": verdict.word,
        "sentence": verdict.sentence,
        "control_ratio": control and control.ratio, "control_low": control and control.low,
        "control_high": control and control.high, "whole_ratio": whole and whole.ratio,
        "whole_low": whole and whole.low, "whole_high": whole and whole.high,
        "disagree": effect.disagree, "vetoed": control is not None and stats.vetoes(control),
    }  # fmt: skip


def starved(lines: pd.DataFrame, slices: bool) -> str | None:
    """Why too much is missing for a ratio: next to nothing arrived in more measurements than the median of pairs
    stands."""
    count = int(lines["starved"].sum())
    if count <= MOST_STARVED * len(lines):
        return None
    what = many(len(lines), "slice" if slices else "run")
    return f"in {count} of {what} next to nothing arrived at one of them, which is too many for a ratio"


def effect_of(some: pd.DataFrame, column: str, slices: bool) -> stats.Effect | None:
    """The effect behind some lines of `ratios`, by slices or by whole runs; column: log_ratio or log_control.

    The control is the same for all topologies of a group: its effect is that of all lines of the group.
    """
    by = some[some["method"].eq("slice" if slices else "whole") & some[column].notna()]
    if column == "log_control":
        by = by.drop_duplicates(MEASUREMENT)
    return stats.effect(by[column].to_numpy(float), list(by["setup"]), slices) if len(by) else None


def _apart(one: stats.Effect, other: stats.Effect) -> bool:
    """Whether two intervals do not overlap."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.low > other.high or other.low > one.high


def _unmeasured(
    rows: pd.DataFrame, base: pd.DataFrame, topology: str, baseline: str | None
) -> tuple[str, str]:
    """Word and sentence for a topology without any ratio: from its own rows, else from the baseline's."""
    if baseline is None:
        return "no evidence", f"no evidence about {topology}: no baseline was measured beside it"
    for about, of in ((topology, rows), (baseline, base)):
        left = of[of["status"].ne("ok")]
        if len(left) == len(of):
            status, reason = left[["status", "reason"]].fillna("no reason was recorded").mode().iloc[0]
            if about == topology and status in ABSENT:
                return str(status), str(reason)
            return "no evidence", f"no evidence about {topology}: {about} has no valid measurement ({reason})"
    for about, of in ((topology, rows), (baseline, base)):
        ok = measured(of)
        if len(ok) and ok["log"].isna().all():
            return (
                "no evidence",
                f"no evidence about {topology}: nothing arrived at {about} in any measurement",
            )
    return (
        "no evidence",
        f"no evidence about {topology}: it and {baseline} have no valid measurement in common",
    )


def medians_apart(df: pd.DataFrame) -> list[str]:
    """A sentence for each verdict whose ratio is not that of the medians beside it: whose interval the quotient of the
    two arms' medians lies outside of."""
    df = complete(df)
    ok = measured(df)
    of = dict(groups(ok))
    lines = []
    for line in verdicts(df).dropna(subset=["low", "high"]).to_dict("records"):
        key = tuple(None if pd.isna(line[name]) else line[name] for name in GROUP)
        rows = of[key]
        rows = rows[rows["method"].eq("slice")] if rows["method"].eq("slice").any() else rows
        arm = rows.loc[rows["role"].eq("variant") & rows["topology"].eq(line["topology"]), "value"].median()
        base = rows.loc[rows["role"].eq("baseline"), "value"].median()
        if base > 0 and not line["low"] <= (quotient := arm / base) <= line["high"]:
            shown = stats.ratio_text(line["ratio"], line["low"], line["high"])
            lines.append(
                f"{group_text(key)}: the medians of {line['topology']} and {line['baseline']} have the quotient"
                f" {quotient:.3g}, but the {shown} counts: it compares what was measured side by side, round by round,"
                " so the machine's changes between rounds, which are in each median, are left out"
            )
    return lines


def doubts(df: pd.DataFrame) -> list[str]:
    """Every reason for doubt about a table and its verdicts, a sentence each. Raises as `verdicts` does."""
    unfinished = list(df.attrs.get("unfinished", []))
    df = complete(df)
    result = verdicts(df)
    ok = measured(df)
    lines = [*unfinished, *_about_verdicts(result)]
    there = hosts(df)
    for name, rows in there:
        own = ok[ok.index.isin(rows.index)]
        about = [*_left_out(rows, own), *_row_doubts(own), *conditions.of_host(own)]
        lines += [f"{name}: {doubt}" for doubt in about] if len(there) > 1 else about
    return [*lines, *conditions.busy(df), *_mixed(ok)]


def _about_verdicts(result: pd.DataFrame) -> list[str]:
    compared = result[result["low"].notna()]
    if not len(compared):
        return []
    count = len(compared)
    lines = [
        f"{many(count, 'comparison')} at 95 %: with no difference anywhere, about {0.05 * count:.1g}"
        " of them would still show one"
    ]
    apart = compared["low"].gt(compared["whole_high"]) | compared["whole_low"].gt(compared["high"])
    few = compared["rounds_count"].lt(FEWEST_SETUPS) & compared["how"].str.contains("slice", na=False)
    unchecked = compared["how"].str.contains("slice", na=False) & compared["whole_low"].isna()
    if unchecked.any():
        lines.append("fewer than two whole runs of each arm, so they do not check what the slices say")
    for which, what in (
        (compared["disagree"], "the set-ups disagree, so the interval is over set-ups and wider"),
        (few, f"fewer than {FEWEST_SETUPS} fresh set-ups: a difference between set-ups may go unseen"),
        (apart, "slices and whole runs contradict each other"),
        (compared["vetoed"], "the baseline differs from itself, which vetoes every verdict"),
    ):
        lines += [f"{_together(places)}: {what} ({names})" for places, names in _places(compared[which])]
    return lines


def _together(places: list[str]) -> str:
    """Places in words, with what they have in common said once: `udp, 1 pair, MTU 1500 (16 bytes; 400 bytes)`."""
    words = [place.split(", ") for place in places]
    common = [word for word in words[0] if all(word in other for other in words)]
    own = [", ".join(word for word in other if word not in common) or "as usual" for other in words]
    return ", ".join(common) + (f" ({'; '.join(own)})" if len(places) > 1 else "")


def _places(result: pd.DataFrame) -> list[tuple[list[str], str]]:
    """The places of each host at which the same arms are found."""
    there = hosts(result)
    places: dict[tuple[str, str], list[str]] = {}
    for name, rows in there:
        for key, group in groups(rows):
            of = places.setdefault((name, ", ".join(sorted(group["topology"]))), [])
            of.append(group_text(key, name if len(there) > 1 else ""))
    return [(of, names) for (_, names), of in places.items()]


def _left_out(df: pd.DataFrame, ok: pd.DataFrame) -> list[str]:
    lines = []
    for topology, rows in df.groupby("topology", sort=False):
        bad = rows[rows["status"].isin(["invalid", "failed"])]
        reasons = bad["status"] + ": " + group_similar(bad["reason"].fillna("no reason was recorded"))
        for reason, count in reasons.value_counts().items():
            lines.append(f"{topology}: {count} of {many(len(rows), 'row')} left out as {reason}")
    if unusable := int(df["status"].eq("ok").sum()) - len(ok):
        lines.append(f"{many(unusable, 'row')} left out: status ok, but the compared metric is null")
    for topology, rows in ok.groupby("topology", sort=False):
        if count := int(rows["starved"].sum()):
            lines.append(
                f"{topology}: in {count} of {many(len(rows), 'row')} next to nothing arrived; each counts as the"
                " slowest of the others"
            )
    return lines


def _row_doubts(ok: pd.DataFrame) -> list[str]:
    """The doubts in the rows themselves, with how often each occurs for each arm; those alike are one."""
    lines = []
    for topology, rows in ok.groupby("topology", sort=False):
        for doubt, count in group_similar(each_doubt(rows)).value_counts().items():
            lines.append(f"{topology}: {doubt} (in {count} of {many(len(rows), 'row')})")
    return lines


def _mixed(ok: pd.DataFrame) -> list[str]:
    """What is unknown, or differs, among rows that were compared nevertheless."""
    lines = []
    for name in [*RAN_ON, *PEER_RAN_ON, *PROVENANCE]:
        unknown = ok[name].isna() & ~(ok["protocol"].eq("ping") & (name == "iperf3"))
        unknown &= ok["nodes"].eq("two") | (name not in PEER_RAN_ON)
        if unknown.any():
            lines.append(
                f"{name} is not recorded in {unknown.sum()} of {many(len(ok), 'row')}: it may have differed"
            )
    lesser = {name: name for key, group in groups(ok) for name in differing(group, DOUBTFUL)}
    for (topology, *_), group in ok.groupby(["topology", *GROUP], dropna=False):
        lesser |= {f"{name} of {topology}": name for name in differing(group, ["offloads", "qdisc"])}
    return [*lines, *(f"rows that differ in {name} were compared with each other" for name in lesser)]
