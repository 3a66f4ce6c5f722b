"""Ratios in published runs that answer a claim. Each function returns a source: it takes the results and returns
evidence.

A ratio, its interval and the control of the machine (A/A) are those of `verdicts` and `stats`. Where the control
differs from itself, the interval is widened; if an interval is missing, the evidence has a doubt and decides nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec

import numpy as np
import pandas as pd

from labkit.analysis import change_effects, compare_runs, load, stats, verdicts
from labkit.analysis.flame.load_profiles import observed
from labkit.analysis.load import ENDPOINT_NAMES, GROUP, HOST, Key
from labkit.analysis.stats import Effect
from labkit.common.units import counted
from studies import function_time_claim
from studies.documents.results import Results, how_to_measure

HEADERS_BYTES = {4: 42, 6: 62}  # Ethernet, IP and UDP, by the version of IP
FULL_LINK = 0.9  # of a link's rate: more than this may fill it, because a tunnel adds headers
PRINTED = "published numbers"  # the run of evidence that was computed from the document's own numbers
COMPUTED, COUNTED = "computed", "counted"
FUNCTION_TIMERS = ("function_times", "guest_function_times")  # observers
POINT_COLUMNS = (
    "method", "topology", "setup", "log", "cpu_s", "received_count", "placement", "throughput_bps", "link_rate_bps",
    "guest_accelerator",
)  # fmt: skip
DURATIONS = [
    "endpoint", "topology", "function", "length_bytes", "p50_s", "log", "setup", "host", "guest_emulated", "what",
]  # fmt: skip
ONE_SETUP = "all measurements come from one set-up, which may not be typical"
Filter = Mapping[str, Any]  # columns with a value each, or a tuple of allowed values


@dataclass(frozen=True)
class Evidence:
    """A ratio that answers a claim, with its 95 % interval.

    run: the name of a published run. what: the point of the run. host: the kernel, and whether it is emulated.
    setups_count: the number of fresh set-ups behind the interval. doubt: why the ratio decides nothing, or "".
    control: the baseline against itself, in words. within_control: whether the ratio lies within the 95 % interval of
    the control, extended to 1, so that it shows no direction. guests_emulated: whether an arm has guests whose CPUs
    are emulated. link_full: whether both sides of the ratio fill the link between two hosts, which makes them equal.
    of: the columns by which the run's rows behind the ratio are found.
    """

    run: str
    what: str
    host: str
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    how: str = ""
    setups_count: int | None = None
    control: str = ""
    doubt: str = ""
    within_control: bool = False
    guests_emulated: bool = False
    link_full: bool = False
    of: Filter = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether the ratio is one of counts or of printed numbers, without noise."""
        return self.how in (COMPUTED, COUNTED)


Source = Callable[[Results], list[Evidence]]
Given = ParamSpec("Given")


def _measured(
    find: Callable[Concatenate[Results, str, Given], Iterable[Evidence]],
) -> Callable[Concatenate[str, Given], Source]:
    """Make a function that yields the evidence of a run one that returns a source, which also says what is missing.

    Callers leave out `results`: the source takes them later.
    """

    @functools.wraps(find)
    def source_of(run: str, /, *given: Given.args, **only: Given.kwargs) -> Source:
        def source(results: Results) -> list[Evidence]:
            if not results.has(run):
                return [Evidence(run, "", "", doubt=f"{how_to_measure(run)} measures it")]
            found = list(find(results, run, *given, **only))
            return found or [Evidence(run, "", "", doubt="the run did not measure it")]

        return source

    return source_of


@_measured
def ratio_of_arms(
    results: Results, run: str, /, arm: str, other: str, of: str = "speed", **only: Any
) -> Iterator[Evidence]:
    """Return an arm's metric divided by another arm's, at each point that has `only` (columns of GROUP).

    The other arm may be the baseline or not: a run of somebody else may have another baseline. of: what is compared,
    a name of `results.METRICS`.
    """
    rows = rows_with(results.compared_rows(run, of), only)
    lines, ratios = rows_with(results.verdicts(run, of), only), rows_with(results.ratios(run, of), only)
    lines = lines[lines["baseline"].eq(other) & lines["topology"].eq(arm)]
    between = _between_variants(rows, ratios[ratios["baseline"].ne(other)], arm, other)
    for line in (*lines.to_dict("records"), *between.to_dict("records")):
        key = load.key_of(line)
        one = _evidence_without_ratio(run, f"{arm} / {other}: {_point(key)}", line)
        one = replace(one, link_full=_fill_link(rows, key, arm, other), of={**only, "topology": (arm, other)})
        yield of_verdict(one, line)


def _between_variants(rows: pd.DataFrame, ratios: pd.DataFrame, arm: str, other: str) -> pd.DataFrame:
    """Return the verdicts about two arms of which neither is the baseline, in the columns of `verdicts.verdicts`."""
    ok = rows[rows["status"].eq("ok") & rows["topology"].isin([arm, other])]
    rows_of = dict(load.groups(ok[[*GROUP, "guest_accelerator"]]))
    lines = []
    for key, group in load.groups(ratios):
        one, two = (group[group["topology"].eq(name)] for name in (arm, other))
        if (mine := change_effects.difference(one, two, arm, other)) is not None:
            guests = next(iter(rows_of[key]["guest_accelerator"].dropna()), None)
            control = functools.partial(verdicts.column_effect, group, "log_control")
            lines.append({
                **dict(zip(GROUP, key, strict=True)), "topology": arm, "baseline": other, "guest_accelerator": guests,
                **verdicts.verdict_line(mine, control, arm, other, verdicts.MARGIN, higher=True),
            })  # fmt: skip
    return verdicts.verdict_table(lines)


@_measured
def ratio_of_values(
    results: Results, run: str, /, column: str, left: Any, right: Any, arm: str, of: str = "speed", **only: Any,
) -> Iterator[Evidence]:  # fmt: skip
    """Return what one arm has with one value of a parameter (right), divided by what it has with another (left).

    of: `speed` (the metric), `speed_per_pair`, or `cpu_per_packet` (of the whole machine). If each round measured both
    values, the ratio is of each round. Otherwise the interval is widened by the drift between runs.
    """
    rows = rows_with(results.rows(run), {**only, "topology": arm})
    if not all(rows[column].eq(end).any() for end in (left, right)):
        return
    ratios = rows_with(results.ratios(run), only)
    # Tables with few columns are selected and divided much faster.
    controls = dict(load.groups(ratios[[*GROUP, *verdicts.MEASUREMENT, "setup", "log_control", "placed"]]))

    @functools.cache
    def control_of(key: Key) -> Effect | None:
        some = controls.get(key)
        if some is None:
            return None
        return verdicts.column_effect(some, "log_control", bool(some["method"].eq("slice").any()))

    ok = load.measured_rows(rows)
    ok = ok.loc[ok["role"].ne("control"), list(dict.fromkeys([*GROUP, *POINT_COLUMNS]))]
    if ok["method"].eq("slice").any():
        ok = ok[ok["method"].eq("slice")]
    differs = (column, "length_bytes") if column in ("mtu_bytes", "protocol") else (column,)
    for _, group in load.groups(ok, [name for name in GROUP if name not in differs]):
        sides = [group[group[column].eq(end)] for end in (left, right)]
        if not all(map(len, sides)):
            continue
        placed = bool(group["method"].ne("slice").all() or group["placement"].notna().all())
        effect = _between(*(_by_setup(side, of) for side in sides), placed=placed)
        firsts = [side.iloc[0].to_dict() for side in sides]
        for key in map(load.key_of, firsts):
            effect = effect and stats.widened(effect, control_of(key))
        text = f"{arm}: {_point(load.key_of(firsts[0]))} → {value_of(column, right)}"
        one = _evidence_without_ratio(run, text, firsts[0])
        selected = {**only, "topology": arm, column: (left, right)}
        yield _add_effect(replace(one, link_full=all(map(_fills_link, sides)), of=selected), effect)


@_measured
def ratio_of_ratios(
    results: Results, run: str, /, arm: str, other: str, column: str, left: Any, right: Any, **only: Any
) -> Iterator[Evidence]:
    """Return an arm's ratio to another with one value of a parameter (right), divided by that with another (left).

    Each round must have measured both values: then what a round does to all loads cancels out.
    """
    found = rows_with(results.ratios(run), {**only, "baseline": other, "topology": arm})
    host = host_of(rows_with(results.rows(run), {**only, "topology": arm}))
    of = {**only, "topology": (arm, other), column: (left, right)}
    by = [name for name in GROUP if name != column]
    for _, group in load.groups(found[found["method"].eq("slice")], by):
        sides = [rows_with(group, {column: end}) for end in (left, right)]
        logs = [_centres(side, "log_ratio") for side in sides]
        if not len(both := (logs[1] - logs[0]).dropna()):
            continue
        lost = stats.lost_freedom(len(both), bool(group["placed"].all()))
        effect = stats.effect(np.asarray(both, np.float64), list(both.index), lost=lost)
        for side in sides:
            effect = stats.widened(effect, verdicts.column_effect(side, "log_control", slices=True))
        point = _point(load.key_of(sides[0].iloc[0].to_dict()))
        what = f"{arm} / {other}: {point} → {value_of(column, right)}"
        yield _add_effect(Evidence(run, what, host, of=of), effect)


@_measured
def function_time_ratio(results: Results, run: str) -> Iterator[Evidence]:
    """Return the ratio of a function's durations at the two sizes of the claim about it, for each arm."""
    profiles = results.profiles(run)
    host = host_of(profiles)
    for one in function_time_claim.judge_claim(function_time_claim.times(profiles)):
        of = dict(zip(function_time_claim.BY, one.key, strict=True))
        yield _add_effect(Evidence(run, str(one.arm), host, of=of), one.effect)


@_measured
def function_ratio(
    results: Results,
    run: str,
    left: tuple[str, str],
    right: tuple[str, str],
    lengths: tuple[int, int] | None = None,
) -> list[Evidence]:
    """Return the ratio of two functions' durations (right divided by left), each (kind of endpoint, function).

    There is a ratio for each size of datagrams, or one of the two sizes `lengths`: the left side has the first, the
    right side the second. A duration is the median of a round of profiles in the kernel that the endpoints use: the
    guests' for guests. The two sides are not measured side by side, so the interval is widened by the drift between
    runs.
    """
    timed = durations(results.profiles(run))
    sides = []
    for kind, function in (left, right):
        sides.append(rows_with(timed, {"endpoint": kind, "function": function}))
        if not len(sides[-1]):
            doubt = f"no profile has a duration of {function} for endpoint={kind}"
            return [Evidence(run, f"{function}, {ENDPOINT_NAMES[kind]}", "", doubt=doubt)]
    one, other = (dict(iter(side.groupby("length_bytes", dropna=False))) for side in sides)
    compared = [lengths] if lengths else [(size, size) for size in one]
    found = [_duration_ratio(run, one[a], other[b]) for a, b in compared if a in one and b in other]
    return [replace(ratio, of={"endpoint": (left[0], right[0])}) for ratio in found]


def _duration_ratio(run: str, left: pd.DataFrame, right: pd.DataFrame) -> Evidence:
    """Return the ratio of durations (`durations`) of one size of datagrams on each side."""
    words, logs = [], []
    for side in (right, left):
        by_round = side.groupby("setup", sort=False)["log"].mean().to_numpy(float)
        logs.append(by_round)
        words.append(f"{side['what'].iloc[0]} ({math.exp(by_round.mean()) * 1e6:.3g} µs)")
    hosts = list(dict.fromkeys([*left["host"], *right["host"]]))
    sizes = [f"{side['length_bytes'].iloc[0]:.0f}" for side in (right, left)]
    what = " / ".join(words) + ("" if "nan" in sizes else f": {' / '.join(dict.fromkeys(sizes))} bytes each")
    emulated = bool(right["guest_emulated"].any() or left["guest_emulated"].any())
    one = Evidence(run, what, "; ".join(hosts), guests_emulated=emulated)
    if any(side["host"].nunique() > 1 for side in (left, right)):
        return replace(one, doubt="a side was measured in several kernels")
    return _add_effect(one, compare_runs.with_drift(stats.difference(logs[1], logs[0])))


# What makes a ratio undecided, by its name in claims.toml: the field of Evidence, and the doubt
UNLESS = {
    "emulated": ("guests_emulated", "the guests were emulated, and guests on the CPU itself are faster"),
    "link_full": ("link_full", "both sides fill the link"),  # which makes any two sides equal
}


def undecided_if(unless: str, source: Source) -> Source:
    """Return the evidence of a source with a doubt where it has this field of UNLESS."""
    field_name, doubt = UNLESS[unless]
    return lambda results: [
        replace(one, doubt=one.doubt or doubt * getattr(one, field_name)) for one in source(results)
    ]


def deviation(source: Source) -> Source:
    """Return the factor by which each ratio of a source differs from 1, in whatever direction."""
    return lambda results: list(map(_deviation, source(results)))


def _deviation(one: Evidence) -> Evidence:
    low, high = sorted((max(one.low, 1 / one.low), max(one.high, 1 / one.high)))
    return replace(
        one, ratio=max(one.ratio, 1 / one.ratio), low=1.0 if one.low <= 1 <= one.high else low, high=high
    )


def computed(what: str, number: Callable[[], float]) -> Source:
    """Return a quotient of numbers that the document itself prints, or that follow from definitions."""
    number = functools.cache(number)
    return lambda _results: [Evidence(PRINTED, what, "", value := number(), value, value, COMPUTED)]


@_measured
def ratios_of_counts(
    results: Results, run: str, part: str, find: Callable[[pd.DataFrame], Iterator[tuple[str, float]]], /, **only: Any
) -> Iterator[Evidence]:  # fmt: skip
    """Return quotients of counts in rows of one part of a run that have `only`. They have no noise."""
    rows = rows_with(results.rows(run, part), only)
    of = only if part == "cost" else {**only, "part": part}
    ok = rows[rows["status"].eq("ok")]
    if not len(ok):
        why = "; ".join(dict.fromkeys(rows["reason"].dropna().astype("str"))) or f"it has no part {part}"
        yield Evidence(run, part, host_of(rows), doubt=why)
        return
    for what, ratio in find(ok):
        yield Evidence(run, what, host_of(ok), ratio, ratio, ratio, COUNTED, of=of)


@_measured
def mirrored_share(results: Results, run: str, /, share: str, link_bps: float) -> Iterator[Evidence]:
    """Return a share of each load whose copies took a link, with its interval over rounds.

    share: `of_link`, the bit rate of the copies that arrived (with Ethernet header, without the tunnel's), divided by
    the link's rate, of loads whose copies are more than the link carries; or `arrived`, the copies that arrived,
    divided by those that the mirror should have made, of loads whose copies the link carries. A sender may not reach
    the rate that it was asked for. The link is that between two hosts, or else the uplink of the switch.
    """
    rows = results.rows(run)
    rows = rows[rows["link_rate_bps"].fillna(rows["uplink_bps"]).eq(link_bps)]
    rows = rows[rows["status"].eq("ok") & rows["rate_bps"].notna() & rows["copies_expected_count"].gt(0)]
    frame_bits = 8 * (rows["length_bytes"] + rows["family"].map(HEADERS_BYTES))
    made_bps, arrived_bps = (
        rows[f"copies_{name}count"] / rows["window_s"] * frame_bits for name in ("expected_", "")
    )
    if share == "of_link":
        rows = rows.assign(share=arrived_bps / link_bps)[made_bps.gt(link_bps)]
    else:
        is_carried = rows["rate_bps"].lt(link_bps) & made_bps.lt(FULL_LINK * link_bps)
        rows = rows.assign(share=rows["copies_count"] / rows["copies_expected_count"])[is_carried]
    for (topology, *key), some in load.groups(rows, ["topology", *GROUP]):
        one = Evidence(run, f"{topology}: {_point(tuple(key))}", host_of(some))
        if (none := int(some["copies_count"].eq(0).sum())) > 0:
            yield replace(one, doubt=f"no copy arrived in {none} of {counted(len(some), 'row')}")
            continue
        setups = list(zip(some["folder"], some["round"], strict=True))
        effect = stats.effect(np.log(some["share"].to_numpy(float)), setups)
        first = some.iloc[0]
        of = {name: None if pd.isna(first[name]) else first[name] for name in ("link_rate_bps", "rate_bps")}
        yield _add_effect(replace(one, of={"topology": topology, **of}), effect)


def rows_with(rows: pd.DataFrame, only: Filter) -> pd.DataFrame:
    """Return the rows with these values. A tuple allows several values, None means null."""
    which = pd.Series(True, rows.index)
    for name, value in only.items():
        column, allowed = rows[name], value if isinstance(value, tuple) else (value,)
        which &= column.isin([one for one in allowed if one is not None]) | column.isna() & (None in allowed)
    return rows[which] if only else rows


def host_of(rows: pd.DataFrame) -> str:
    """Return the kernels of these rows, and whether they or their guests are emulated."""
    ok = rows.loc[rows["kernel"].notna(), [*HOST, "guest_accelerator"]].drop_duplicates(HOST)
    return ", ".join(dict.fromkeys(map(_host_words, ok.to_dict("records"))))


def _host_words(row: Mapping[Any, Any]) -> str:
    of_guests = row.get("guest_accelerator") == "tcg" and row.get("accelerator") != "tcg"
    guest = ", guests emulated" * of_guests
    emulated = ", emulated" if "tcg" in (row.get("accelerator"), row.get("peer_accelerator")) else ""
    return f"Linux {row['kernel']}{emulated}{guest}"


def _evidence_without_ratio(run: str, what: str, row: Mapping[Any, Any]) -> Evidence:
    """Return evidence without a ratio, with the host of this row."""
    return Evidence(run, what, _host_words(row), guests_emulated=row.get("guest_accelerator") == "tcg")


def _point(key: Key) -> str:
    """Return what a point is, without its host."""
    of = dict(zip(GROUP, key, strict=True))
    return load.group_text(tuple(None if name in HOST else of[name] for name in GROUP))


def _fills_link(rows: pd.DataFrame) -> bool:
    """Return whether these rows fill a link of a set rate."""
    shares = (rows["throughput_bps"] / rows["link_rate_bps"]).dropna()
    return bool(len(shares)) and float(shares.median()) >= FULL_LINK


def _fill_link(rows: pd.DataFrame, key: Key, *arms: str) -> bool:
    """Return whether each of these arms fills the link at this point."""
    linked = rows["status"].eq("ok") & rows["link_rate_bps"].notna()
    ok = rows.loc[linked, [*GROUP, "topology", "throughput_bps"]]
    own = next((some for other, some in load.groups(ok) if other == key), None)
    return own is not None and all(_fills_link(own[own["topology"].eq(arm)]) for arm in arms)


def of_verdict(one: Evidence, line: Mapping[Any, Any]) -> Evidence:
    """Return the evidence with the ratio of a verdict, its control, whether the ratio lies within the control's
    interval, and why it decides nothing."""
    if pd.isna(line["ratio"]):
        return replace(one, doubt=str(line["sentence"]))
    if pd.isna(low := line["control_low"]):
        one = replace(one, doubt="the baseline was not measured twice in several rounds")
    else:
        ratio, high = line["control_ratio"], line["control_high"]
        within = min(low, 1) <= line["ratio"] <= max(high, 1)
        one = replace(one, control=stats.ratio_text(ratio, low, high), within_control=bool(within))
        one = replace(one, doubt=ONE_SETUP if line["rounds_count"] == 1 else "")
    ratio, low, high = (float(line[name]) for name in ("ratio", "low", "high"))
    count = int(line["rounds_count"])
    return replace(one, ratio=ratio, low=low, high=high, how=str(line["how"]), setups_count=count)


def _add_effect(one: Evidence, effect: Effect | None) -> Evidence:
    if effect is None:
        return replace(one, doubt="nothing was measured")
    one = replace(one, ratio=effect.ratio, how=effect.how)
    if effect.low is None or effect.high is None:
        return replace(one, doubt="a single set-up has no interval")
    return replace(one, low=effect.low, high=effect.high, setups_count=effect.setups_count)


def value_of(column: str, value: Any) -> str:
    """Return the value of a column in words: `MTU 1500`, `4 pairs`."""
    words = {
        "mtu_bytes": "MTU {}", "pairs": "{} pairs", "length_bytes": "{} bytes each", "monitored": "monitored: {}",
    }  # fmt: skip
    return words.get(column, "{}").format(load.value_text(value))


def _centres(rows: pd.DataFrame, column: str) -> pd.Series[float]:
    """Return the centre of a column of each set-up (`stats.centre`)."""
    return rows.groupby("setup", sort=False)[column].agg(lambda some: stats.centre(some.to_numpy(float)))


def _by_setup(rows: pd.DataFrame, of: str) -> pd.Series[float]:
    """Return one logarithm for each set-up."""
    if of == "cpu_per_packet":
        sums = rows.groupby("setup", sort=False)[["cpu_s", "received_count"]].sum()
        sums = sums[sums["received_count"].gt(0) & sums["cpu_s"].gt(0)]
        return pd.Series(np.log(sums["cpu_s"] / sums["received_count"]), dtype=float)
    logs = _centres(rows[rows["log"].notna()], "log")
    shift = math.log(float(rows["pairs"].iloc[0])) if of == "speed_per_pair" else 0.0
    return logs.astype(float) - shift


def _between(left: pd.Series[float], right: pd.Series[float], *, placed: bool) -> Effect | None:
    """Return the ratio of right to left: paired by set-up if both share them, else with the drift between runs.

    placed: False if the numbers are of slices whose ends labkit did not bind to CPUs (`stats.lost_freedom`).
    """
    paired = (right - left).dropna()
    if len(paired) > 1:
        lost = stats.lost_freedom(len(paired), placed)
        return stats.effect(np.asarray(paired, np.float64), list(paired.index), lost=lost)
    if not len(left) or not len(right):
        return None
    return compare_runs.with_drift(
        stats.difference(np.asarray(left, np.float64), np.asarray(right, np.float64), placed=placed)
    )


def durations(profiles: pd.DataFrame) -> pd.DataFrame:
    """Return a function's median duration for each profile, in the kernel that its endpoints use (the guest's).

    Columns: endpoint, topology, function, length_bytes, p50_s, log, setup (the round), host (the kernel that called the
    function), guest_emulated, and what (the function and the endpoints in words).
    """
    lines = []
    timed = profiles[profiles["status"].eq("ok") & profiles["observer"].isin(FUNCTION_TIMERS)]
    for row in timed.to_dict("records"):
        report, kind = observed(row.get("observed")), str(row["endpoint"])
        is_guest = "guest" in kind
        place = (report.get("guest") if is_guest else report) or {}
        emulated = is_guest and row["guest_accelerator"] == "tcg"
        guests = f"guests with Linux {row.get('guest_kernel')}{', emulated' * emulated}"
        host = guests if is_guest else _host_words(row)
        for function, one in place.get("functions", {}).items():
            if one.get("p50_s"):
                times = (one["p50_s"], math.log(one["p50_s"]), f"{row['folder']}:{row['round']}")
                of = (kind, row["topology"], function, row["length_bytes"])
                lines.append((*of, *times, host, emulated, f"{function}, {ENDPOINT_NAMES[kind]}"))
    return pd.DataFrame(lines, columns=DURATIONS)
