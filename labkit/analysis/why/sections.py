"""List the sections of the `labkit why` page, in their order. To show an observer's report, add an entry to SECTIONS.

A section names its observers and yields parts. A part is a title and its pieces: text, tables and figures. Numbers of
an observer without a section are shown unchanged (`counter_tables.others`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import figures, flame, protocols
from labkit.analysis.flame import load_profiles
from labkit.analysis.flame.significance import CLAIM_SHARE, compared, estimate, half_interval, run_variation
from labkit.analysis.protocols import CostUnit
from labkit.analysis.why import counter_tables, work
from labkit.analysis.why.counter_tables import NOT, Table, number_texts, observed_by
from labkit.analysis.why.selection import ProfiledPoint
from labkit.common import loss_places, units
from labkit.common.errors import BadInput
from labkit.common.loss_places import without_pair_number

Piece: TypeAlias = str | pd.DataFrame | go.Figure | flame.Flame
Part: TypeAlias = tuple[str, list[Piece]]  # title, pieces
MAX_LISTED = 8  # processes shown, and values shown
ALL, FRAMES, COPIES = "in all", "frames: ", "copies: "
UNEXPLAINED = "unexplained"
TIMED = (
    "Per {}. Means of the rounds; the total of all calls has its 95 % interval. A time is from a function's first"
    " instruction to its return. It includes callees, interrupts and the tracer's own cost, so times of functions that"
    " call each other overlap."
)
TIMES, CALLS = ("function_times", "guest_function_times"), (flame.packet_calls.OBSERVER,)  # observers
US = 1e6
MANY = 100  # from here on, means are shown without decimals, which carry no information
TimedRounds = list[tuple[dict[str, Any], pd.Series]]


@dataclass(frozen=True)
class Section:
    """A section of the page: its observers, and a function that makes its parts for a point.

    slows: whether its observers slow the traffic, so that the throughput beside them says nothing.
    """

    observers: tuple[str, ...]
    parts: Callable[[ProfiledPoint], Iterable[Part]]
    slows: bool = True


def _tables(make: Callable[[ProfiledPoint], Iterable[Table]]) -> Callable[[ProfiledPoint], Iterator[Part]]:
    """Return a function that makes one part per table, each with a title and text. If there is no table, the text says
    why."""

    def parts(point: ProfiledPoint) -> Iterator[Part]:
        for title, words, table in make(point):
            yield title, [words] if table is None else [words, table]

    return parts


def _packets(point: ProfiledPoint) -> Iterator[Piece]:
    """Yield the calls of one packet on both sides, on the same time scale, or only text if a side was not traced."""
    try:
        both = [flame.packets(rows, name) for name, rows in list(point.named_sides())[:2]]
    except BadInput as error:
        yield f"{error}."
        return
    if doubts := point.doubts(flame.packet_calls.OBSERVER, with_control=False):
        yield " ".join(doubts)
    yield from flame.side_by_side(both)


def _kprobe_tables(point: ProfiledPoint) -> Iterator[Table]:
    """Yield the table of calls by process and of returned values, or nothing if kprobe ran on neither side."""
    sides = [[report for report, _ in rounds] for rounds in observed_by(point, "kprobe")[:2]]
    if not any(sides):
        return
    functions = sorted({str(report["function"]) for rounds in sides for report in rounds})
    heads = [name for name, _ in list(point.named_sides())[:2]]
    columns = {head: _shares_of_calls(rounds) for head, rounds in zip(heads, sides, strict=True)}
    text = (
        f"Calls of {' and '.join(functions)} on the whole machine: the mean of the rounds. The shares of processes and"
        " values are of the events that the kernel's buffer kept. The process is the one that ran at the call. An"
        " interrupt can come during any process."
    )
    doubts = point.doubts("kprobe", with_control=False)
    yield "Calls that kprobe recorded", " ".join([text, *doubts]), pd.DataFrame(columns).fillna("–")


def _shares_of_calls(rounds: list[dict[str, Any]]) -> dict[str, str]:
    if not rounds:
        return {}
    result = {"calls": f"{sum(report['calls_count'] for report in rounds) / len(rounds):,.0f}"}
    for kind in ("processes", "values"):
        counts = Counter[str]()
        for report in rounds:
            counts.update(report[kind])
        for name, count in counts.most_common(MAX_LISTED):
            place = f"returned {name}" if kind == "values" else f"in {name}"
            result[place] = units.percent(count / counts.total())
    return result


def loss_table(point: ProfiledPoint) -> Table:
    """Return the table of the loss per hop. If there is no table, the text says why."""
    title = "Loss per hop"
    seen = observed_by(point, "counters")[:2]
    if not all(seen):
        return title, NOT.format("counters"), None
    columns: dict[str, dict[str, str]] = {}
    unit_of: dict[str, str] = {}
    for (name, _), rounds in zip(point.named_sides(), seen, strict=False):
        hops = [result for report, _ in rounds if (result := _hops(report))]
        for place in dict.fromkeys(place for result in hops for place in result):
            shares = np.array([result.get(place, 0.0) for result in hops])
            columns.setdefault(name, {})[place] = _mean_share(shares)
        for pair in (pair for report, _ in rounds for pair in report.get("loss", []) if pair.get("unit")):
            unit_of[name] = pair["unit"]
    if not columns:
        return title, f"The path of the packets is not known.{counter_tables.in_guests(seen)}", None
    places = _merge([[place for place in own if place != ALL] for own in columns.values()])
    shown = pd.DataFrame(columns).reindex([*places, ALL]).fillna("–")
    text = f"Of {_share_base(unit_of)}; mean of the rounds with its 95 % interval; hops in the order of the path."
    if any(place.startswith(FRAMES) for place in places):
        text += " Fragments and encapsulating frames are listed separately, as shares of the frames that were sent."
    if any(place.startswith(COPIES) for place in places):
        text += " Copies of mirrors are shares of the copies that the mirrors should have made."
    if protocols.find(point.protocol).work == "packet" and "frames" in unit_of.values():
        text += " Losses at sockets are not included."
    return title, text + counter_tables.in_guests(seen), shown


def _mean_share(shares: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    return f"{units.plus_minus(100 * shares.mean(), 100 * half_interval(shares))} %"


class CountedLoss(NamedTuple):
    """The loss by the counters: whether the right side's is the larger one, a sentence, whether that is certain, and
    the p value. place: the hop that was judged, or an empty text for all hops together."""

    is_more: bool
    sentence: str
    is_certain: bool
    p: float
    place: str


def loss_answer(point: ProfiledPoint, places: Sequence[str] = ("",)) -> CountedLoss | None:
    """Return the loss that differs most of those at these places, by default of that at all hops together.

    It is uncertain if a side has a single round in which datagrams were followed. None if the sides do not certainly
    differ otherwise, or if a side has no such round.
    """
    rounds = [work.followed_datagrams(rows) for rows in point.rows if rows is not None]
    if not (places and all(rounds[:2])):
        return None
    losses = [[pairs for _, pairs in side] for side in rounds]
    variation = run_variation(*([run for run, _ in side] for side in rounds[:2]))
    variation = variation and replace(variation, share=work.LOSS_SHARE)
    sizes = []
    for place in places:
        # Of what arrives, because the variation between runs is proportional to it (`work.split`).
        left, right, *again = (np.array([1 - _lost_share(pairs, place) for pairs in side]) for side in losses)
        floors = [_sampling_variance(side, place) for side in losses if side]
        sizes.append((place, estimate(left, right, variation, floors, again[0] if again else None)))
    place, size = min(sizes, key=lambda one: (one[1].p, -abs(one[1].difference)))
    p = min(size.p * len({"", *places}), 1.0)  # Bonferroni, also for the test of all hops
    is_certain, more = min(map(len, rounds[:2])) > 1, size.difference < 0
    if abs(size.difference) <= work.MIN_SHARE or (is_certain and p >= CLAIM_SHARE):
        return None
    lost, instead = (units.percent(max(1 - arrived, 0.0)) for arrived in (size.right, size.left))
    name, other = (side.name for side in point.sides[1::-1])
    text = f"{name} loses {lost} of the datagrams{place and f' at {place}'} instead of {instead}"
    if not place and (where := loss_places.where(pair for pairs in losses[int(more)] for pair in pairs)):
        text += f", {where}{'' if more else f' of {other}'}"
    text += "" if is_certain else ", too few rounds to be certain"
    return CountedLoss(more, text, is_certain, p, place)


def _losses(point: ProfiledPoint) -> Iterator[Table]:
    """Yield the table of the loss per hop, and one of the copies of each mirror.

    The second is left out if no side has several mirrors whose copies are told apart.
    """
    yield loss_table(point)
    columns: dict[str, dict[str, str]] = {}
    for (name, _), rounds in zip(point.named_sides(), observed_by(point, "counters")[:2], strict=False):
        reports = [report.get("copies", {}).get("mirrors", {}) for report, _ in rounds]
        for mirror in dict.fromkeys(one for report in reports for one in report):
            counts = [report[mirror] for report in reports if report.get(mirror, {}).get("sent_count")]
            columns_of: dict[str, Callable[[Mapping[str, Any]], Any]] = {
                "did not arrive": lambda one: one["sent_count"] - one["arrived_count"],
                "not read": lambda one: one["unread_count"],
            }
            for what, column in columns_of.items():
                shares = [column(one) / one["sent_count"] for one in counts if column(one) is not None]
                if shares:
                    columns.setdefault(name, {})[f"{mirror}: {what}"] = _mean_share(np.array(shares))
    shown = pd.DataFrame(columns).fillna("–")
    if any(place.startswith("mirror1:") for place in shown.index):
        yield (
            "Copies of each mirror",
            "Shares of the copies that the mirror should have made: those that did not arrive at the monitor, and those"
            " that arrived and that its reader did not take; mean of the rounds with its 95 % interval. The counts are"
            " not read at the same moment, so a share may be slightly below 0.",
            shown,
        )


def _share_base(unit_of: Mapping[str, str]) -> str:
    """Return what the shares refer to. It names the sides if their units differ."""
    alike = set(unit_of.values())
    if len(alike) == 1:
        return f"the {alike.pop()} that were sent"
    return "what was sent (" + ", ".join(f"{unit} of {name}" for name, unit in unit_of.items()) + ")"


def _merge(paths: list[list[str]]) -> list[str]:
    """Return the places of both paths, each in its order. A place of one path only follows its predecessor there."""
    merged = paths[0]
    for path in paths[1:]:
        for at, place in enumerate(path):
            if place not in merged:
                after = next((merged.index(one) + 1 for one in reversed(path[:at]) if one in merged), 0)
                merged = [*merged[:after], place, *merged[after:]]
    return merged


def _hops(report: dict[str, Any]) -> dict[str, float]:
    """Return the share of the sent packets that each hop lost, over all pairs, and the share that all hops lost
    together.

    Frames that are reported beside datagrams have shares of the sent frames, copies of mirrors shares of the copies.
    """
    pairs = [one for one in report.get("loss", []) if one.get("sent_count")]
    if not pairs:
        return {}
    beside = _shares([one["frames"] for one in pairs if "frames" in one])
    copies = _shares([report["copies"]]) if "copies" in report else {}
    result = {f"{FRAMES}{place}": share for place, share in beside.items()} | _shares(pairs)
    result |= {f"{COPIES}{place}": share for place, share in copies.items() if place != UNEXPLAINED}
    return result | {ALL: _lost_share(pairs)}


def _lost_share(pairs: Sequence[Mapping[str, Any]], place: str = "") -> float:
    if place:
        return _shares(pairs).get(place, 0.0)
    return float(sum(one.get("lost_count") or 0 for one in pairs) / sum(one["sent_count"] for one in pairs))


def _sampling_variance(rounds: Sequence[Sequence[Mapping[str, Any]]], place: str) -> float:
    """Return the variance of a share of lost datagrams by chance alone, also if all rounds have the same share."""
    pairs = [pair for each in rounds for pair in each]
    sent = sum(pair["sent_count"] for pair in pairs)
    share = (min(max(_lost_share(pairs, place), 0.0), 1.0) * sent + 1) / (sent + 2)
    return float(share * (1 - share) / sent)


def _shares(pairs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    sent = sum(one["sent_count"] for one in pairs)
    result: Counter[str] = Counter()
    for one in pairs:
        for hop in one["hops"]:
            result[without_pair_number(hop["at"])] += hop["lost_count"] or 0
        result[UNEXPLAINED] += one.get("unexplained_count") or 0
    return {place: count / sent for place, count in result.items()} if sent else {}


def function_times(point: ProfiledPoint) -> list[str | pd.DataFrame | go.Figure]:
    """Return text, a table and a figure of how long functions took, or only text if a side was not timed."""
    sides: dict[str, tuple[pd.DataFrame, TimedRounds]] = {}
    nothing: list[str] = []
    of = counter_tables.work_unit(point)
    every = observed_by(point, "function_times")
    timed = [[(report, row) for report, row in rounds if report.get("functions")] for rounds in every]
    if not all(timed[:2]):
        return [NOT.format("function_times")]
    worked = [[one for one in rounds if counter_tables.has_known_work(one[1][of.work])] for rounds in timed]
    for (name, rows), rounds, known in zip(point.named_sides(), timed[:2], worked, strict=False):
        own = rows[rows["observer"].eq("function_times") & rows["status"].eq("ok")]
        if len(known) < len(rounds):
            nothing.append(f"{len(rounds) - len(known)} of {len(rounds)} rounds of {name}")
        sides[name] = (own, known or rounds)  # without known work, costs are shown as "–"
    seen = {name: (rows, [each for each, _ in rounds]) for name, (rows, rounds) in sides.items()}
    text = " ".join([TIMED.format(of.description), *_tracers(sides), *point.doubts("function_times")])
    if nothing:
        text += counter_tables.LEFT_OUT.format(" and ".join(nothing))
    return [
        text,
        function_time_table(list(sides), [*(rounds for _, rounds in sides.values()), worked[2]], of),
        figures.function_times(seen),
    ]


def _tracers(sides: Mapping[str, tuple[pd.DataFrame, TimedRounds]]) -> list[str]:
    """Return sentences about the tracers used. Times of different tracers cannot be compared."""
    by = {
        name: " and ".join(sorted({str(report["tracer"]) for report, _ in rounds if "tracer" in report}))
        for name, (_, rounds) in sides.items()
    }
    if len(set(by.values())) > 1:
        each = ", ".join(f"{name} by {tracer or 'an unknown tracer'}" for name, tracer in by.items())
        return [f"Different tracers took the times, so do not compare them: {each}."]
    return [f"Timed by {tracer}." for tracer in set(by.values()) if tracer]


def function_time_table(heads: Sequence[str], sides: Sequence[TimedRounds], of: CostUnit) -> pd.DataFrame:
    """Return one row per function.

    sides: the rounds of left, right, and left measured again (A/A), which may have none. Columns, for left and right:
    calls and time per unit of work; mean, p50 and p99 of a call in µs. Then the difference in time per unit (right
    minus left), and whether it stands out. TCP costs are not per packet, because offloads determine the size of a TCP
    packet.
    """
    reports = [report["functions"] for rounds in sides[:2] for report, _ in rounds]
    names = list(dict.fromkeys(name for functions in reports for name in functions))
    columns: dict[str, list[str]] = {}
    totals, each, unit = [], [], of.description.removesuffix(" that arrived")
    for head, rounds in zip((*heads, None), sides, strict=True):
        worth = of.one / np.array([load_profiles.work(row, report, of.work) for report, row in rounds])
        functions = [[report["functions"].get(name, {}) for report, _ in rounds] for name in names]
        if head is not None:
            counts = [_reported(one, "count") * worth for one in functions]
            columns[f"calls per {unit}, {head}"] = _means(counts)
            for quantity in ("mean", "p50", "p99"):
                values = [_reported(one, f"{quantity}_s") * US for one in functions]
                columns[f"{quantity}, µs, {head}"] = _means(values)
        taken_s = np.array([_reported(one, "total_s") for one in functions])
        totals.append(np.rint(taken_s * counter_tables.NS).astype(np.int64))
        each.append(worth)
    variation = counter_tables.between_runs(sides)
    result = compared(totals[0], each[0], totals[1], each[1], variation, (totals[2], each[2]))
    by = of.unit_s * counter_tables.NS
    for head, side in zip(heads, (result.left, result.right), strict=True):
        columns[f"{of.unit} per {unit}, {head}"] = number_texts(side.mean / by, side.half / by)
    differences = number_texts(result.difference / by, result.half / by, sign=True)
    columns[f"difference, {of.unit} per {unit}"] = differences
    columns["stands out"] = ["yes" if one else "no" for one in result.stands_out]
    return pd.DataFrame(columns, index=pd.Index(names))


def _reported(rounds: Sequence[Mapping[str, Any]], name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    nothing = 0.0 if name in ("count", "total_s") else np.nan
    return np.array([nothing if one.get(name) is None else float(one[name]) for one in rounds])


def _means(values: Sequence[np.ndarray[Any, np.dtype[np.float64]]]) -> list[str]:
    means = [float(np.nanmean(one)) if np.isfinite(one).any() else None for one in values]
    return ["–" if mean is None else f"{mean:,.0f}" if mean >= MANY else f"{mean:.3g}" for mean in means]


SECTIONS = (
    # The page begins with the flame graphs of perf_record.
    Section((load_profiles.OBSERVER,), lambda _point: (), slows=False),
    Section(("perf_stat",), _tables(counter_tables.events), slows=False),
    Section(("counters",), _tables(counter_tables.kernel), slows=False),
    Section(("switch",), _tables(counter_tables.switch)),
    Section(("kprobe",), _tables(_kprobe_tables)),
    Section(("counters",), _tables(_losses), slows=False),
    Section(TIMES, lambda point: [("Function times", list(function_times(point)))]),
    Section(CALLS, lambda point: [("The calls of one packet", list(_packets(point)))]),
)
QUIET = frozenset(name for section in SECTIONS if not section.slows for name in section.observers)


def parts(point: ProfiledPoint) -> Iterator[Part]:
    """Yield all sections of a point, then the reports of other observers, then the overhead of observation."""
    for section in SECTIONS:
        yield from section.parts(point)
    known = {name for section in SECTIONS for name in section.observers}
    yield from _tables(lambda point: counter_tables.others(point, known))(point)
    yield from _tables(lambda point: [counter_tables.overhead(point)])(point)
