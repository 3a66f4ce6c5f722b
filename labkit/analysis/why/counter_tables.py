"""Tabulate what was counted during both sides' traffic: perf's events and the kernel's counters, per packet.

Ratios of perf's events (cycles per instruction, miss rates) have a table of their own.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from labkit.analysis import protocols, stats
from labkit.analysis.flame.load_profiles import in_window, observed
from labkit.analysis.flame.significance import (
    Estimate,
    RunVariation,
    beyond_control,
    compared,
    estimate,
    half_interval,
    paired_mean,
    run_variation,
)
from labkit.analysis.protocols import PER, CostUnit
from labkit.analysis.why.selection import ProfiledPoint
from labkit.common import units
from labkit.common.loss_places import without_pair_number

Table = tuple[str, str, pd.DataFrame | None]  # title, words, table
# The sides are left, right, and left measured again (A/A), which may have no rounds.
Observed = list[list[tuple[dict[str, Any], pd.Series]]]  # [side][round]: the observer's report and the row
MAX_ROWS = 15
REPEATS = 0.02  # counters agree if their values relative to their means differ by at most this in every round
SHOWN = 6  # names listed in a sentence
THOUSAND = 1000
CLOCK, NS = ", s", 1e9  # the suffix of names of times, which are compared in whole nanoseconds
LEFT_OUT = " Left out, because nothing arrived or the amount is unknown: {}."
IN_GUESTS = ("guest", "shared_guest")  # endpoints
LONGER = "On both sides, the counters include what came before and after the measured window, so they are too large."
NOT = "Not recorded: run it with observe={}."
# Event, divisor and name of each ratio, with perf's event names (perf-list(1)); the modifier (`:k`) is kept
RATIOS = (
    (r"cycles(:\w+)?", r"instructions\1", "cycles per instruction"),
    (r"(.+-(?:load|store))-misses(:\w+)?", r"\1s\2", ""),
    (r"(.+-prefetch)-misses(:\w+)?", r"\1es\2", ""),
    (r"branch-misses(:\w+)?", r"branches\1", ""),
    (r"cache-misses(:\w+)?", r"cache-references\1", ""),
)


class Counted(NamedTuple):
    """What was counted in a round, by name, the work that was done meanwhile, and the round's row."""

    counts: Mapping[str, float]
    work: float
    row: pd.Series


Sides = list[list[Counted]]  # [side][round]; the sides are those of Observed


def kernel(point: ProfiledPoint) -> Iterator[Table]:
    """Yield the tables of the kernel's counters and of its CPU time by kind."""
    yield _counters(point)
    yield _cpu_time(point)


def work_unit(point: ProfiledPoint) -> CostUnit:
    """Return the unit of work for the costs of this protocol, the same as in the tables of functions."""
    return protocols.find(point.protocol).unit


def _units(point: ProfiledPoint) -> tuple[float, str]:
    """Return the amount of work that counts refer to, and its description."""
    of = work_unit(point)
    if of is PER["packet"]:
        return THOUSAND, "Per 1,000 packets that arrived"
    return of.one, f"Per {of.description}"


def observed_by(point: ProfiledPoint, observer: str) -> Observed:
    """Return the reports of an observer, one per round, each with its row."""
    result: Observed = []
    for rows in point.rows:
        result.append([])
        if rows is not None:
            own = rows[rows["observer"].eq(observer) & rows["status"].eq("ok")]
            result[-1] = [(observed(row["observed"]), row) for _, row in own.iterrows()]
    return result


def between_runs(sides: Sequence[Sequence[tuple[Any, ...]]]) -> RunVariation | None:
    """Return the variation between the runs of both sides' rounds, or None if all are of one run. The last item of
    a round is its row."""
    left, right = ([str(one[-1]["folder"]) for one in rounds] for rounds in sides[:2])
    return run_variation(left, right)


def events(point: ProfiledPoint) -> Iterator[Table]:
    """Yield the table of perf_stat's events, and a table of their ratios. If there is no table, the text says why."""
    title = "Events that perf counted"
    seen = observed_by(point, "perf_stat")
    if not all(seen[:2]):
        yield title, NOT.format("perf_stat"), None
        return
    reports = [report for rounds in seen for report, _ in rounds]
    scopes = {"scope" in one and one["scope"].startswith("processes") for one in reports}
    if len(scopes) > 1:
        text = "Not compared: some are of ovs-vswitchd alone (events_of=switch), others of the machine."
        yield title, text, None
        return
    work = work_unit(point).work
    absent: dict[str, str] = {}
    sides: Sides = []
    for side, rounds in enumerate(seen):
        sides.append([])
        for report, row in rounds:
            reported = report.get("events", {}).items()
            counts = {
                f"{name}{CLOCK}" if one.get("unit") == "s" else name: one["count"]
                for name, one in reported
                if one["count"] is not None
            }
            sides[-1].append(Counted(counts, in_window(row, work) or math.nan, row))
            if side < 2:
                absent |= {name: one["reason"] for name, one in reported if one["count"] is None}
    # An event that one round did not count is missing, not 0 (METHOD: missing is null).
    both = [one.counts for rounds in sides[:2] for one in rounds]
    everywhere = set(both[0]).intersection(*both)
    for name in dict.fromkeys(name for counts in both for name in counts):
        if name not in everywhere:
            absent.setdefault(name.removesuffix(CLOCK), "it was not requested in every round")
    sides[2] = [one for one in sides[2] if everywhere <= one.counts.keys()]
    whose = ["The events are those of ovs-vswitchd alone."] if scopes == {True} else []
    text = " ".join([f"{_units(point)[1]}.", *whose, *point.doubts("perf_stat")])
    for why in dict.fromkeys(absent.values()):
        names = [name for name, reason in absent.items() if reason == why]
        text += f" Not counted: {', '.join(names)}: {why}."
    shared = _recounted(sides, lambda counts: {name: counts[name] for name in everywhere})
    table, left_out = _compared(point, shared, everything=True)
    yield title, text + left_out, table if everywhere else None
    followed = _mean_table(_heads(point), _recounted(sides, lambda counts: dict(_event_ratios(counts))))
    if len(followed):
        yield "What follows from them", "Mean of the rounds with its 95 % interval.", followed


def _recounted(sides: Sides, of: Callable[[Mapping[str, float]], Mapping[str, float]]) -> Sides:
    """Return the sides with other counts, made of their own."""
    return [[one._replace(counts=of(one.counts)) for one in rounds] for rounds in sides]


def _event_ratios(events: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each ratio of one round for which both events were counted."""
    for event, count in events.items():
        for form, divisor, name in RATIOS:
            if not (match := re.fullmatch(form, event)):
                continue
            by = match.expand(divisor)
            if events.get(by):
                modifier = f" ({event.partition(':')[2]})" if name and ":" in event else ""
                yield f"{name}{modifier}" if name else f"{event} / {by}", count / events[by]


def _round_of(one: Counted) -> tuple[str, int]:
    return str(one.row["folder"]), int(one.row["round"])


def _mean_table(heads: list[str], sides: Sides) -> pd.DataFrame:
    """Return a table of means over rounds with half their 95 % intervals, one row per value that both sides have in
    every round.

    The column `ratio` is right divided by left with its interval. Within one run it is of the rounds that both sides
    have; between runs its interval includes their variation.
    """
    both = [one.counts for rounds in sides[:2] for one in rounds]
    variation = between_runs(sides)
    result = {}
    for name in (name for name in both[0] if all(name in each for each in both)):
        left, right, again = (
            pd.Series({_round_of(one): one.counts[name] for one in own if name in one.counts}, dtype=float)
            for own in sides
        )
        own = {
            head: units.plus_minus(float(of.mean()), half_interval(np.asarray(of, dtype=np.float64)))
            for head, of in zip(heads, (left, right), strict=True)
        }
        result[name] = {**own, "ratio": _ratio_text(left, right, again, variation)}
    return pd.DataFrame(result).T


def _ratio_text(left: pd.Series, right: pd.Series, again: pd.Series, variation: RunVariation | None) -> str:
    if min(left.min(), right.min()) <= 0 or (size := _log_ratio(left, right, variation)) is None:
        return "–"
    size = beyond_control(size, _log_ratio(left, again[again > 0], None))
    low, high = (None if np.isnan(one) else float(np.exp(one)) for one in (size.low, size.high))
    return stats.ratio_text(float(np.exp(size.difference)), low, high)


def _log_ratio(left: pd.Series, right: pd.Series, variation: RunVariation | None) -> Estimate | None:
    """Return the logarithm of right divided by left, or None if they are of one run and have no round in common."""
    if variation is not None:
        return estimate(np.log(left.to_numpy()), np.log(right.to_numpy()), replace(variation, absolute=True))
    paired = (right / left).dropna()  # pandas pairs by the index, that is by run and round
    return None if paired.empty else paired_mean(np.log(paired.to_numpy()))


def _counters(point: ProfiledPoint) -> Table:
    title = "The kernel's counters"
    seen = observed_by(point, "counters")
    if not all(seen[:2]):
        return title, NOT.format("counters"), None
    sides = [
        [Counted(_flat(report), _work(point, report, row), row) for report, row in rounds] for rounds in seen
    ]
    table, left_out = _compared(point, sides, everything=False)
    text = f"{_units(point)[1]}: the counters that differ by more than the spread between rounds, largest"
    text += " difference first."
    if not len(table):
        known = all(_usable(sides)[:2])
        text = "No counter differs by more than the spread between rounds." if known else ""
    longer = [LONGER] * (work_unit(point) in (PER["request"], PER["connection"]))
    text = " ".join([f"{text}{left_out}{in_guests(seen[:2])}".strip(), *longer, *point.doubts("counters")])
    return title, text, table if len(table) else None


def _cpu_time(point: ProfiledPoint) -> Table:
    """Return the table of the time in interrupts beside all busy time, from the kernel's clock (/proc/stat)."""
    title, of = "CPU time by kind", work_unit(point)
    seen = observed_by(point, "counters")
    if not all(seen[:2]):
        return title, NOT.format("counters"), None
    sides: Sides = []
    for rounds in seen:
        sides.append([])
        for report, row in rounds:
            work = _work(point, report, row)
            done = in_window(row, of.work)
            busy_s = work / done * row["cpu_s"] if done else math.nan
            times = Counter({f"all that was busy{CLOCK}": busy_s})
            for cpu, kinds in report.get("cpus", {}).items():
                for kind in ("softirq", "irq"):
                    times[f"{kind}{CLOCK}"] += kinds.get(f"{kind}_s", 0.0)
                times[f"softirq on CPU {cpu}{CLOCK}"] += kinds.get("softirq_s", 0.0)
            for guest, its in report.get("guests", {}).items():
                own_s = sum(kinds.get("softirq_s", 0.0) for kinds in its["cpus"].values())
                times[f"softirq in the guest {without_pair_number(guest)}{CLOCK}"] += own_s
            sides[-1].append(Counted(times, work if has_known_work(busy_s) else math.nan, row))
    table, left_out = _compared(point, sides, everything=True, amount=of.one, unit_s=of.unit_s)
    table.index = [str(name).replace(CLOCK, f", {of.unit}") for name in table.index]
    text = f"Per {of.description}. The kernel counts CPU time in steps of a clock tick.{left_out}"
    return title, text, table if len(table) else None


def switch(point: ProfiledPoint) -> Iterator[Table]:
    """Yield the table of Open vSwitch's counters per packet that its datapath looked up, and that of its averages, if
    an arm has such a switch."""
    seen = observed_by(point, "switch")
    if not any(report for side in seen for report, _ in side):
        return
    title, heads = "Open vSwitch", _heads(point)
    sides: Sides = []
    for rounds in seen:
        sides.append([])
        for report, row in rounds:
            looked_up = sum(report.get("datapath", {}).get(name, 0) for name in ("hit", "missed"))
            sides[-1].append(Counted(_flatten_switch(report), looked_up, row))
    actions = " ".join(_actions(name, rounds) for name, rounds in zip(heads, seen[:2], strict=True))
    if all(_usable(sides)[:2]):
        table, left_out = _compared(point, sides, everything=False, amount=float(THOUSAND))
        text = "Per 1,000 packets that the switch looked up: the counters that differ most."
        yield title, f"{text}{left_out} {actions}", table if len(table) else None
    else:
        yield title, actions, None
    of_threads = [[Counted(report.get("averages", {}), 1.0, row) for report, row in own] for own in seen]
    if all(of_threads[:2]) and len(shown := _mean_table(heads, of_threads)):
        text = (
            "Of the userspace datapath; mean of the rounds with its 95 % interval. Cycles are those of the CPU's time"
            " stamp counter."
        )
        yield "What a packet costs Open vSwitch", text, shown


def _flatten_switch(report: dict[str, Any]) -> dict[str, int]:
    """Return a switch's counters as one flat dictionary whose names include the place."""
    result = {f"coverage {name}": count for name, count in report.get("coverage", {}).items()}
    result |= {f"cache: {name}": count for name, count in report.get("caches", {}).items()}
    result |= {f"datapath: {name}": count for name, count in report.get("datapath", {}).items()}
    for port, counters in report.get("ports", {}).items():
        result |= {f"{port}: {name}": count for name, count in counters.items() if name.endswith("dropped")}
    sockets = report.get("sockets_dropped", {}).items()
    return result | {f"{port}: its packet socket dropped": count for port, count in sockets}


def _actions(name: str, rounds: list[tuple[dict[str, Any], pd.Series]]) -> str:
    """Return a sentence with the actions of the flow that had most packets in the last round."""
    flows = rounds[-1][0].get("flows", []) if rounds else []
    if not flows:
        return f"{name}: it has no switch, or its switch has no flow."
    return f"{name}: the busiest flow has the actions {flows[0]['actions']}."


def _work(point: ProfiledPoint, report: dict[str, Any], row: pd.Series) -> float:
    """Return the work done while the counters counted, or NaN if unknown.

    The counters run longer than the row's window, because they include warm-up and tail. So the work is what the
    counters themselves report as arrived. CPU time and requests have no such counter and are taken from the row; the
    warm-up of pings is not counted.
    """
    of = work_unit(point)
    if of not in (PER["packet"], PER["gigabyte"]):
        return in_window(row, of.work) or math.nan
    unit = "datagrams" if of is PER["packet"] else "frames"
    pairs = report.get("loss", [])
    known = [one[of.work] for one in pairs if one.get("unit") == unit and one.get(of.work) is not None]
    return float(sum(known)) if len(known) == len(pairs) else math.nan


def has_known_work(work: Any) -> bool:
    """Return whether the amount of work is known and positive."""
    return work is not None and bool(np.isfinite(float(work))) and work > 0


def _usable(sides: Sides) -> Sides:
    """Return each side's rounds whose work is known."""
    return [[one for one in rounds if has_known_work(one.work)] for rounds in sides]


def _flat(report: dict[str, Any]) -> dict[str, int]:
    """Return the counters as one flat dictionary whose names include the place, summed over pairs and over CPUs."""
    result: Counter[str] = Counter()
    for space, kinds in report.get("namespaces", {}).items():
        for kind in kinds.values():
            for group, counts in kind.items():
                for name, count in counts.items():
                    if isinstance(count, int | float):
                        result[f"{without_pair_number(space)}: {group} {name}"] += round(count)
    guests = report.get("guests", {}).items()
    for place, its in [("CPUs", report), *((f"CPUs of the guest {name}", its) for name, its in guests)]:
        for counts in its.get("cpus", {}).values():
            for name, count in counts.items():
                if isinstance(count, int | float) and not name.endswith("_s"):
                    result[f"{without_pair_number(place)}: {name}"] += round(count)
    return dict(result)


def in_guests(seen: Observed) -> str:
    """Return a sentence on which guest counters are included, or an empty text if no endpoint is in a guest."""
    rounds = [(report, row) for side in seen for report, row in side if row.get("endpoint") in IN_GUESTS]
    if not rounds:
        return ""
    if all("guests" in report for report, _ in rounds):
        unread = (report["not_read"] for report, _ in rounds if "not_read" in report)
        absent = " and ".join(dict.fromkeys(unread))
        return f" Counters of endpoints in guests are those of the guests' kernels{absent and f'; not read: {absent}'}."
    return " Only this machine's counters are here: the guests' counters were not read."


def _compared(
    point: ProfiledPoint, sides: Sides, everything: bool, amount: float | None = None, unit_s: float = 1.0
) -> tuple[pd.DataFrame, str]:
    """Return a table of both sides' counts per unit of work, and a text on which rounds are left out.

    The table has the counts that stand out, or all of them (`everything`). A count that a round lacks is 0. amount: the
    work that counts refer to, by default that of `_units`. unit_s: the unit for times (names that end in CLOCK).
    """
    heads = _heads(point)
    left_out = _left_out(heads, sides)
    sides = _usable(sides)
    names, one_sided = _on_both(sides)
    left_out += one_sided
    if not names or not all(sides[:2]):
        return pd.DataFrame(), left_out
    finer = np.array([NS if name.endswith(CLOCK) else 1.0 for name in names])
    matrices = [
        np.rint(np.array([[one.counts.get(name, 0) for one in rounds] for name in names]) * finer[:, None])
        for rounds in sides
    ]
    each = [np.array([(amount or _units(point)[0]) / one.work for one in rounds]) for rounds in sides]
    samples = [matrix.astype(np.int64) for matrix in matrices]
    control = samples[2], each[2]
    result = compared(samples[0], each[0], samples[1], each[1], between_runs(sides), control)
    by = np.where(finer > 1, finer * unit_s, 1.0)
    columns = {
        heads[0]: number_texts(result.left.mean / by, result.left.half / by),
        heads[1]: number_texts(result.right.mean / by, result.right.half / by),
        "difference": number_texts(result.difference / by, result.half / by, sign=True),
        "stands out": np.where(result.stands_out, "yes", "no"),
    }
    table = pd.DataFrame(columns, index=names)
    order = np.argsort(-np.abs(result.difference / by))
    if everything:
        return table.iloc[order], left_out
    values = np.hstack([matrix * one for matrix, one in zip(matrices[:2], each[:2], strict=True)])
    same = _alike(values, [int(at) for at in order if result.stands_out[at]])
    table.index = pd.Index([_with_repeats(names, at, same.get(at, [])) for at in range(len(names))])
    return table.iloc[list(same)[:MAX_ROWS]], left_out


def _alike(values: npt.NDArray[np.float64], order: Sequence[int]) -> dict[int, list[int]]:
    """Group the counters that agree, and return the first of each group with the others, as row numbers of `values`.

    Counters agree if they are proportional to each other in every round, such as packets and bytes at every interface
    of a path, and the counts of its sockets. values: [counter, round].
    """
    result: dict[int, list[int]] = {}
    shapes = {at: values[at] / values[at].mean() for at in order}
    for at in order:
        first = next((one for one in result if np.all(np.abs(shapes[one] - shapes[at]) <= REPEATS)), None)
        if first is None:
            result[at] = []
        else:
            result[first].append(at)
    return result


def _with_repeats(names: Sequence[str], at: int, others: Sequence[int]) -> str:
    if not others:
        return names[at]
    return f"{names[at]} (equal: {units.shortened([names[one] for one in others], SHOWN)})"


def _on_both(sides: Sides) -> tuple[list[str], str]:
    """Return the names of the counters that can be compared, and a text on the places that one side lacks.

    An interface that one side lacks has no counter there, so its counters cannot stand out.
    """
    left, right = ({name for one in rounds for name in one.counts} for rounds in sides[:2])
    places = [{_place(name) for name in side} for side in (left, right)]
    lacking = sorted(places[0] ^ places[1]) if left and right else []
    names = sorted(name for name in left | right if _place(name) not in lacking)
    if not lacking:
        return names, ""
    return names, f" Not compared, because one side lacks it: {units.shortened(lacking, SHOWN)}."


def _place(name: str) -> str:
    """Return the place of a counter: `client: eth0` of `client: eth0 rx_bytes`. Without a place, return an empty
    text."""
    return name.rpartition(" ")[0] if ": " in name else ""


def _heads(point: ProfiledPoint) -> list[str]:
    return [side.name for side in point.sides[:2] if side is not None]


def _left_out(heads: Sequence[str], sides: Sides) -> str:
    result = [
        f"{len(rounds) - len(kept)} of {len(rounds)} rounds of {head}"
        for head, rounds, kept in zip(heads, sides[:2], _usable(sides)[:2], strict=True)
        if len(kept) < len(rounds)
    ]
    return LEFT_OUT.format(" and ".join(result)) if result else ""


def number_texts(middle: Any, half: Any, sign: bool = False) -> list[str]:
    """Return each number as text with half its interval."""
    return [units.plus_minus(float(one), float(by), sign) for one, by in zip(middle, half, strict=True)]


def others(point: ProfiledPoint, known: Set[str]) -> Iterator[Table]:
    """Yield a table per observer not in `known`: the median over each side's rounds of every number it reported."""
    sides = list(point.named_sides())[:2]
    for observer in sorted({str(name) for _, rows in sides for name in rows["observer"].dropna()} - known):
        result: dict[str, dict[str, str]] = {}
        for (side, _), rounds in zip(sides, observed_by(point, observer)[:2], strict=True):
            reports = (report.items() for report, _ in rounds)
            numbers = pd.DataFrame(
                [{key: one for key, one in own if type(one) in (int, float)} for own in reports]
            )
            for name in numbers:
                result.setdefault(str(name), {})[side] = f"{numbers[name].median():,.6g}"
        title = f"What {re.sub(r'[^a-z0-9_]', ' ', observer)} saw"
        if result:
            yield title, "Medians of the rounds of each side.", pd.DataFrame(result).T.fillna("–")
        else:
            yield title, "It reported no numbers.", None


def overhead(point: ProfiledPoint) -> Table:
    """Return the table of the overhead of observation: throughput (or rate of pings) relative to that without the
    observer."""
    result: dict[str, dict[str, str]] = {}
    for name, rows in list(point.named_sides())[:2]:
        for observer, own in rows[rows["overhead_ratio"].notna()].groupby("observer"):
            effect = stats.effect(np.log(own["overhead_ratio"].astype(float).to_numpy()))
            text = stats.ratio_text(effect.ratio, effect.low, effect.high)
            result.setdefault(str(observer), {})[name] = text
    title, speed = "What the observers cost", protocols.find(point.protocol).speed.capitalize()
    if not result:
        return title, "Not known.", None
    text = f"{speed} with the observer, relative to that without."
    return title, text, pd.DataFrame(result).T.fillna("–")
