"""Phrases for the sentences of `labkit why`: sizes with their intervals, shares, differences."""

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

from labkit.analysis import conditions
from labkit.analysis.flame import function_table
from labkit.analysis.flame.function_table import seconds
from labkit.analysis.flame.significance import Estimate
from labkit.analysis.why import causes, switch_work
from labkit.analysis.why.environment import Setting
from labkit.analysis.why.evidence import FRAMES_SHARE, Evidence
from labkit.common import units

# The place of a change
AT = {
    "client": "at the client", "server": "at the server", "both": "at both ends", "client, server": "at both ends",
    "between": "between the ends", "load": "of the load",
}  # fmt: skip
IDLE_SHARE = 0.2  # of all CPU time: the least difference in busy time that a sentence mentions
NOTHING_RUNS = ": sleep, wake-up, softirq delay, timers, queues or delays on the path"
LONGEST = 80  # characters of a value in a sentence; the tables have all of it
_DIGEST = re.compile(r",? (?:sha256:|digest )[0-9a-f]{8,}")  # in the value of a setting


def join_sentences(sentences: Iterable[str]) -> str:
    """Join sentences; the last one has no full stop, like every `Conclusion.sentence`."""
    return ". ".join(filter(None, sentences))


def per_unit(evidence: Evidence) -> str:
    """Return the unit of work: `per packet that arrived`."""
    return f"per {evidence.split.unit.description}"


def interval(size: Estimate) -> str:
    """Return a difference with its sign and its interval."""
    sign = "+" if size.difference > 0 else ""
    if not np.isfinite(size.half):
        return f"{sign}{seconds(size.difference)}"
    return f"{sign}{seconds(size.difference)} [{seconds(size.low)}, {seconds(size.high)}]"


def amount(size: Estimate) -> str:
    """Return the size in words, without its sign if it is certain."""
    return function_table.size(size.difference, size.low, size.high, size.certain)


def foreign_load(evidence: Evidence) -> str:
    """Return the shares of the CPUs that other programs had."""
    shares = evidence.foreign
    at = 1 if shares.right >= shares.left else 0
    who = conditions.other_processes(evidence.others[at], max(shares.left, shares.right))
    left, right = units.percent(shares.left), units.percent(shares.right)
    return f"{who} had {right} of the CPUs in {evidence.names[1]} and {left} in {evidence.names[0]}"


def foreign_at_times(evidence: Evidence) -> str:
    """Return in how many rounds other programs had the CPUs, or an empty text if these were on both sides alike."""
    counts = evidence.foreign_rounds
    if not any(counts):
        return ""
    at = int(counts[1] >= counts[0])
    shares = [[one.foreign_share for one in side] for side in evidence.rounds]
    who = conditions.other_processes(evidence.others[at], max(shares[at]))
    return (
        f"{who} had up to {units.percent(max(shares[at]))} of the CPUs in {counts[at]} of {len(shares[at])} rounds of"
        f" {evidence.names[at]} and at most {units.percent(max(shares[1 - at]))} in {evidence.names[1 - at]}"
    )


def known(evidence: Evidence) -> list[str]:
    """Return what the counters say about a difference without a cause: loss, closed windows, idle CPUs."""
    result = []
    spent, (left, right) = evidence.split.spent, evidence.busy
    if spent.certain:
        before, after = (units.percent(1 - 1 / value) for value in (spent.left, spent.right))
        places = evidence.loss_by_hop[int(spent.difference > 0)]
        place, share_there = next(iter(places.items()), ("", 0.0))
        where = f", {units.percent(share_there)} of these at {place}" if place else ""
        result.append(f"{after} of the packets are lost instead of {before}{where}")
    if evidence.windows_differ:
        few, many = sorted(float(np.mean(side)) for side in evidence.closed)
        slow = evidence.names[int(np.mean(evidence.closed[1]) > np.mean(evidence.closed[0]))]
        result.append(
            f"in {slow} the receiver's buffer was full {units.digits(many)} times per gigabyte instead of"
            f" {units.digits(few)} times: it reads too slowly, or the buffer is small"
        )
    if (text := frames(evidence)) is not None:
        result.append(text)
    if evidence.speed_differs and abs(right - left) >= IDLE_SHARE:
        before, after = units.percent(left), units.percent(right)
        result.append(f"the CPUs were busy for {after} of the time instead of {before}")
    return result


def difference(evidence: Evidence) -> str:
    """Return the total differences in words, or an empty text if nothing differs."""
    total, speed = evidence.split.total, evidence.speed
    result = []
    if evidence.cost_differs:
        word = "more" if total.difference > 0 else "less"
        result.append(f"takes {amount(total)} {word} CPU {per_unit(evidence)} than {evidence.names[0]}")
    if speed is not None and evidence.speed_differs:
        what = evidence.point.judged.average
        ratio, low, high = (math.exp(one) for one in (speed.difference, speed.low, speed.high))
        of = "" if result else f" of {evidence.names[0]}"
        result.append(f"has {ratio:.3g} times [{low:.3g}, {high:.3g}] the {what}{of}")
    return f"{evidence.names[1]} {' and '.join(result)}" if result else ""


def total_difference(whole: str) -> str:
    """Return the sentence about the total difference (`difference`), or an empty text."""
    return f"In all, {whole}" if whole else ""


def round_trip(evidence: Evidence) -> str:
    """Return the sentence about the time of a round trip and its parts, or an empty text if that does not differ."""
    of = evidence.round_trips
    if of is None or not of.whole.certain:
        return ""

    def part(size: Estimate) -> str:
        own = size.difference / of.whole.difference
        return f"{seconds(size.difference)} ({units.percent(own if abs(own) >= 0.0005 else 0.0)})"

    wait = "" if of.wait is None else f", waiting for a CPU {part(of.wait)}"
    rest = f"time in which nothing of it runs {part(of.rest)}{NOTHING_RUNS if of.is_rest else ''}"
    return (
        f"A round trip takes {seconds(of.whole.right)} instead of {seconds(of.whole.left)}: of the difference,"
        f" CPU time is {part(of.cpu)}{wait}, and {rest}"
    )


def bounds(evidence: Evidence) -> str:
    """Return in words the largest difference that could have gone undetected."""
    total = evidence.split.total
    bound = max(abs(total.low), abs(total.high))
    relative = bound / total.left if total.left > 0 else math.nan
    return f"CPU {per_unit(evidence)} differs by less than {seconds(bound)} ({units.percent(relative)})"


def share(size: Estimate, evidence: Evidence) -> str:
    """Return the candidate's share of the total difference in words, or an empty text if it has none."""
    total = evidence.split.total
    if not evidence.cost_differs or total.difference * size.difference <= 0:
        return ""
    if size.low * size.high > 0 and min(abs(size.low), abs(size.high)) > max(abs(total.low), abs(total.high)):
        rest = "less" if total.difference > 0 else "more"
        return f", more than the whole difference, because other code takes {rest}"
    return f", {units.percent(min(size.difference / total.difference, 1.0))} of the difference"


def disturbance(evidence: Evidence) -> str:
    """Return what disturbed the measurement, or an empty text."""
    if not evidence.is_disturbed:
        return ""
    if evidence.has_foreign_load:
        return foreign_load(evidence)
    return f"the hypervisor took {units.percent(max(evidence.steal))} of the CPU time"


def caveat(evidence: Evidence) -> str:
    """Return the sentence about what weakens a claim, or an empty text."""
    what = disturbance(evidence)
    return f"{capitalised(what)}, so the size is less certain" if what else ""


def code_path(evidence: Evidence, code: causes.Cause) -> str:
    """Return `page allocation costs 2 µs [1, 3] more per packet that arrived, 40 % of … (in
    get_page_from_freelist)`."""
    words = {"new": "new code path", "gone": "code path no longer used:", "changed": "in"}
    return f"{cost(evidence, code)} ({words[code.change]} {_place(code)})"


def cost(evidence: Evidence, code: causes.Cause) -> str:
    """Return `page allocation costs 2 µs [1, 3] more per packet that arrived, 40 % of the difference`."""
    plural = code.path is not None and code.path.plural
    return f"{code.name} {effect(evidence, code.size, existed=code.change == 'changed', plural=plural)}"


def effect(evidence: Evidence, size: Estimate, existed: bool = False, plural: bool = False) -> str:
    """Return `costs 2 µs [1, 3] per packet that arrived, 40 % of the difference`.

    existed: whether the subject is on both sides, so that it costs more. plural: whether the subject is a plural.
    """
    verb = ("cost" if size.difference > 0 else "save") + ("" if plural else "s")
    more = " more" if existed and size.difference > 0 else ""
    return f"{verb} {amount(size)}{more} {per_unit(evidence)}{share(size, evidence)}"


def place(code: causes.Cause) -> str:
    """Return the sentence about the functions of a cause."""
    words = {"new": "code path is new:", "gone": "code path is no longer used:", "changed": "function is"}
    return f"The {words[code.change]} {_place(code)}"


def _place(code: causes.Cause) -> str:
    return f"{code.function}{f' below {code.callers[0]}' if code.callers else ''}"


def setting(one: Setting) -> str:
    """Return `sysctl net.core.x (client, server: 0 → 1)`."""
    places, (left, right) = _places(one), _values(one)
    return f"{one.name} ({f'{places}: ' if places else ''}{left} → {right})"


def change(one: Setting) -> str:
    """Return `sysctl net.core.x at the server from 0 to 1`."""
    places, (left, right) = _places(one), _values(one)
    at = f" {AT.get(places, f'({places})')}" if places else ""
    return f"{one.name}{at} from {left} to {right}"


def _places(one: Setting) -> str:
    return "" if "machine" in one.places else ", ".join(one.places)


def _values(one: Setting) -> tuple[str, str]:
    """Return both values for a sentence, without digests unless only these differ."""
    left, right = (_DIGEST.sub("", value) for value in (one.left, one.right))
    if left == right:
        left, right = one.left, one.right
    # Values that begin alike are shown from where they differ.
    both = enumerate(zip(left, right, strict=False))
    alike = next((at for at, (one_letter, other) in both if one_letter != other), min(len(left), len(right)))
    is_long = max(len(left), len(right)) > LONGEST and alike > LONGEST
    word = left.rfind(" ", 0, alike) + 1  # a number is not cut
    start = (word if alike - word <= LONGEST // 4 else alike) if is_long else 0
    short = [
        f"{'… ' if start else ''}{value[start : start + LONGEST]}{' …' if len(value) > start + LONGEST else ''}"
        for value in (left, right)
    ]
    return short[0], short[1]


def switch_part(evidence: Evidence, of: switch_work.Part) -> str:
    """Return `sending packets through packet sockets costs 2 µs [1, 3] more per packet that arrived, 40 % of the
    difference, 1 µs for each copy`."""
    result = f"{of.name} {effect(evidence, of.size, existed=True)}"
    return result if of.each_copy_s is None else f"{result}, {seconds(of.each_copy_s)} for each copy"


def frames(evidence: Evidence) -> str | None:
    """Return the frames per gigabyte of both sides in words, or None if they do not differ."""
    count = evidence.frames_per_work
    if count is None or not count.certain or abs(count.difference) < FRAMES_SHARE * count.left:
        return None
    return f"{units.digits(count.left)} → {units.digits(count.right)} frames for each gigabyte that arrived"


def frames_sentence(evidence: Evidence) -> str:
    """Return the sentence about the frames per gigabyte, or an empty text if they do not differ."""
    count = evidence.frames_per_work
    if count is None or frames(evidence) is None:
        return ""
    return f"Each gigabyte that arrived had {units.digits(count.right)} frames instead of {units.digits(count.left)}"


def settings(differing: Sequence[Setting]) -> str:
    """Return the first of these settings, and how many more there are; without settings, an empty text."""
    return setting(differing[0]) + further_settings(differing) if differing else ""


def further_settings(settings: Sequence[Setting]) -> str:
    """Return how many settings there are beside the first, which the sentence names."""
    return f" (and {units.counted(len(settings) - 1, 'more setting')})" if len(settings) > 1 else ""


def capitalised(text: str) -> str:
    """Start a sentence with a capital letter, unless it starts with a name."""
    is_name = re.search(r"[._/:0-9]", text.partition(" ")[0]) is not None
    return text if is_name else text[:1].upper() + text[1:]
