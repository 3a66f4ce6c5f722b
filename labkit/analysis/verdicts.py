"""Compute verdicts from rows: paired ratios, verdicts about them, and reasons for doubt.

Arms are compared with the baseline within a group, whose rows are equal in the columns of GROUP. Only valid rows count.
`doubts` returns a sentence for everything that was left out, and for every other reason for doubt.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import conditions, load, protocols, stats
from labkit.analysis.load import GROUP, groups, measured_rows
from labkit.common import schema, units
from labkit.common.errors import BadInput
from labkit.common.schema import TARGET_HELD
from labkit.common.units import counted

DOUBTFUL = [
    "microcode", "labkit", "git_revision", "duration_s", "omit_s", "trial_s", "trial_frames_count", "sum_s",
    "exceed_ratio",
]  # fmt: skip
MEASUREMENT = ["folder", "round", "method", "slice"]  # with GROUP, identifies compared measurements
JUDGED = [  # beside the ratios
    "role", "topology", "metric", "guest_accelerator", "status", "ended", "transaction_rate", "latency_p50_s",
]  # fmt: skip
RATIOS = [
    *MEASUREMENT, "setup", "topology", "baseline", "log_ratio", "log_control", "starved", "placed",
]  # fmt: skip
VERDICTS = [
    "topology", "baseline", "ratio", "low", "high", "degrees_of_freedom", "n_count", "rounds_count", "how", "word",
    "sentence", "control_ratio", "control_low", "control_high", "whole_ratio", "whole_low", "whole_high", "disagree",
    "contradicted", "widened", "guest_accelerator", "change", "metric",
]  # fmt: skip
_NUMBERS = [name for name in VERDICTS if name.endswith(("ratio", "low", "high", "_count", "freedom"))]
_FLAGS = ("disagree", "contradicted", "widened")
_NONE = pd.DataFrame({"topology": []})
ABSENT = ("unsupported", "isolated", "equal", "failed")  # each has its own word in the table of verdicts
WANDERS_BY = 1.2  # least ratio of the largest to the smallest set-up that is worth a sentence
SURE = 0.01  # p value for differences between set-ups, and for their correlation with busy CPUs
Weighted = tuple[float, str]  # a doubt and its weight (`doubts`)
SHOWN_DOUBTS = 3
# Round trips of a run that are slower than its percentile; with fewer it is close to the maximum
TAIL_COUNT = 5
MARGIN = 0.05  # a smaller difference counts as equal
MODES = 2.0  # between two CPUs a round trip took 12 times as long as on one
# Of a starved measurement, by whether more of its metric is better
LITTLE = {True: "almost nothing arrived", False: "no time is known"}
MAX_STARVED = 0.25  # share of the slices; above 29 % the Hodges-Lehmann estimate is no longer robust


def ratios(df: pd.DataFrame) -> pd.DataFrame:
    """Return paired log-ratios: a row for each variant topology, round and, if any, slice.

    Columns: GROUP and RATIOS: MEASUREMENT, setup (label of the round), topology, baseline, log_ratio (to the mean of
    both measurements of the baseline, see `stats.log_ratios`), log_control (the baseline to itself; NaN if it was not
    measured twice), starved (almost nothing arrived at one of the arms), placed (labkit chose the CPUs of the ends, in
    all arms alike). Raises BadInput for two different baselines in one group, and like `measured_rows`.
    """
    return ratios_of(measured_rows(load.complete(df)))


def ratios_of(ok: pd.DataFrame) -> pd.DataFrame:
    """Return `ratios` of valid rows (`measured_rows`)."""
    all_keys = [*GROUP, *MEASUREMENT, "setup"]
    ok = ok[ok["log"].notna()].assign(placed=ok["placement"].notna())
    keys = [*load.varying(ok, all_keys[:-1]), "setup"]
    by_arm = ok.groupby([*keys, "role", "topology"], dropna=False)
    values = by_arm.agg(value=("log", "mean"), starved=("starved", "any"), placed=("placed", "all"))
    values = values.reset_index()
    values["value"] = np.exp(values["value"])
    arms, base, again = (
        values[values["role"].eq(role)].drop(columns="role") for role in ("variant", "baseline", "control")
    )
    base, again = base.drop(columns="placed"), again.drop(columns="placed")
    base = base.rename(columns={"topology": "baseline", "value": "first", "starved": "first_starved"})
    again = again.rename(columns={"topology": "baseline", "value": "second", "starved": "second_starved"})
    both = base.merge(again, "outer", [*keys, "baseline"])  # null matches null
    if both["baseline"].nunique() > 1:
        for key, group in groups(_with_constants(both, ok, GROUP)):
            if several := load.differing(group, ["baseline"]):
                names = " and ".join(several["baseline"])
                raise BadInput(f"a group needs one baseline, not {names} ({load.group_text(key)})")
    result = _with_constants(arms.merge(both, "inner", keys), ok, all_keys)
    numbers = (result[name].to_numpy(float) for name in ("value", "first", "second"))
    result["log_ratio"], result["log_control"] = stats.log_ratios(*numbers)
    result["starved"] = result[["starved", "first_starved", "second_starved"]].eq(True).any(axis=1)
    return result[[*GROUP, *RATIOS]]


def _with_constants(df: pd.DataFrame, rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return the table with the missing columns of `names`, which have one value in `rows`."""
    constants = rows[[name for name in names if name not in df]].iloc[[0] * len(df)]
    return pd.concat([df, constants.set_axis(df.index)], axis="columns")


def verdicts(df: pd.DataFrame, margin: float = MARGIN, pairs: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return a verdict for each group and each topology except the baseline; columns GROUP and VERDICTS.

    The column `metric` of the table says what is compared. `pairs`: the `ratios` of the table, if they are known.

    If there are slices, they determine the verdict. whole_ratio is the ratio of the whole runs, or NaN. If the
    intervals of slices and whole runs do not overlap, low and high span both (`stats.spanning`). control_low and
    control_high are the interval of the baseline against itself; a difference within it does not count. If the baseline
    differs from itself, `widened` is true, and low and high are those of `stats.widened`. A topology that was not
    measured has its status as word, the reason as sentence, and NaN for numbers. Raises BadInput like `ratios`.
    """
    df = load.complete(df)
    ratios_by_group = {key: group[RATIOS] for key, group in groups(ratios(df) if pairs is None else pairs)}
    result: list[dict[str, Any]] = []
    for key, group in groups(df[[*GROUP, *JUDGED]]):
        base = group[group["role"].isin(["baseline", "control"])]
        variants = group.drop(base.index)
        baseline, metric = next(iter(base["topology"]), None), group["metric"].iloc[0]
        ratios_here = ratios_by_group.get(key, _NONE)
        # The control is the same for all topologies of the group.
        control = functools.cache(functools.partial(column_effect, ratios_here, "log_control"))
        for topology, rows in variants.groupby("topology", sort=False):
            if baseline is None and variants["topology"].nunique() == 1:
                continue
            line: dict[str, Any] = dict(zip(GROUP, key, strict=True))
            line |= {"topology": topology, "baseline": baseline, "metric": metric}
            line["guest_accelerator"] = next(iter(rows["guest_accelerator"].dropna()), None)
            mine = ratios_here[ratios_here["topology"].eq(topology)]
            if len(mine) and _held_targets(rows, base):
                why = (
                    "every load test held its target, so the limits were not reached and nothing was compared: use a"
                    " higher target, or compare latency and CPU time"
                )
                line |= no_evidence(str(topology), baseline, why)
            elif len(mine) and (modes := two_modes(rows) or two_modes(base)):
                line |= no_evidence(str(topology), baseline, modes)
            elif len(mine):
                higher = protocols.higher_is_better(metric)
                line |= verdict_line(mine, control, str(topology), str(baseline), margin, higher)
            else:
                own, other = df.loc[rows.index], df.loc[base.index]
                word, sentence = _unmeasured(own, other, str(topology), baseline)
                line |= {"word": word, "sentence": sentence}
            result.append(line)
    return verdict_table(result)


def verdict_table(lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return lines of verdicts as a table with the columns GROUP and VERDICTS."""
    table = pd.DataFrame(lines, columns=[*GROUP, *VERDICTS]).astype(dict.fromkeys(_NUMBERS, float))
    return table.assign(**{name: table[name].eq(True) for name in _FLAGS})


def _held_targets(*arms: pd.DataFrame) -> bool:
    """Return whether all valid rows are load tests that ended at their target, so their rates are that target."""
    return all(rows.loc[rows["status"].eq("ok"), "ended"].eq(TARGET_HELD).all() for rows in arms)


def no_evidence(topology: str, baseline: str | None, why: str) -> dict[str, Any]:
    """Return the word and the sentence of a verdict without evidence."""
    return {"word": "no evidence", "sentence": f"no evidence about {topology} against {baseline}: {why}"}


def two_modes(rows: pd.DataFrame) -> str | None:
    """Return why the mean of an arm's requests describes nothing, or None.

    Only requests that the scheduler placed count. Their ends were on one CPU in some runs and on two in others if at
    least two runs took MODES times as long as all of at least two others.
    """
    if not (answered := rows["transaction_rate"].notna()).any():
        return None
    free = rows["ends_on"].isna() & rows["rate_rps"].isna() & rows["status"].eq("ok")
    known = rows.loc[free & answered, "latency_p50_s"].dropna()
    times = np.sort(known.to_numpy(float))
    steps = times[2:-1] / times[1:-2]
    if not len(steps) or steps.max() < MODES:
        return None
    short, long = np.split(times, [2 + steps.argmax()])
    medians = [units.si(float(np.median(each)), "s") for each in (short, long)]
    return (
        f"a round trip took {medians[0]} in {len(short)} of {len(times)} runs and {medians[1]} in the others, as"
        " between ends on one CPU and on two: placement=balanced compares each"
    )


def verdict_line(
    mine: pd.DataFrame,
    control_by: Callable[[bool], stats.Effect | None],
    topology: str,
    baseline: str,
    margin: float,
    higher: bool,
) -> dict[str, Any]:
    """Return the verdict about one topology from its ratios, and from the effect of the control by slices or runs."""
    slices = bool(mine["method"].eq("slice").any())
    if why := starved(mine[mine["method"].eq("slice" if slices else "whole")], slices, higher):
        return no_evidence(topology, baseline, why)
    effect, control = column_effect(mine, "log_ratio", slices), control_by(slices)
    assert effect is not None, "the caller has checked that there are ratios"
    whole = column_effect(mine, "log_ratio", slices=False) if slices else None
    effect = stats.spanning(effect, whole)
    verdict = stats.verdict(effect, control, margin, higher, arm=topology, baseline=baseline)
    effect = stats.widened(effect, control, baseline)
    return {
        "ratio": effect.ratio, "low": effect.low, "high": effect.high, "degrees_of_freedom": effect.degrees_of_freedom,
        "n_count": effect.n_count, "rounds_count": effect.setups_count, "how": effect.how, "word": verdict.word,
        "sentence": verdict.sentence,
        "control_ratio": control and control.ratio, "control_low": control and control.low,
        "control_high": control and control.high, "whole_ratio": whole and whole.ratio,
        "whole_low": whole and whole.low, "whole_high": whole and whole.high,
        "disagree": effect.disagree, "contradicted": effect.contradicted, "widened": stats.differs_from_itself(control),
    }  # fmt: skip


def starved(lines: pd.DataFrame, slices: bool, higher: bool) -> str | None:
    """Return why there is no ratio if more measurements are starved than the estimate tolerates, else None.

    higher: whether more of the metric is better.
    """
    count = int(lines["starved"].sum())
    if count <= MAX_STARVED * len(lines):
        return None
    what = counted(len(lines), "slice" if slices else "run")
    where = "at one of the two arms"
    return f"in {count} of {what} {LITTLE[higher]} {where}, which is too many for a ratio"


def column_effect(lines: pd.DataFrame, column: str, slices: bool) -> stats.Effect | None:
    """Return the effect in rows of `ratios`, by slices or by whole runs; None without rows.

    column is log_ratio or log_control. The control is the same for all topologies of a group, so its effect uses all
    rows of the group.
    """
    used = lines[lines["method"].eq("slice" if slices else "whole") & lines[column].notna()]
    if column == "log_control":
        used = used.drop_duplicates(MEASUREMENT)
    if not len(used):
        return None
    placed = bool(used["placed"].all())
    return stats.effect(used[column].to_numpy(float), list(used["setup"]), slices, placed=placed)


def _unmeasured(
    rows: pd.DataFrame, base: pd.DataFrame, topology: str, baseline: str | None
) -> tuple[str, str]:
    """Return word and sentence for a topology without a ratio, from its own rows or else from the baseline's."""
    if baseline is None:
        return "no evidence", f"no evidence about {topology}: no baseline was measured with it"
    why = f"it and {baseline} have no valid measurement in common"
    for about, own in ((topology, rows), (baseline, base)):
        is_rate = protocols.higher_is_better(own["metric"].iloc[0])
        if own["status"].ne("ok").all():
            reasons = own["reason"].fillna("no reason was recorded")
            [((status, reason), _)] = Counter(zip(own["status"], reasons, strict=True)).most_common(1)
            if about == topology and status in ABSENT:
                return str(status), str(reason)
            why = f"{about} has no valid measurement ({reason})"
        elif load.unsupported_rates(own).any():
            lacks = "has no" if own["loss_goal_ratio"].notna().any() else "often lacked the requested"
            why = f"{about} {lacks} rate ({own.loc[load.without_rate(own), 'reason'].iloc[0]})"
        elif len(ok := measured_rows(own)) and ok["log"].isna().all():
            lost = f"{about} lost so many round trips in every run that their time is not known"
            why = f"nothing arrived at {about} in any measurement" if is_rate else lost
        else:
            continue
        break
    return "no evidence", f"no evidence about {topology}: {why}"


def contradicting_medians(df: pd.DataFrame) -> list[str]:
    """Return a sentence for each verdict whose interval does not contain the quotient of the two arms' medians."""
    df = load.complete(df)
    ok = measured_rows(df)
    rows_by_group = dict(groups(ok[[*GROUP, "method", "role", "topology", "value"]]))
    lines = []
    for line in verdicts(df, pairs=ratios_of(ok)).dropna(subset=["low", "high"]).to_dict("records"):
        key = load.key_of(line)
        rows = rows_by_group[key]
        rows = rows[rows["method"].eq("slice")] if rows["method"].eq("slice").any() else rows
        arm = rows.loc[rows["role"].eq("variant") & rows["topology"].eq(line["topology"]), "value"].median()
        base = rows.loc[rows["role"].eq("baseline"), "value"].median()
        if base > 0 and not line["low"] <= (quotient := arm / base) <= line["high"]:
            shown = stats.ratio_text(line["ratio"], line["low"], line["high"])
            lines.append(
                f"{load.group_text(key)}: the medians of {line['topology']} and {line['baseline']} alone give the ratio"
                f" {quotient:.3g}. The verdict uses {shown} instead, because it compares neighbouring measurements:"
                " changes of the machine between rounds cancel out in it"
            )
    return lines


def _wandering(ok: pd.DataFrame, pairs: pd.DataFrame) -> list[str]:
    """Return a sentence for each ratio that differs much between set-ups, with the regime that explains it if any.

    A long series of one comparison showed two regimes: flows whose ends share a CPU, and flows whose ends do not. The
    ratio of the two arms was 1.38 in one and 1.05 in the other, and several set-ups in a row were in the same one. The
    busy CPUs during the baseline's slices tell them apart.
    """
    base = ok[ok["role"].eq("baseline") & ok["method"].eq("slice")]
    base = base.assign(busy=base["cpu_s"] / base["window_s"])
    busy_by_group = {
        key: rows.groupby("setup")["busy"].mean() for key, rows in groups(base[[*GROUP, "setup", "busy"]])
    }
    lines = []
    for key, group in groups(pairs):
        slices = group[group["method"].eq("slice") & group["log_ratio"].notna()]
        for (topology, baseline), mine in slices.groupby(["topology", "baseline"], sort=False):
            setups = {name: logs.to_numpy(float) for name, logs in mine.groupby("setup")["log_ratio"]}
            centres = np.array([stats.centre(logs) for logs in setups.values()])
            if len(setups) < stats.MIN_SETUPS or np.ptp(centres) < np.log(WANDERS_BY):
                continue
            if stats.setups_disagree(list(setups.values()), SURE):
                low, high = np.exp([centres.min(), centres.max()])
                busy = busy_by_group.get(key, pd.Series(dtype=float)).reindex(list(setups)).to_numpy(float)
                what = f"{load.group_text(key)}: the ratio of {topology} to {baseline} varies between set-ups"
                why = _regime(centres, busy, placed=bool(mine["placed"].all()))
                lines.append(f"{what}, from {low:.3g} to {high:.3g}; {why}")
    return lines


def _regime(centres: stats.Floats, busy: stats.Floats, placed: bool) -> str:
    """Return what explains the variation of a ratio between set-ups, and how to measure without it.

    placed: whether labkit chose the CPUs of the flows' ends.
    """
    again = "more set-ups (rounds) at different times show how often"
    if not np.isfinite(busy).all() or stats.correlation(centres, busy)[1] >= SURE:
        return f"no recorded property of the machine explains it; {again}"
    few = busy < (busy.min() + busy.max()) / 2
    less, more = (float(np.exp(centres[which].mean())) for which in (few, ~few))
    depends = "how many CPUs the flows keep busy" if placed else "which CPUs the scheduler gives the flows"
    return (
        f"it is {less:.3g} where {busy[few].mean():.2g} CPUs are busy and {more:.3g} where {busy[~few].mean():.2g} are,"
        f" so it depends on {depends}: affinity=0,1 measures one placement; {again}"
    )


def doubts(
    df: pd.DataFrame, pairs: pd.DataFrame | None = None, table: pd.DataFrame | None = None
) -> list[str]:
    """Return every reason for doubt about a table of rows and its verdicts, one sentence each, the weightiest first.

    A doubt weighs as much as the share of rows or verdicts that it is about, and more if it is about what verdicts are
    made from. `pairs` and `table`: its `ratios` and its `verdicts`, if they are known. Raises like `verdicts`.
    """
    unfinished = list(df.attrs.get("unfinished", []))
    df = load.complete(df)
    ok = measured_rows(df)
    pairs = ratios_of(ok) if pairs is None else pairs
    table = verdicts(df, pairs=pairs) if table is None else table
    found = [(3.0, sentence) for sentence in unfinished]
    found += [*_about_verdicts(table), *((2.0, sentence) for sentence in _wandering(ok, pairs))]
    all_hosts = load.hosts(df)
    for name, rows in all_hosts:
        own = ok[ok.index.isin(rows.index)]
        by_row = _by_sentence(load.each_doubt(own), own["topology"], own)
        about = [*_left_out(rows, own), *by_row, *conditions.host_doubts(own)]
        head = f"{name}: " if len(all_hosts) > 1 else ""
        found += [(weight, f"{head}{doubt}") for weight, doubt in about]
    found += [*((0.5, sentence) for sentence in conditions.busy(df)), *_few_in_the_tail(ok), *_mixed(ok)]
    return [sentence for _, sentence in sorted(found, key=lambda one: -one[0])]


def _few_in_the_tail(ok: pd.DataFrame) -> list[Weighted]:
    """Return a doubt if the judged percentile rests on a few of the slowest round trips of a run."""
    name, times = load.percentile_of(ok), ok[load.timed(ok)]
    slower = 1 - schema.LATENCIES[name][0]
    few = int(times["received_count"].mul(slower).lt(TAIL_COUNT).sum())
    if not few or not slower:  # the maximum is one round trip by its nature
        return []
    sentence = (
        f"{schema.latency_text(name)}: in {few} of {counted(len(times), 'run')} fewer than {TAIL_COUNT} round trips"
        " were slower, so it is close to the maximum: make duration_s longer, a run needs"
        f" {np.ceil(TAIL_COUNT / slower):,.0f} round trips"
    )
    return [(0.5, sentence)]


def weightiest(doubts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the doubts that are shown, and those that are folded; one alone is not worth a fold."""
    shown = SHOWN_DOUBTS if len(doubts) > SHOWN_DOUBTS + 1 else len(doubts)
    return list(doubts[:shown]), list(doubts[shown:])


def _about_verdicts(result: pd.DataFrame) -> list[Weighted]:
    compared = result[result["low"].notna()]
    if not len(compared):
        return []
    count = len(compared)
    chance = (
        f"{counted(count, 'comparison')} with 95 % intervals: if no arm differed from the baseline, chance would still"
        f" put about {0.05 * count:.1g} of them beside 1"
    )
    lines = [(0.0, chance)]
    few = compared["rounds_count"].lt(stats.MIN_SETUPS) & compared["how"].str.contains("slice", na=False)
    unchecked = compared["how"].str.contains("slice", na=False) & compared["whole_low"].isna()
    if unchecked.any():
        text = "fewer than two whole runs of each arm, so nothing checks the result of the slices"
        lines.append((0.1, text))
    for least, which, what in (
        (1.0, compared["disagree"], "the set-ups disagree, so the interval is over set-ups and therefore wider"),
        (0.1, few, f"fewer than {stats.MIN_SETUPS} fresh set-ups: a difference between set-ups may not be detected"),
        (2.0, compared["contradicted"], "slices and whole runs contradict each other, so the interval spans both"),
        (1.0, compared["widened"], "the baseline differs from itself, so the interval is widened by that"),
    ):  # fmt: skip
        weight = least + float(which.mean())
        there = _places(compared[which]) if which.any() else []
        lines += [(weight, f"{_together(places)}: {what} ({names})") for places, names in there]
    return lines


def _together(places: list[str]) -> str:
    """Join descriptions of groups, with their common parts once: `udp, 1 pair, MTU 1500 (16 bytes; 400 bytes)`."""
    words = [place.split(", ") for place in places]
    common = [word for word in words[0] if all(word in other for other in words)]
    own = [", ".join(word for word in place if word not in common) or "defaults" for place in words]
    if not common:
        return "; ".join(places)
    return ", ".join(common) + (f" ({'; '.join(own)})" if len(places) > 1 else "")


def _places(result: pd.DataFrame) -> list[tuple[list[str], str]]:
    """Return the groups of each host that have the same arms, with the names of these arms."""
    all_hosts = load.hosts(result)
    places: dict[tuple[str, str], list[str]] = {}
    for name, rows in all_hosts:
        for key, group in groups(rows):
            texts = places.setdefault((name, ", ".join(sorted(set(group["topology"])))), [])
            texts.append(load.group_text(key, name if len(all_hosts) > 1 else ""))
    return [(texts, names) for (_, names), texts in places.items()]


def _left_out(df: pd.DataFrame, ok: pd.DataFrame) -> list[Weighted]:
    bad = df[df["status"].isin(["invalid", "failed"])]
    reasons = "left out as " + bad["status"] + ": " + bad["reason"].fillna("no reason was recorded")
    lines = _by_sentence(reasons, bad["topology"], df)
    unsupported = load.unsupported_rates(df)
    if count := int(unsupported.sum()):
        text = f"{counted(count, 'rate')} left out: at least as many searches of the arm saw frames lost at every load"
        lines.append((count / len(df), f"{text}, or as many searches or runs ended at the generator's limit"))
    if unusable := int((df["status"].eq("ok") & ~unsupported).sum()) - len(ok):
        text = f"{counted(unusable, 'row')} left out: status ok, but the compared metric is null"
        lines.append((unusable / len(df), text))
    held = ok["ended"].eq(TARGET_HELD)
    if not held.all():  # else nothing was compared (`_held_targets`)
        bound = pd.Series("the load test held its target, so its rate is a lower bound", ok.index[held])
        lines += _by_sentence(bound, ok["topology"], ok)
    for (topology, metric), starved in ok.groupby(["topology", "metric"], sort=False)["starved"]:
        if count := int(starved.sum()):
            little = LITTLE[protocols.higher_is_better(str(metric))]
            text = f"{topology}: in {count} of {counted(len(starved), 'row')} {little}"
            lines.append((count / len(starved), f"{text}; each counts as the slowest of the others"))
    return lines


def _by_sentence(sentences: pd.Series[str], topology: pd.Series[str], df: pd.DataFrame) -> list[Weighted]:
    """Return each sentence about rows with the arms that it is about: `veth_bridge: … (in 2 of 48 rows)`.

    Sentences that differ only in numbers are grouped. `df` has all rows of the arms.
    """
    if sentences.empty:
        return []
    alike = load.group_similar(sentences.reset_index(drop=True))
    arms = topology.loc[sentences.index].reset_index(drop=True)
    all_rows = df["topology"].value_counts(sort=False)
    result = []
    for sentence in alike.value_counts(sort=True).index:
        own = arms[alike.eq(sentence)]
        counts = {name: count for name in all_rows.index if (count := int(own.eq(name).sum()))}
        many = {name: f"{count} of {counted(int(all_rows[name]), 'row')}" for name, count in counts.items()}
        text = f"{sentence} ({'; '.join(f'{name}: {rows}' for name, rows in many.items())})"
        if len(many) == 1:
            [(name, rows)] = many.items()
            text = f"{name}: {sentence} (in {rows})"
        result.append((len(own) / max(len(df), 1), text))
    return result


def _mixed(ok: pd.DataFrame) -> list[Weighted]:
    """Return a doubt for each property that is unknown or differs among compared rows."""
    absent: dict[int, list[str]] = {}
    generators, is_two = {*ok["generator"], "iperf3"}, ok["nodes"].eq("two")
    for name in [*load.RAN_ON, *load.PEER_RAN_ON, *load.PROVENANCE]:
        unknown = ok[name].isna()
        if name in generators:  # the version of a generator
            unknown &= ok["generator"].eq(name)
        if name in load.PEER_RAN_ON:
            unknown &= is_two
        if unknown.any():
            absent.setdefault(int(unknown.sum()), []).append(name)
    lines = []
    for count, names in absent.items():
        what = f"{units.listed(names)} {'are' if names[1:] else 'is'} not recorded"
        may = f"{'they' if names[1:] else 'it'} may have differed"
        lines.append((0.1 * count / len(ok), f"{what} in {count} of {counted(len(ok), 'row')}: {may}"))
    doubtful, of_arms = load.varying(ok, DOUBTFUL), load.varying(ok, ["offloads", "qdisc"])
    narrow = ok[list(dict.fromkeys([*GROUP, "topology", *doubtful, *of_arms]))]
    by_group = groups(narrow) if doubtful else ()
    lesser = {name: name for _, group in by_group for name in load.differing(group, doubtful)}
    for (topology, *_), group in groups(narrow, ["topology", *GROUP]) if of_arms else ():
        lesser |= {f"{name} of {topology}": name for name in load.differing(group, of_arms)}
    return [*lines, *((1.0, f"compared rows differ in {name}") for name in lesser)]
