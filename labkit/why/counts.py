"""What was counted beside both sides' traffic: perf's events and the kernel's counters per packet, and loss per hop."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from labkit import stats
from labkit.flame.arm import PER, Per
from labkit.flame.runs import observed, usual
from labkit.flame.spread import compared, half_interval
from labkit.why import derived
from labkit.why.sides import Point

Table = tuple[str, str, pd.DataFrame | None]  # title, words, table
Counted = list[list[tuple[Mapping[str, float], float]]]  # of both sides, round by round: counts, and the work
MOST = 15
THOUSAND = 1000
CLOCK, NS = ", s", 1e9  # how names of times end; they are compared in whole nanoseconds
ALL = "in all"
NOT = "Not recorded: run it with observe={}."


def tables(point: Point) -> Iterator[Table]:
    """Each with its title; without a table, its words say why there is none."""
    yield from _events(point)
    yield _counters(point)
    yield _cpu_time(point)
    yield _losses(point)
    yield _overhead(point)


def per(point: Point) -> Per:
    """What costs of this protocol are related to, as in the tables of functions."""
    return PER[usual(point.protocol)]


def _units(point: Point) -> tuple[float, str]:
    """How much work counts are shown for, and in words."""
    of = per(point)
    return (
        (THOUSAND, "Per 1,000 packets that arrived") if of is PER["packet"] else (of.one, f"Per {of.words}")
    )


def _of(point: Point, observer: str) -> list[list[tuple[dict[str, Any], pd.Series]]]:
    """What an observer saw on the left and on the right, round by round, each with its row."""
    found = []
    for _, rows in list(point.named())[:2]:
        own = rows[rows["observer"].eq(observer) & rows["status"].eq("ok")]
        found.append([(observed(row["observed"]), row) for _, row in own.iterrows()])
    return found


def _events(point: Point) -> Iterator[Table]:
    title = "Events that perf counted"
    seen = _of(point, "perf_stat")
    if not all(seen):
        yield title, NOT.format("perf_stat"), None
        return
    counts: Counted = []
    absent: dict[str, str] = {}
    for rounds in seen:
        events = [told.get("events", {}) for told, _ in rounds]
        known = [
            {
                f"{name}{CLOCK}" if one.get("unit") == "s" else name: one["count"]
                for name, one in each.items()
                if one["count"] is not None
            }
            for each in events
        ]
        counts.append([(each, row[per(point).work]) for each, (_, row) in zip(known, rounds, strict=True)])
        absent |= {
            name: one["reason"] for each in events for name, one in each.items() if one["count"] is None
        }
    # What was not counted once is not 0 (METHOD: missing is null).
    of_each = [told.keys() for rounds in counts for told, _ in rounds]
    everywhere = set(of_each[0]).intersection(*of_each)
    for name in dict.fromkeys(name for names in of_each for name in names):
        if name not in everywhere:
            absent.setdefault(name.removesuffix(CLOCK), "it was not asked for in every round")
    shared: Counted = [
        [({name: told[name] for name in everywhere}, work) for told, work in rounds] for rounds in counts
    ]
    words = " ".join([f"{_units(point)[1]}.", *point.doubts("perf_stat")])
    for why in dict.fromkeys(absent.values()):
        names = [name for name, reason in absent.items() if reason == why]
        words += f" Not counted: {', '.join(names)}: {why}."
    yield title, words, _compared(point, shared, everything=True) if everywhere else None
    heads = [side.name for side in point.sides[:2] if side is not None]
    followed = derived.table(heads, *([each for each, _ in rounds] for rounds in counts))
    if len(followed):
        yield "What follows from them", "Mean of the rounds with its 95 % interval.", followed


def _counters(point: Point) -> Table:
    title = "The kernel's counters"
    seen = _of(point, "counters")
    if not all(seen):
        return title, NOT.format("counters"), None
    counts: Counted = [[(_flat(told), _work(point, told, row)) for told, row in rounds] for rounds in seen]
    table = _compared(point, counts, everything=False)
    words = f"{_units(point)[1]}: what differs by more than the spread between rounds, the most first."
    if not len(table):
        words = "No counter differs by more than the spread between rounds."
    return title, " ".join([words, *point.doubts("counters")]), table if len(table) else None


def _cpu_time(point: Point) -> Table:
    """What the kernel's clock (/proc/stat) says of the time in interrupts, beside all that was busy."""
    title, of = "CPU time by kind", per(point)
    seen = _of(point, "counters")
    if not all(seen):
        return title, NOT.format("counters"), None
    counts: Counted = []
    for rounds in seen:
        counts.append([])
        for told, row in rounds:
            work = _work(point, told, row)
            times = Counter({f"all that was busy{CLOCK}": float(row["cpu_s"] * work / row[of.work])})
            for cpu, kinds in told.get("cpus", {}).items():
                for kind in ("softirq", "irq"):
                    times[f"{kind}{CLOCK}"] += kinds.get(f"{kind}_s", 0.0)
                times[f"softirq on CPU {cpu}{CLOCK}"] += kinds.get("softirq_s", 0.0)
            counts[-1].append((times, work))
    table = _compared(point, counts, everything=True, one=of.one, unit_s=of.unit_s)
    table.index = [str(name).replace(CLOCK, f", {of.unit}") for name in table.index]
    return title, f"Per {of.words}; the kernel counts it in steps of a tick.", table


def _work(point: Point, told: dict[str, Any], row: pd.Series) -> float:
    """What was done while the counters counted: of datagrams those that arrived in that time, which is a little longer
    than the window of the row."""
    if per(point) is not PER["packet"]:
        return float(row[per(point).work])
    received = [one.get("received_count") for one in told.get("loss", []) if one.get("unit") == "datagrams"]
    known = [count for count in received if count]
    return float(sum(known)) if known and len(known) == len(received) else float(row["received_count"])


def _flat(told: dict[str, Any]) -> dict[str, int]:
    """Counters by place, as one level; of pairs and of CPUs the sums."""
    found: Counter[str] = Counter()
    for space, kinds in told.get("namespaces", {}).items():
        for kind in kinds.values():
            for group, counts in kind.items():
                for name, count in counts.items():
                    if isinstance(count, int | float):
                        found[f"{_numberless(space)}: {group} {name}"] += round(count)
    for counts in told.get("cpus", {}).values():
        for name, count in counts.items():
            if isinstance(count, int | float) and not name.endswith("_s"):
                found[f"CPUs: {name}"] += round(count)
    return dict(found)


def _numberless(text: str) -> str:
    """Pairs together: `client3:eth0 sends` is one of `client:eth0 sends`."""
    return re.sub(r"\b(client|server)\d+\b", r"\1", text)


def _compared(
    point: Point, counts: Counted, everything: bool, one: float | None = None, unit_s: float = 1.0
) -> pd.DataFrame:
    """Counts of both sides' rounds for so much work: those that stand out, or all of them; what a round did not tell is
    0. Times (CLOCK) in this unit."""
    counts = [[(told, work) for told, work in rounds if work and np.isfinite(work)] for rounds in counts]
    names = sorted({name for rounds in counts for told, _ in rounds for name in told})
    if not names or not all(counts):
        return pd.DataFrame()
    finer = np.array([NS if name.endswith(CLOCK) else 1.0 for name in names])
    matrices = [
        np.rint(np.array([[told.get(name, 0) for told, _ in rounds] for name in names]) * finer[:, None])
        for rounds in counts
    ]
    each = [np.array([(one or _units(point)[0]) / work for _, work in rounds]) for rounds in counts]
    found = compared(matrices[0].astype(np.int64), each[0], matrices[1].astype(np.int64), each[1])
    by = np.where(finer > 1, finer * unit_s, 1.0)
    heads = [side.name for side in point.sides[:2] if side is not None]
    table = pd.DataFrame(
        {
            heads[0]: said(found.left.mean / by, found.left.half / by),
            heads[1]: said(found.right.mean / by, found.right.half / by),
            "difference": said(found.difference / by, found.half / by, sign=True),
            "stands out": np.where(found.stands_out, "yes", "no"),
        },
        index=names,
    )
    order = np.argsort(-np.abs(found.difference / by))
    return (
        table.iloc[order] if everything else table.iloc[[at for at in order if found.stands_out[at]][:MOST]]
    )


def said(middle: Any, half: Any, sign: bool = False) -> list[str]:
    """Numbers with half their intervals, as many digits as these leave sure and one more."""
    texts = []
    for value, by in zip(middle, half, strict=True):
        least = by if by > 0 else abs(value) / 1000 or 1.0
        decimals = max(0, 1 - math.floor(math.log10(least)))
        text = f"{value:{'+' if sign else ''},.{decimals}f}"
        texts.append(text if np.isnan(by) or by == 0 else f"{text} ± {by:,.{decimals}f}")
    return texts


def _losses(point: Point) -> Table:
    title = "Loss per hop"
    seen = _of(point, "counters")
    if not all(seen):
        return title, NOT.format("counters"), None
    columns: dict[str, dict[str, str]] = {}
    for (name, _), rounds in zip(point.named(), seen, strict=False):
        hops = [found for told, _ in rounds if (found := _hops(told))]
        for place in dict.fromkeys(place for found in hops for place in found):
            shares = np.array([found.get(place, 0.0) for found in hops])
            [text] = said([100 * shares.mean()], [100 * half_interval(shares)])
            columns.setdefault(name, {})[place] = f"{text} %"
    if not columns:
        return title, "The way of the packets is not known.", None
    places = _merged([[place for place in own if place != ALL] for own in columns.values()])
    table = pd.DataFrame(columns).reindex([*places, ALL]).fillna("–")
    return (
        title,
        "Of what was sent; mean of the rounds with its 95 % interval; hops in the order of the way.",
        table,
    )


def _merged(ways: list[list[str]]) -> list[str]:
    """The places of both ways, each in its order: what only one has stands where it was met."""
    merged = ways[0]
    for way in ways[1:]:
        for at, place in enumerate(way):
            if place not in merged:
                after = next((merged.index(one) + 1 for one in reversed(way[:at]) if one in merged), 0)
                merged = [*merged[:after], place, *merged[after:]]
    return merged


def _hops(told: dict[str, Any]) -> dict[str, float]:
    """Of what was sent, the share that each hop lost, over all pairs; and of all hops together."""
    pairs = [one for one in told.get("loss", []) if one.get("sent_count")]
    sent = sum(one["sent_count"] for one in pairs)
    found: Counter[str] = Counter()
    for one in pairs:
        for hop in one["hops"]:
            found[_numberless(hop["at"])] += hop["lost_count"] or 0
        found["unexplained"] += one.get("unexplained_count") or 0
    if not sent:
        return {}
    all_of_it = {ALL: sum(one.get("lost_count") or 0 for one in pairs) / sent}
    return {place: count / sent for place, count in found.items()} | all_of_it


def _overhead(point: Point) -> Table:
    """What observing left of the speed: throughput, or the rate of pings."""
    found: dict[str, dict[str, str]] = {}
    for name, rows in list(point.named())[:2]:
        for observer, own in rows[rows["overhead_ratio"].notna()].groupby("observer"):
            ratios = np.log(own["overhead_ratio"].astype(float).to_numpy())
            effect = stats.effect(ratios)
            found.setdefault(str(observer), {})[name] = stats.ratio_text(
                effect.ratio, effect.low, effect.high
            )
    if not found:
        return "What observing cost", "Not known.", None
    return (
        "What observing cost",
        f"{'Rate of pings' if point.protocol == 'ping' else 'Throughput'} with the observer, to that without.",
        pd.DataFrame(found).T.fillna("–"),
    )
