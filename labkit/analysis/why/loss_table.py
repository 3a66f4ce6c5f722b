"""Tabulate the loss per hop on both sides of `labkit why`, from the kernel's counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import protocols
from labkit.analysis.flame.significance import estimate, half_interval
from labkit.analysis.why import work
from labkit.analysis.why.counter_tables import NOT, Table, in_guests, observed_by
from labkit.analysis.why.selection import ProfiledPoint
from labkit.common import loss_places, units
from labkit.common.loss_places import without_pair_number
from labkit.common.units import plus_minus

ALL, FRAMES, COPIES = "in all", "frames: ", "copies: "
UNEXPLAINED = "unexplained"


def table(point: ProfiledPoint) -> Table:
    """Return the table with its title. If there is no table, the text says why."""
    title = "Loss per hop"
    seen = observed_by(point, "counters")[:2]
    if not all(seen):
        return title, NOT.format("counters"), None
    columns: dict[str, dict[str, str]] = {}
    units: dict[str, str] = {}
    for (name, _), rounds in zip(point.named_sides(), seen, strict=False):
        hops = [result for report, _ in rounds if (result := _hops(report))]
        for place in dict.fromkeys(place for result in hops for place in result):
            shares = np.array([result.get(place, 0.0) for result in hops])
            columns.setdefault(name, {})[place] = (
                f"{plus_minus(100 * shares.mean(), 100 * half_interval(shares))} %"
            )
        for pair in (pair for report, _ in rounds for pair in report.get("loss", []) if pair.get("unit")):
            units[name] = pair["unit"]
    if not columns:
        return title, f"The path of the packets is not known.{in_guests(seen)}", None
    places = _merge([[place for place in own if place != ALL] for own in columns.values()])
    shown = pd.DataFrame(columns).reindex([*places, ALL]).fillna("–")
    text = (
        f"Of {_share_base(units)}; mean of the rounds with its 95 % interval; hops in the order of the path."
    )
    if any(place.startswith(FRAMES) for place in places):
        text += " Fragments and encapsulating frames are listed separately, as shares of the frames that were sent."
    if any(place.startswith(COPIES) for place in places):
        text += " Copies of mirrors are shares of the copies that the mirrors should have made."
    if protocols.find(point.protocol).work == "packet" and "frames" in units.values():
        text += " Losses at sockets are not included."
    return title, text + in_guests(seen), shown


def answer(point: ProfiledPoint) -> tuple[str, str, float] | None:
    """Return what happens, the sentence and its p value if the counters show that the sides certainly lose differently.

    None if they do not differ, or if a side has fewer than two rounds in which datagrams were followed.
    """
    rounds = [work.followed_datagrams(rows) for rows in point.rows[:2]]
    if min(map(len, rounds)) < 2:
        return None
    left, right = (np.array([_lost_share(pairs) for pairs in side]) for side in rounds)
    floors = _sampling_variance(rounds[0]), _sampling_variance(rounds[1])
    size = estimate(left, right, None, floors)
    alike = {str(folder) for rows in point.rows[:2] for folder in rows["folder"].unique()}
    least = work.MIN_SHARE if len(alike) == 1 else work.LOSS_SHARE
    if not (size.certain and abs(size.difference) > least):
        return None
    more = size.difference > 0
    shares = (units.percent(max(share, 0.0)) for share in (size.right, size.left))
    place = loss_places.where(pair for pairs in rounds[int(more)] for pair in pairs)
    name, other = (side.name for side in point.sides[1::-1])
    text = "{} loses {} of the datagrams instead of {}".format(name, *shares)
    where = f", {place}{'' if more else f' of {other}'}" if place else ""
    return f"{'more' if more else 'fewer'} packets are lost", f"{text}{where}", size.p


def tables(point: ProfiledPoint) -> Iterator[Table]:
    """Yield the table of losses, and that of each mirror's copies if there are several mirrors."""
    yield table(point)
    yield from _copies_of_mirrors(point)


def _copies_of_mirrors(point: ProfiledPoint) -> Iterator[Table]:
    """Yield the table of what became of the copies of each mirror, if a side has several that are told apart."""
    columns: dict[str, dict[str, str]] = {}
    for (name, _), rounds in zip(point.named_sides(), observed_by(point, "counters")[:2], strict=False):
        reports = [report.get("copies", {}).get("mirrors", {}) for report, _ in rounds]
        for mirror in dict.fromkeys(one for report in reports for one in report):
            counts = [report[mirror] for report in reports if report.get(mirror, {}).get("sent_count")]
            for what, column in (
                ("did not arrive", _lost_count),
                ("not read", lambda one: one["unread_count"]),
            ):
                shares = [column(one) / one["sent_count"] for one in counts if column(one) is not None]
                if shares:
                    mean, half = 100 * np.mean(shares), 100 * half_interval(np.array(shares))
                    columns.setdefault(name, {})[f"{mirror}: {what}"] = f"{plus_minus(mean, half)} %"
    shown = pd.DataFrame(columns).fillna("–")
    if any(place.startswith("mirror1:") for place in shown.index):
        yield (
            "Copies of each mirror",
            "Shares of the copies that the mirror should have made: those that did not arrive at the monitor, and those"
            " that arrived and that its reader did not take; mean of the rounds with its 95 % interval. The counts are"
            " not read at the same moment, so a share may be slightly below 0.",
            shown,
        )


def _lost_count(one: Mapping[str, Any]) -> int:
    return int(one["sent_count"] - one["arrived_count"])


def _share_base(units: Mapping[str, str]) -> str:
    """Return what the shares refer to. It names the sides if their units differ."""
    alike = set(units.values())
    if len(alike) == 1:
        return f"the {alike.pop()} that were sent"
    return "what was sent (" + ", ".join(f"{unit} of {name}" for name, unit in units.items()) + ")"


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
    all_of_it = {ALL: _lost_share(pairs)}
    copies = _shares([report["copies"]]) if "copies" in report else {}
    return (
        {f"{FRAMES}{place}": share for place, share in beside.items()}
        | _shares(pairs)
        | {f"{COPIES}{place}": share for place, share in copies.items() if place != UNEXPLAINED}
        | all_of_it
    )


def _lost_share(pairs: Sequence[Mapping[str, Any]]) -> float:
    return float(sum(one.get("lost_count") or 0 for one in pairs) / sum(one["sent_count"] for one in pairs))


def _sampling_variance(rounds: Sequence[Sequence[Mapping[str, Any]]]) -> float:
    """Return the variance of a share of lost datagrams by chance alone, also if all rounds have the same share."""
    pairs = [pair for each in rounds for pair in each]
    sent = sum(pair["sent_count"] for pair in pairs)
    share = (min(max(_lost_share(pairs), 0.0), 1.0) * sent + 1) / (sent + 2)
    return float(share * (1 - share) / sent)


def _shares(pairs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    sent = sum(one["sent_count"] for one in pairs)
    result: Counter[str] = Counter()
    for one in pairs:
        for hop in one["hops"]:
            result[without_pair_number(hop["at"])] += hop["lost_count"] or 0
        result[UNEXPLAINED] += one.get("unexplained_count") or 0
    return {place: count / sent for place, count in result.items()} if sent else {}
