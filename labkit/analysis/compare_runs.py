"""Compare two runs, or two sweeps, point by point (`labkit compare`).

Two runs are not interleaved, so a plain ratio of one to the other includes the drift of the machine between them (2 to
5 % without any change). If both measured the same baseline, their ratios to it are compared instead. The drift that arm
and baseline share then cancels out (a difference of differences of logarithms). Each fresh set-up counts as one number,
with Welch's t interval, because measurements within a set-up are not independent. Where both sides have several runs,
each run does, because its set-ups share its time.

If the points are from two hosts (another kernel, accelerator or machine), only ratios to a common baseline are
compared.

Runs that one machine measured in turn (`labkit bisect`) are paired by their folders' names, so its drift cancels out in
the ratio of each pair. Then speeds are compared, also of two kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import conditions, load, protocols, stats, verdicts
from labkit.analysis.change_effects import change_ratios, interaction, two_modes
from labkit.analysis.load import GROUP, HOST, Key
from labkit.common import units
from labkit.common.errors import BadInput

DRIFT = 0.05  # drift between two runs without any change (METHOD rule 11)
UNCHANGED = "unchanged arm"
# Properties of an arm's rows, beside verdicts.DOUBTFUL. A name of a change or of a network does not say what it is.
OF_ARMS = ["placement", UNCHANGED, "offloads", "qdisc", "network", "changed"]
COLUMNS = [
    "topology", "baseline", "change", "left_host", "right_host", "method", "metric", "left_median", "right_median",
    "left_setups_count", "right_setups_count", "ratio", "low", "high", "relative_ratio", "relative_low",
    "relative_high", "judged_ratio", "judged_low", "judged_high", "judged_degrees_of_freedom", "how", "word", "why",
    "sentence",
]  # fmt: skip
REQUESTED = 2  # the first columns of HOST are the requested host; the others describe the actual one
_NUMBERS = [name for name in COLUMNS if name.endswith(("median", "count", "ratio", "low", "high", "freedom"))]


@dataclass(frozen=True)
class RunSide:
    """One of the two sides: its name, the number of the run of each folder, all rows, the valid rows (also by
    group), and the paired ratios (also by group).

    What a change does to one topology more than to another (`change_ratios`) is a point without a value.
    """

    name: str
    run_numbers: Mapping[str, int]
    rows: pd.DataFrame
    ok: pd.DataFrame
    pairs: pd.DataFrame
    points: dict[Key, pd.DataFrame]
    ratios: dict[Key, pd.DataFrame]


@dataclass(frozen=True)
class Common:
    """A topology at a point that both runs measured: the group on each side, and the names of the two sides.

    in_turn: the runs were measured in turn. taken: `conditions.taken_shares` of the point, or else of both runs.
    """

    topology: str
    sides: tuple[RunSide, RunSide]
    keys: tuple[Key, Key]
    names: tuple[str, str]
    hosts: tuple[str, str]
    in_turn: bool
    taken: Sequence[tuple[tuple[float, float], str]]

    @property
    def metric(self) -> str:
        """The compared metric."""
        return str(self.tables("points")[0]["metric"].dropna().iloc[0])

    @property
    def higher_is_better(self) -> bool:
        return protocols.higher_is_better(self.metric)

    @property
    def change(self) -> str | None:
        """The change whose effects on two topologies are compared, if no speeds are."""
        own = (rows[rows["topology"].eq(self.topology)] for rows in self.tables("ratios") if len(rows))
        return next((str(name) for rows in own for name in rows["change"].dropna()), None)

    @property
    def unchanged_arms(self) -> list[str]:
        """The names of the unchanged arm on both sides, if the arm is named by its change alone and they differ."""
        arms = [rows.loc[rows["topology"].eq(self.topology), UNCHANGED] for rows in self.tables("points")]
        names = [" and ".join(arm.dropna().astype(str).unique()) for arm in arms]
        return names if names[0] != names[1] else []

    @property
    def arms(self) -> list[str]:
        """The names of the arm on both sides: `tso on vxlan` if it is named by its change alone, which others have."""
        return [f"{self.topology} on {name}" for name in self.unchanged_arms] or [self.topology] * 2

    @property
    def one_host(self) -> bool:
        return self.keys[0] == self.keys[1]

    @property
    def group(self) -> dict[str, Any]:
        """Return the columns of GROUP, with None where the two hosts differ."""
        both = zip(GROUP, *self.keys, strict=True)
        return {name: one if one == other else None for name, one, other in both}

    def tables(self, which: str) -> list[pd.DataFrame]:
        """Return both sides' rows ("points") or paired ratios ("ratios") in the group; empty tables if there are
        none."""
        tables = [getattr(side, which) for side in self.sides]
        return [table.get(key, pd.DataFrame()) for table, key in zip(tables, self.keys, strict=True)]


def compare(
    left_path: str | Path | Sequence[Path],
    right_path: str | Path | Sequence[Path],
    margin: float = 0.05,
    judged: Callable[[pd.DataFrame], pd.DataFrame] = lambda rows: rows,
    in_turn: bool = False,
    but: str | None = None,
) -> tuple[pd.DataFrame, Callable[[], list[str]]]:
    """Compare the right run with the left one. Several runs are one side.

    `judged`: takes each run's rows and returns them with another `metric` than the usual ones. `in_turn`: the runs of
    both sides were measured in turn, those of equal names one after the other. `but`: a parameter in which points may
    differ; of topologies, each side then has one, and the left one names it.

    Returns a table and a function. The table has a row for each group and topology that both measured, in the columns
    GROUP and COLUMNS. ratio, low, high: the metric, right divided by left, without an allowance for drift.
    relative_...: the same for the ratio to the baseline, NaN without a common baseline. judged_...: what word and
    sentence are about: the relative ratio if there is one, else the plain ratio with its interval widened by DRIFT.
    why: what else than the width of the interval leaves no evidence, else null. `attrs["lost"]` names the points that
    the left run measured and the right one tried without a valid measurement, each with its topology. The function
    returns a sentence for each doubt about two runs that did not take turns: these take as long to find as the table.

    Between two hosts there is only the relative ratio (except in turn), and the columns of HOST that differ are null.
    Raises BadInput if the runs are not comparable, with the reason.
    """
    paths = [[Path(path)] if isinstance(path, str | Path) else path for path in (left_path, right_path)]
    names = ["+".join(path.name for path in side) for side in paths]
    if names[0] == names[1]:
        names = ["+".join(map(str, side)) for side in paths]
    runs = [list(map(load.load, side)) for side in paths]
    run_numbers = [
        {str(of): at for at, run in enumerate(side) for of in run["folder"].unique()} for side in runs
    ]
    loaded = [judged(pd.concat(side, ignore_index=True)) for side in runs]
    if but is not None:
        loaded = without(loaded, but)
    left, right = map(_side, paths, names, run_numbers, loaded)
    _refuse(left, right)
    common = _common(left, right, in_turn)
    result = [line for one in common if (line := _line(one, margin))]
    if not result:
        raise BadInput(f"{left.name} and {right.name} {_nothing(common)}: nothing to compare")
    table = pd.DataFrame(result, columns=[*GROUP, *COLUMNS]).astype(dict.fromkeys(_NUMBERS, float))
    table.attrs["lost"] = _lost(left, right)
    return table, lambda: _doubts(left, right, common, table)


def without(tables: list[pd.DataFrame], name: str) -> list[pd.DataFrame]:
    """Return the tables with one value of a parameter for all rows, so that points that differ in it are common."""
    if name not in tables[0]:
        return tables
    if name == "topology":
        for one in tables:
            if one["topology"].nunique() > 1:
                raise BadInput(
                    "each side has one topology where topologies are exchanged, not"
                    f" {' and '.join(map(str, one['topology'].unique()))}"
                )
        return [one.assign(topology=tables[0]["topology"].iloc[0]) for one in tables]
    kinds = [float if one[name].dtype.kind in "iu" else one[name].dtype for one in tables]
    return [
        one.assign(**{name: pd.Series(None, one.index, kind)})
        for one, kind in zip(tables, kinds, strict=True)
    ]


def _side(paths: Sequence[Path], name: str, run_numbers: Mapping[str, int], rows: pd.DataFrame) -> RunSide:
    ok = load.measured_rows(rows)
    if ok.empty:
        parts = list(load.load(paths[0], None)["part"].dropna().unique()) if rows.empty else list[str]()
        only = f" of throughput or latency, only the parts {', '.join(parts)}" if parts else ""
        raise BadInput(f"{paths[0]} has no valid measurement{only}: there is nothing to compare")
    ratios = verdicts.ratios_of(ok)
    # A slice's CPUs, or null if the scheduler chose.
    placement = ok["placement"].notna().map({True: "by labkit", False: "by the scheduler"})
    ok["placement"] = placement.where(ok["method"].eq("slice"))
    ok["changed"] = ok["changed"].map(_after, na_action="ignore") if "changed" in ok else None
    arm = (ok["built_topology"] + "/" + ok["endpoint"].fillna("namespace")).str.removesuffix("/namespace")
    ok[UNCHANGED] = arm.where(ok["change"].notna())
    points = ok[[
        *GROUP, *verdicts.JUDGED, "method", "setup", "folder", "value", "log", "starved", *verdicts.DOUBTFUL, *OF_ARMS,
    ]]  # fmt: skip
    effects = change_ratios(rows, ratios)
    effects = effects[effects["change"].notna()]
    effects["placement"] = effects["placed"].map({True: "by labkit", False: "by the scheduler"})
    points = pd.concat([points, effects.rename(columns={"log_ratio": "log"}).reindex(columns=points.columns)])
    both = pd.concat([ratios, effects], ignore_index=True)
    return RunSide(name, run_numbers, rows, ok, ratios, dict(load.groups(points)), dict(load.groups(both)))


def _after(effects: Any) -> str:
    """Return what a change set, as `sysctl net.ipv4.tcp_sack=0 (server)`."""
    known = effects if isinstance(effects, list) else ()
    return ", ".join(f"{one['kind']} {one['setting']}={one['after']} ({one['at']})" for one in known)


def _refuse(left: RunSide, right: RunSide) -> None:
    """Raise BadInput if rows of the same host differ in PROVENANCE, guests of the same point in GUEST_COLUMNS, or the
    percentiles that the runs were measured for."""
    for by, names in ((HOST, load.PROVENANCE), (GROUP, load.GUEST_COLUMNS), (["protocol"], ["metric"])):
        both = pd.concat([side.ok[[*by, *names]] for side in (left, right)], ignore_index=True)
        different = load.varying(both, names)
        for _, rows in load.groups(both, by) if different else ():
            if differ := load.differing(rows, different):
                each = (f"{name}: {' and '.join(map(str, values))}" for name, values in differ.items())
                why = f"because they differ in {'; '.join(each)}"
                way = ": choose one with --percentile" if "metric" in differ else ""
                raise BadInput(f"{left.name} and {right.name} are not comparable {why}{way}")


def _common(left: RunSide, right: RunSide, in_turn: bool) -> list[Common]:
    """Return the common points: on the same host, or else on hosts requested alike, or else on any hosts."""
    both = pd.concat([side.ok[HOST] for side in (left, right)], ignore_index=True)
    names = {key: name for name, rows in load.hosts(both) for key, _ in load.groups(rows, HOST)}
    runs = [side.ok[[*GROUP, *conditions.TAKEN]] for side in (left, right)]
    of_points = [dict(load.groups(rows)) for rows in runs]
    common = []
    for equal_counts in ((len(HOST), REQUESTED), (0,)):
        for one, other in _matching(left, right, equal_counts):
            hosts_of = (names[one[: len(HOST)]], names[other[: len(HOST)]])
            report = [
                side.name if one == other else f"{side.name} ({host})"
                for side, host in zip((left, right), hosts_of, strict=True)
            ]
            there, own = set(right.points[other]["topology"]), (of_points[0][one], of_points[1][other])
            taken = list(conditions.taken_shares(*own, (left.name, right.name), runs))
            common += [
                Common(name, (left, right), (one, other), (report[0], report[1]), hosts_of, in_turn, taken)
                for name in left.points[one]["topology"].unique()
                if name in there
            ]
        if common:
            return common
    differ = load.differing_columns(left.ok, right.ok, [*GROUP[len(HOST) :], "topology"])
    lines = f": they differ in {', '.join(differ)}" if differ else ""
    raise BadInput(f"{left.name} and {right.name} have no point in common{lines}")


def _lost(left: RunSide, right: RunSide) -> list[tuple[str, str]]:
    """Return the points, and their topologies, that the left run measured and the right one tried in vain."""
    names = [*GROUP[len(HOST) :], "topology"]
    valid = [side.ok[side.ok["log"].notna()] for side in (left, right)]  # null: nothing arrived in any slice
    measured, tried, there = (
        {key for key, _ in load.groups(rows[names], names)} for rows in (valid[0], right.rows, valid[1])
    )
    hidden = (None,) * len(HOST)
    return sorted(
        (f"{key[-1]} ({load.group_text((*hidden, *key[:-1]))})", str(key[-1]))
        for key in (measured & tried) - there
    )


def _matching(left: RunSide, right: RunSide, equal_counts: tuple[int, ...]) -> Iterator[tuple[Key, Key]]:
    """Yield pairs of groups that differ only in their hosts.

    The hosts must agree in the first columns of HOST. Of the numbers in `equal_counts`, the first that yields a pair is
    used.
    """
    for one in left.points:
        candidates = [other for other in right.points if other[len(HOST) :] == one[len(HOST) :]]
        tiers = ([other for other in candidates if other[:count] == one[:count]] for count in equal_counts)
        yield from ((one, other) for other in next(filter(None, tiers), []))


def _nothing(common: list[Common]) -> str:
    if not all(one.one_host or one.in_turn for one in common):
        return "ran on different hosts, whose speeds are not compared, and have no ratio to a common baseline"
    left, right = (set(side.ok["method"]) for side in common[0].sides)
    if left.isdisjoint(right):
        return "were measured with different methods: slices on one side, whole runs on the other"
    return "know the value of no common point: nothing arrived, or too many round trips were lost"


def _line(one: Common, margin: float) -> dict[str, Any] | None:
    """Return the row of one point.

    It is None if nothing is comparable: slices against whole runs, two hosts without ratios, or no known value.
    """
    arms = [rows[rows["topology"].eq(one.topology)] for rows in one.tables("points")]
    method = next((m for m in ("slice", "whole") if all(arm["method"].eq(m).any() for arm in arms)), None)
    if method is None:
        return None
    baselines, relative = (None, None) if one.in_turn else _relative(one, method)
    if relative is None and not (one.one_host or one.in_turn):
        return None
    arms = [arm[arm["method"].eq(method) & arm["log"].notna()] for arm in arms]
    if any(arm.empty for arm in arms):
        return None
    placed = not any(arm["placement"].eq("by the scheduler").any() for arm in arms)
    plain = _difference(one, arms, "log", placed)
    if one.in_turn:
        of_runs = (arm.groupby("folder") for arm in arms)
        each = [{str(run): stats.centre(_by_setup(rows, "log")) for run, rows in runs} for runs in of_runs]
        plain = effect = in_turn_effect(each)
    else:
        effect = with_drift(plain) if relative is None else relative
    # Of two runs whose baseline is that change itself, ratios to it are compared.
    unchanged = one.unchanged_arms if baselines is None or baselines == one.unchanged_arms else []
    effect, verdict, why = _verdict(one, baselines, unchanged, method, effect, margin)
    names = [one.topology, baselines and baselines[1], one.change]
    if unchanged:  # as in a run that has both
        names = [one.arms[1], baselines and one.arms[0], baselines and one.topology]
    absolute = {
        "left_median": arms[0]["value"].median(), "right_median": arms[1]["value"].median(),
        "ratio": plain.ratio, "low": plain.low, "high": plain.high,
    }  # fmt: skip
    return {
        **one.group, **dict(zip(("topology", "baseline", "change"), names, strict=True)),
        "left_host": one.hosts[0], "right_host": one.hosts[1], "method": method, "metric": one.metric,
        "left_setups_count": arms[0]["setup"].nunique(), "right_setups_count": arms[1]["setup"].nunique(),
        **(absolute if (one.one_host or one.in_turn) and arms[0]["value"].notna().all() else {}),
        "relative_ratio": relative and relative.ratio, "relative_low": relative and relative.low,
        "relative_high": relative and relative.high, "judged_ratio": effect.ratio, "judged_low": effect.low,
        "judged_high": effect.high, "judged_degrees_of_freedom": effect.degrees_of_freedom, "how": effect.how,
        "word": verdict.word, "why": why,
        "sentence": f"{load.group_text(tuple(one.group.values()))}: {verdict.sentence}",
    }  # fmt: skip


def _by_setup(rows: pd.DataFrame, column: str) -> stats.Floats:
    """Return one number for each fresh set-up: the Hodges-Lehmann estimate, because slices are heavy-tailed."""
    numbers = rows.groupby("setup", sort=False)[column]
    return np.array([stats.centre(some.to_numpy(float)) for _, some in numbers])


def _difference(one: Common, tables: Sequence[pd.DataFrame], column: str, placed: bool) -> stats.Effect:
    """Return the effect of right to left over set-ups, or over runs if both sides have several.

    Two points of one sweep are in two folders, and are no runs of their own.
    """
    runs = [rows["folder"].map(side.run_numbers) for rows, side in zip(tables, one.sides, strict=True)]
    if any(numbers.nunique() < 2 for numbers in runs):
        return stats.difference(*(_by_setup(rows, column) for rows in tables), placed=placed)
    of_runs = [
        [_by_setup(own, column).mean() for _, own in rows.groupby(numbers)]
        for rows, numbers in zip(tables, runs, strict=True)
    ]
    effect = stats.difference(*of_runs)
    return replace(effect, how=effect.how.replace("set-ups", "runs"))


def in_turn_effect(sides: Sequence[Mapping[str, float]]) -> stats.Effect:
    """Return the effect over pairs of runs with the same name, of which one was measured after the other.

    sides: the logarithm of each run, by its folder. Each run is one number, because set-ups of one boot are alike. The
    interval is at 99 %: it is looked at after every further pair until it decides, and each look is a chance to be
    wrong.
    """
    one, other = (pd.Series({Path(folder).name: log for folder, log in side.items()}) for side in sides)
    differences = (other - one).dropna()
    if differences.empty:
        raise BadInput("no run of one side has the name of a run of the other side")
    effect = stats.effect(differences.tolist())
    how = f"Student's t over {units.counted(len(differences), 'pair')} of runs in turn, at 99 %"
    return replace(effect, low=effect.wide_low, high=effect.wide_high, how=how)


def _relative(one: Common, method: str) -> tuple[list[str] | None, stats.Effect | None]:
    """Return the baseline of each side and the effect on the ratio to it, or (None, None).

    The baselines are the same, or each is the unchanged arm of its side.
    """
    parts = []
    for table in one.tables("ratios"):
        if table.empty:
            return None, None
        parts.append(table[table["topology"].eq(one.topology) & table["method"].eq(method)])
    baselines = [" and ".join(part["baseline"].astype(str).unique()) for part in parts]
    alike = baselines[0] == baselines[1] or baselines == one.unchanged_arms
    if any(part.empty for part in parts) or not alike:
        return None, None
    placed = method != "slice" or all(part["placed"].all() for part in parts)
    return baselines, _difference(one, parts, "log_ratio", placed)


def _lines(one: Common, method: str) -> Iterator[pd.DataFrame]:
    """Yield both sides' measurements of the topology, and their ratios to the baseline if there are any."""
    for which in ("points", "ratios"):
        for rows in one.tables(which):
            if len(rows):
                yield rows[rows["topology"].eq(one.topology) & rows["method"].eq(method)]


def _modes(one: Common, baselines: Sequence[str | None]) -> Iterator[str]:
    """Yield why the mean of an arm's requests in one of the runs describes nothing."""
    for name, rows, baseline in zip(one.names, one.tables("points"), baselines, strict=True):
        if why := two_modes(rows, one.topology, baseline, one.change):
            yield f"in {name} {why}"


def with_drift(plain: stats.Effect) -> stats.Effect:
    """Return the effect with its interval widened by the drift between runs."""
    if plain.low is None or plain.high is None:
        return plain
    how = f"{plain.how}, widened by {units.percent(DRIFT)} for the drift between runs"
    return replace(plain, low=plain.low / (1 + DRIFT), high=plain.high * (1 + DRIFT), how=how)


def _verdict(
    one: Common,
    baselines: list[str] | None,
    unchanged: list[str],
    method: str,
    effect: stats.Effect,
    margin: float,
) -> tuple[stats.Effect, stats.Verdict, str | None]:
    """Return the effect, with an interval that the controls may have widened, the verdict about it, and why there is
    no evidence whatever the interval says, or None."""
    left, right = one.names
    to = f" to {baselines[1]}" if baselines and not unchanged else ""
    arms = one.arms if unchanged or baselines is None else [one.topology] * 2
    effect_of = "the effect of " if one.change else ""
    arm, against, reference = f"{effect_of}{arms[1]}{to} in {right}", left, f"in {left}"
    if unchanged:
        against = reference = f"{arms[0]} in {left}"
    controls = {
        name: verdicts.column_effect(lines, "log_control", method == "slice") if len(lines) else None
        for name, lines in zip(one.names, one.tables("ratios"), strict=True)
    }
    for name, control in controls.items():
        effect = stats.widened(effect, control, f"the baseline in {name}")
    starved = (
        verdicts.starved(lines, method == "slice", one.higher_is_better) for lines in _lines(one, method)
    )
    if (
        why := next(filter(None, starved), None)
        or next(_modes(one, baselines or (None, None)), None)
        or _taken(one, effect, one.higher_is_better if baselines is None else None)
        or _no_evidence(effect, controls, baselines)
    ):
        shown = stats.ratio_text(effect.ratio, effect.low, effect.high)
        sentence = f"no evidence about {arm} against {against}: {why}; measured {shown} ({effect.how})"
        return effect, stats.Verdict("no evidence", sentence), why
    if not one.in_turn and (word := _within_drift(effect, margin)):
        shown = f"{stats.ratio_text(effect.ratio, effect.low, effect.high)} ({effect.how})"
        if word == "no evidence":
            drift = f"two runs drift by up to {units.percent(DRIFT)} without any change"
            sentence = f"no evidence about {arm} against {against}: {drift}; measured {shown}"
            return effect, stats.Verdict(word, sentence), None
        return effect, stats.Verdict(word, f"{word} between {arm} and {reference}: {shown}"), None
    # The controls of both runs have been checked, so none is left that could exclude a verdict.
    none = stats.Effect(1.0, 1.0, 1.0, 2, "")
    verdict = stats.verdict(effect, none, margin, one.higher_is_better, arm=arm, baseline=reference)
    if unchanged and baselines and verdict.word in ("faster", "slower"):
        size = {"ratio": effect.ratio, "low": effect.low, "high": effect.high, "how": effect.how}
        ends = (f"{name} in {run}" for name, run in zip(baselines[::-1], (right, left), strict=True))
        verdict = replace(verdict, sentence=interaction(size | {"word": verdict.word}, one.topology, *ends))
    return effect, verdict, None


def _taken(of_both: Common, effect: stats.Effect, higher_is_better: bool | None) -> str | None:
    """Return why CPU time that a run lacked may explain a difference between two runs, or None.

    higher_is_better: of the ratio; None for a ratio to a baseline, which may change in either direction.
    """
    for (one, other), why in of_both.taken:
        is_better = (effect.ratio > 1) == higher_is_better
        if higher_is_better is not None and is_better == (other > one):
            continue
        if abs(math.log(effect.ratio)) <= conditions.greatest_slowdown(one, other):
            return why
    return None


def _within_drift(effect: stats.Effect, margin: float) -> str | None:
    """Return the word of a verdict about a ratio that differs from 1 by no more than the drift between runs; None for
    other ratios."""
    low, high = effect.low, effect.high
    if low is None or high is None or low <= 1 <= high:
        return None
    if not 1 / (1 + DRIFT) <= effect.ratio <= 1 + DRIFT:
        return None
    if margin >= DRIFT and 1 / (1 + margin) <= low and high <= 1 + margin:
        return f"no difference beyond {units.exact_percent(margin)}"
    return "no evidence"


def _no_evidence(
    effect: stats.Effect, controls: dict[str, stats.Effect | None], baselines: list[str] | None
) -> str | None:
    for (name, control), baseline in zip(controls.items(), baselines or [], strict=False):
        if control is None or control.low is None:
            why = "was not measured twice, or in one round only, so the noise is unknown"
            return f"in {name} {baseline} {why}"
    return "one of the two runs has a single set-up, so there is no interval" if effect.low is None else None


def _differences(left: RunSide, right: RunSide, common: list[Common]) -> list[str]:
    """Return a sentence for each property in which the two runs differ at the same point.

    Points of one sweep may differ in these.
    """
    differences: dict[str, dict[Any, None]] = {}
    properties = [*verdicts.DOUBTFUL, *OF_ARMS]
    names = load.varying(pd.concat([side.ok[properties] for side in (left, right)]), properties)
    for one in common:
        parts = [rows.loc[rows["topology"].eq(one.topology), names] for rows in one.tables("points")]
        for name, values in load.differing(pd.concat(parts, ignore_index=True), names).items():
            about = f"{name} of {one.topology}" if name in OF_ARMS[1:] else name
            differences.setdefault(about, {}).update(dict.fromkeys(values))
    return [
        f"{left.name} and {right.name} differ in {about}: {' and '.join(map(str, each))}"
        for about, each in differences.items()
    ]


def _doubts(left: RunSide, right: RunSide, common: list[Common], table: pd.DataFrame) -> list[str]:
    count = len(table)
    with_interval = int(table["relative_low"].fillna(table["low"]).notna().sum())
    lines = [
        f"every ratio is {right.name} divided by {left.name}: above 1, throughput is higher or a ping takes longer in"
        f" {right.name}",
        f"{units.counted(with_interval, 'comparison')} with 95 % intervals: if the runs did not differ, chance would"
        f" still put about {0.05 * with_interval:.1g} of them beside 1",
        f"{left.name} and {right.name} were measured at different times, not interleaved",
    ]
    other_hosts = table[table["left_host"].ne(table["right_host"])]
    for (one, other), _ in other_hosts.groupby(["left_host", "right_host"], sort=False):
        lines.append(
            f"{left.name} is from {one} and {right.name} from {other}: between different hosts only ratios to the"
            " baseline are compared, not speeds"
        )
    if plain := int(table["baseline"].isna().sum()):
        lines.append(
            f"{plain} of {count} points have no common baseline: 2 to 5 % of drift between runs is normal,"
            f" so their verdicts need more than {units.percent(DRIFT)}"
        )
    setups = table[["left_setups_count", "right_setups_count"]].min(axis=1)
    if few := int((setups < stats.MIN_SETUPS).sum()):
        lines.append(f"{few} of {count} points have fewer than {stats.MIN_SETUPS} fresh set-ups on a side")
    lines += _differences(left, right, common)
    for place, side in enumerate((left, right)):
        points = {(key, str(name)) for key, rows in side.points.items() for name in rows["topology"].unique()}
        if only := points - {(one.keys[place], one.topology) for one in common}:
            names = ", ".join(sorted(f"{topology} ({load.group_text(key)})" for key, topology in only))
            lines.append(f"{len(only)} of {len(points)} points are in {side.name} only: {names}")
        lines += [f"{side.name}: {doubt}" for doubt in verdicts.doubts(side.rows, side.pairs)]
    return lines
