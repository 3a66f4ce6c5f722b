"""State what the measuring rounds say about both sides of `labkit why`. Profiles are not part of it (METHOD,
"Profiles")."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from labkit.analysis import change_effects, compare_runs, load, protocols, stats
from labkit.analysis.why import selection
from labkit.analysis.why.selection import ProfiledArm, ProfiledPoint, Sides
from labkit.common.errors import BadInput

CERTAIN = ("faster", "slower")
NOTHING = "No measurement compares the two sides."
NOT_COMPARED = "Speeds of different {} are not compared between two runs: measure them in one run."
NO_CONTROL = (
    "This is not a verdict: no round measured a point twice (two points have no A/A control), so the noise between"
    " set-ups is unknown."
)
CONTROL = (
    "The A/A control of the profiles, {}, was measured in the set-up of the left side. The spread between rounds"
    " includes the differences between set-ups."
)
SIZES = (
    "The ratio counts datagrams, not bits, because their sizes differ between the sides. Costs are those of a datagram"
    " that arrived (called a packet below), whatever its size."
)


def sentences(sides: Sides) -> tuple[list[str], list[str]]:
    """Return the findings and the notes on them, both as sentences."""
    left, right, control = sides
    one_run = left.folders == right.folders
    if not (differing := selection.differing(sides)):
        result = list[str]()
        if (compared := _compare(left, right)) is not None:
            pair = [left.topology, right.topology]
            own = compared[compared["topology"].isin(pair)]
            between = own[own["baseline"].isin(pair)]
            of_points = list(load.groups(between if len(between) else own))
            for key, lines in of_points:
                # Two runs' sentences begin with their point.
                start = f"{load.group_text(key)}: " if one_run and len(of_points) > 1 else ""
                result += [f"{start}{sentence}" for sentence in lines["sentence"]]
        return result, [] if result else [NOTHING if one_run else NOT_COMPARED.format("arms")]
    in_packets = any(protocols.find(name).work == "packet" for name in left.rows["protocol"].unique())
    resized = "length_bytes" in differing and in_packets
    result = list(_point_ratios(sides, resized)) if one_run else []
    notes = [NO_CONTROL if one_run else NOT_COMPARED.format("points"), *[SIZES] * resized]
    return result, notes + ([CONTROL.format(control.name)] if control and len(control.profiles) else [])


@dataclass(frozen=True)
class MeasuredVerdict:
    """The verdict on both sides of a point. is_certain: whether it says faster or slower; is_right_slower: which."""

    is_certain: bool
    is_right_slower: bool
    sentence: str


def of_point(point: ProfiledPoint) -> MeasuredVerdict | None:
    """Return the verdict of the measuring rounds on both arms of a point, None if nothing compares them.

    Of several, one that says faster or slower comes first.
    """
    left, right = point.sides[:2]
    if selection.differing(point.sides) or (result := _compare(left, right)) is None:
        return None
    # A third arm may be the baseline of both, also within each of two runs: its ratios say nothing about these two.
    if left.folders == right.folders:
        pair = [left.topology, right.topology]
        result = result[result["topology"].isin(pair) & result["baseline"].isin(pair)]
    else:
        result = result[result["topology"].eq(left.topology) & result["baseline"].isna()]
    for name in (one for one in load.GROUP if one in result and one in point.rows[0]):
        here = set(point.rows[0][name].map(load.value_text))
        result = result[result[name].map(load.value_text).isin(here)]
    if result.empty:
        return None
    is_certain = result["word"].isin(CERTAIN)
    first = (result[is_certain] if is_certain.any() else result).iloc[0]
    of_right = left.folders != right.folders or first["topology"] == right.topology
    is_right_slower = (first["word"] == "slower") == of_right
    return MeasuredVerdict(bool(is_certain.any()), is_right_slower, str(first["sentence"]))


def _compare(left: ProfiledArm, right: ProfiledArm) -> pd.DataFrame | None:
    """Return the verdicts about both sides, None if nothing compares them."""
    if left.rows.empty or right.rows.empty:  # profiles alone
        return None
    # Two runs may differ in more than time. The conclusion names the differences.
    with contextlib.suppress(BadInput):
        if left.folders == right.folders:
            return change_effects.all_verdicts(left.rows)
        if left.topology == right.topology:
            of = dict(zip(left.rows["protocol"], left.rows["metric"], strict=True))

            def judged(rows: pd.DataFrame) -> pd.DataFrame:
                return rows.assign(metric=rows["protocol"].map(of).fillna(rows["metric"]))

            compared, _ = compare_runs.compare(left.folders, right.folders, judged=judged)
            return selection.rows_with(compared, left.values)
    return None


def _point_ratios(sides: Sides, resized: bool) -> Iterator[str]:
    """Yield the ratio of right to left at points that differ, as measured on each host of one run or sweep."""
    names, shared = [side.name for side in sides[:2] if side is not None], selection.shared_parameters(sides)
    for host, own in selection.by_host(sides):
        each = [(side.arm, _by_work(side.rows) if resized else side.rows) for side in filter(None, own[:2])]
        ok = [(arm, load.measured_rows(rows)) for arm, rows in each]
        both = [dict(load.groups(rows[rows["arm"].eq(arm)], shared)) for arm, rows in ok]
        for key in (key for key in both[0] if key in both[1]):
            one, other = both[0][key], both[1][key]
            protocol = protocols.of(one).by_work if resized else protocols.of(one)
            about = f"{protocol.average} of {names[1]} to that of {names[0]}"
            start = f"{host}: " if host else ""
            yield f"{start}{selection.label(sides, key)}: {about}: {_ratio(one, other)}"


def _by_work(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows compared by the rate of packets, where these are the unit of work."""
    packets = [name for name, one in protocols.PROTOCOLS.items() if one.work == "packet"]
    return rows.assign(metric=rows["metric"].mask(rows["protocol"].isin(packets), protocols.PACKET_RATE))


def _ratio(left: pd.DataFrame, right: pd.DataFrame) -> str:
    """Return the ratio of right to left with its interval.

    Each round gives one value per side, because each round sets the point up once. Rounds that measured both sides are
    paired. Points of different runs were measured one after the other, so their interval includes the drift.
    """
    both = (left, right)
    method = "slice" if all(rows["method"].eq("slice").any() for rows in both) else "whole"
    of = []
    placed = True
    for rows in both:
        used = rows[rows["method"].eq(method) & rows["log"].notna()]
        placed &= method == "whole" or bool(used["placement"].notna().all())
        logs = used.groupby("setup")["log"]
        of.append({str(setup): stats.centre(own.to_numpy(float)) for setup, own in logs})
    if not all(of):
        return "one side has no valid measurement"
    if rounds := sorted(of[0].keys() & of[1].keys()):
        lost, paired = stats.lost_freedom(len(rounds), placed), ", round by round"
        effect = stats.effect([of[1][one] - of[0][one] for one in rounds], lost=lost)
    else:
        unpaired = stats.difference(list(of[0].values()), list(of[1].values()), placed=placed)
        effect, paired = compare_runs.with_drift(unpaired), ""
    return f"{stats.ratio_text(effect.ratio, effect.low, effect.high)} ({effect.how}{paired})"
