"""Draw the conclusion of `labkit why`.

One sentence states the cause, its size and its share of the difference, or what is known and what is not. Then follow
all candidates with their evidence, and the steps that would decide between them.

A conclusion excludes other explanations first. If other programs disturbed one side more than the other, foreign load
is the first cause. Between two runs, every interval includes the run-to-run variation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from labkit.analysis import load
from labkit.analysis.flame.function_table import _say as seconds
from labkit.analysis.flame.load_profiles import WITHIN, observed, usual
from labkit.analysis.flame.profile import PER
from labkit.analysis.why import causes, environment, switch_work, work
from labkit.analysis.why.environment import ABSENT, Setting
from labkit.analysis.why.selection import ProfiledPoint
from labkit.analysis.why.work import Between, Estimate, Round, Split
from labkit.common import run_folder, units
from labkit.common.errors import BadInput

# The relative standard deviation of CPU time per packet between runs of the same experiment on an otherwise idle
# machine. It applies if a side has a single run, which does not show the variation itself (docs/METHOD.md).
BETWEEN_SHARE = 0.10
SPEED_SHARE = 0.05  # the same for throughput (METHOD rule 2: 2 to 5 %)
DISTURBED_SHARE = 0.10  # of all CPU time: above it, other programs make sizes less sure
APART_SHARE = 0.10  # if the sides differ by more, the other programs may be the cause
STOLEN_SHARE = 0.02
FRAMES_SHARE = 0.10  # the least relative difference in frames per gigabyte that counts
QUIET = ("perf_record", "perf_stat", "counters")  # observers that do not slow the traffic
NETWORK_FILE = (
    "FILE.yaml"  # in a command: the file of a network of one's own; a row has only the network's name
)
LEAST_SHARE = 0.02  # of a side's cost: a smaller part is not named as a cause


@dataclass(frozen=True)
class Candidate:
    """A possible cause.

    sure: the strength of the evidence, 0 (none) to 3 (strong), by which candidates are ordered. evidence: pairs of a
    source and a finding. size: seconds per unit that arrived with its interval, or None if unknown. part: the kind of a
    switch's work that a change of its options affects most.
    """

    name: str
    sure: int
    evidence: tuple[tuple[str, str], ...]
    size: Estimate | None = None
    settings: tuple[Setting, ...] = ()
    cause: causes.Cause | None = None
    part: switch_work.Part | None = None


@dataclass(frozen=True)
class Conclusion:
    """The conclusion about one point.

    sentence: the conclusion itself. cause: the name of the cause, or None if none is named. claims: whether the
    sentence claims a cause of the difference. candidates: strongest first. notes: caveats. next: the steps that would
    decide, with their commands. parts: the kinds of work of an Open vSwitch, if a side has one.
    """

    sentence: str
    cause: str | None
    claims: bool
    candidates: Sequence[Candidate] = ()
    settings: Sequence[Setting] = ()
    notes: Sequence[str] = ()
    next: Sequence[str] = ()
    split: Split | None = None
    disturbance: str | None = None
    parts: Sequence[switch_work.Part] = ()


@dataclass(frozen=True)
class Evidence:
    """All evidence about a point. speed: throughput, or the rate of pings."""

    point: ProfiledPoint
    names: tuple[str, str]
    rounds: tuple[Sequence[Round], Sequence[Round]]
    apart: Between | None
    split: Split
    frames: causes.Frames
    causes: Sequence[causes.Cause]
    settings: Sequence[Setting]
    speed: Estimate | None
    foreign: Estimate
    steal: tuple[float, float]
    busy: tuple[float, float]
    others: tuple[Sequence[str], Sequence[str]] = ((), ())
    frames_per_work: Estimate | None = None
    lost_at: tuple[dict[str, float], dict[str, float]] = field(default_factory=lambda: ({}, {}))
    parts: Sequence[switch_work.Part] = ()


def conclude(point: ProfiledPoint, processes: str = WITHIN) -> Conclusion:
    """Return the conclusion about one point."""
    names = point.sides[0].name, point.sides[1].name
    settings = environment.differences(point)
    try:
        rounds = work.rounds(point, 0, processes), work.rounds(point, 1, processes)
    except BadInput as error:
        return _unprofiled(names, settings, str(error))
    if min(map(len, rounds)) < 2:
        few = "No conclusion: one side has a single profiled round, so the spread between rounds is unknown"
        return Conclusion(
            f"{few}; measure both with profile_rounds=5 or more", None, False, settings=settings
        )
    evidence = _gathered(point, names, rounds, settings)
    candidates = list(_candidates(evidence))
    return _concluded(evidence, candidates)


def _unprofiled(names: tuple[str, str], settings: Sequence[Setting], why: str) -> Conclusion:
    differ = [one for one in settings if one.relevant]
    words = f"; {differ[0].words} differs" if differ else ""
    return Conclusion(
        f"No conclusion about {names[1]} against {names[0]}: {why}{words}", None, False, settings=settings
    )


def _gathered(
    point: ProfiledPoint,
    names: tuple[str, str],
    rounds: tuple[Sequence[Round], Sequence[Round]],
    settings: Sequence[Setting],
) -> Evidence:
    apart = work.between(*rounds, BETWEEN_SHARE)
    frames = causes.judged(*rounds, apart)
    unit = PER[usual(point.protocol)]
    foreign, elsewhere = (np.array([one.foreign_share for one in side]) for side in rounds)
    steal = [float(np.mean([one.steal_share for one in side])) for side in rounds]
    busy = [float(np.mean([one.busy_share for one in side])) for side in rounds]
    return Evidence(
        point, names, rounds, apart, work.split(*rounds, unit, apart), frames, causes.explained(frames), settings,
        _speed(point, apart), work.estimate(foreign, elsewhere, None), (steal[0], steal[1]), (busy[0], busy[1]),
        (_others(point, 0), _others(point, 1)), _frames(point, apart),
        (work.lost_at(point.rows[0]), work.lost_at(point.rows[1])), switch_work.parts(point, rounds, apart),
    )  # fmt: skip


def _speed(point: ProfiledPoint, apart: Between | None) -> Estimate | None:
    """Return the logarithm of the throughput (for pings: of the median round-trip time) of both sides' profile rounds.

    Only rounds of observers that do not trace count. Within one run, rounds with an observer of both sides are paired.
    Return None if a side has fewer than two rounds.
    """
    column = "throughput_pps" if point.protocol == "udp" else load.METRIC[point.protocol][0]
    sides = [_speeds(work.observed_rows(point, at), column) for at in (0, 1)]
    common = sides[0].keys() & sides[1].keys()
    if apart is None and len(common) > 1:
        differences = np.array([sides[1][one] - sides[0][one] for one in sorted(common)])
        return work.paired(differences)
    if min(map(len, sides)) < 2:
        return None
    labels = [tuple(run for run, _ in side) for side in sides]
    between = None if apart is None else Between((labels[0], labels[1]), SPEED_SHARE, absolute=True)
    left, right = (np.array(list(side.values())) for side in sides)
    return work.estimate(left, right, between)


def _speeds(rows: pd.DataFrame, column: str) -> dict[tuple[str, str], float]:
    """Return the mean logarithm of each round of each run."""
    own = rows[rows["observer"].isna() | rows["observer"].isin(QUIET)]
    own = own[own[column].gt(0)]
    return {
        (str(run), str(number)): float(np.log(some[column].astype(float)).mean())
        for (run, number), some in own.groupby(["folder", "round"], sort=True)
    }


def _frames(point: ProfiledPoint, apart: Between | None) -> Estimate | None:
    """Return the frames that arrived per gigabyte, from rounds with the kernel's counters; None if these are
    missing."""
    values: list[list[float]] = [[], []]
    runs: list[list[str]] = [[], []]
    for at in (0, 1):
        rows = work.observed_rows(point, at)
        for _, row in rows[rows["observer"].eq("counters")].iterrows():
            pairs = [one for one in observed(row["observed"]).get("loss", []) if one.get("unit") == "frames"]
            size = sum(one.get("received_bytes") or 0 for one in pairs)
            if size:
                values[at].append(sum(one.get("received_count") or 0 for one in pairs) / size * 1e9)
                runs[at].append(str(row["folder"]))
    if point.protocol != "tcp" or min(map(len, values)) < 2:
        return None
    between = None if apart is None else Between((tuple(runs[0]), tuple(runs[1])), FRAMES_SHARE / 2)
    return work.estimate(np.array(values[0]), np.array(values[1]), between)


def _others(point: ProfiledPoint, side: int) -> list[str]:
    """Return the programs outside the experiment that took most CPU time, as the runs of a side recorded them."""
    result: dict[str, float] = {}
    for folder in dict.fromkeys(point.rows[:2][side]["folder"].dropna()):
        try:
            report = run_folder.read_json(Path(folder) / "run.json").get("others")
        except BadInput:
            continue
        for one in report if isinstance(report, list) else ():
            result[str(one.get("name"))] = max(
                result.get(str(one.get("name")), 0.0), float(one.get("cpu_share", 0))
            )
    return sorted(result, key=lambda name: -result[name])


# Candidates


def _candidates(of: Evidence) -> Iterator[Candidate]:
    free = [one for one in of.settings if one.relevant]
    taken: set[str] = set()
    for cause in of.causes:
        matched = tuple(one for one in free if _explains(one, cause))
        taken |= {one.name for one in matched}
        yield _of_code(of, cause, matched)
    if (change := _of_change(of, free)) is not None:
        yield change
    for setting in free:
        if setting.name not in taken and (change is None or setting not in change.settings):
            yield from _of_setting(of, setting)
    yield from _of_loss(of)
    yield from _of_frames(of, free)
    yield from _of_disturbance(of)


def _explains(setting: Setting, cause: causes.Cause) -> bool:
    """Return whether a setting changes the code of a cause."""
    paths = setting.paths
    return any(path.functions.fullmatch(name) for path in paths for name in (cause.function, *cause.below))


def _of_code(of: Evidence, cause: causes.Cause, matched: tuple[Setting, ...]) -> Candidate:
    size = Estimate(
        cause.left_s, cause.right_s, cause.difference_s, (cause.high_s - cause.low_s) / 2, cause.p
    )
    caller = f" below {cause.callers[0]}" if cause.callers else ""
    words = {"new": "new code path", "gone": "code path that is no longer used", "changed": "changed"}[
        cause.change
    ]
    inner = f" (with {', '.join(cause.below)})" if cause.below else ""
    evidence = [("profile", f"{words} {cause.function}{caller}{inner}: {_interval(size)} {_per(of)}")]
    evidence += [("environment", one.words) for one in matched]
    evidence += [("profile", f"{cause.samples_count:,} samples, p = {cause.p:.2g}")]
    sure = 3 if matched else 2 if cause.change != "changed" else 1
    return Candidate(cause.name, sure, tuple(evidence), size, matched, cause)


def _of_change(of: Evidence, free: Sequence[Setting]) -> Candidate | None:
    """Return the candidate for the parameters in which two arms or two points of one run differ, with all their
    effects.

    The rounds are interleaved, so these parameters cause the differences, and the profile shows which code is affected.
    Return None for different topologies or endpoint kinds: there the question is which code differs.
    """
    parameters = [one for one in free if one.parameters]
    if (
        of.apart is not None
        or not parameters
        or any(one.name in ("topology", "endpoint") for one in parameters)
    ):
        return None
    settings = (*parameters, *(one for one in free if not one.parameters))
    evidence = [("environment", one.words) for one in settings[:4]]
    part = switch_work.named(of.parts, of.split.total)
    code = _code_of_change(of, settings) if part is None else None
    if part is not None:
        evidence.insert(0, ("profile", _part_words(of, part)))
    if code is not None:
        evidence.insert(0, ("profile", _code_words(of, code)))
    if (frames := _frames_words(of)) is not None:
        evidence.append(("counters", frames))
    sure = 3 if _effect(of) or (code is not None and any(_explains(one, code) for one in settings)) else 0
    return Candidate(_short(parameters[0]), sure, tuple(evidence), None, settings, code, part)


def _code_of_change(of: Evidence, settings: Sequence[Setting]) -> causes.Cause | None:
    """Return the code through which a change acts.

    That is code that the change is known to affect, or else the largest cause in the direction of the total difference.
    """
    total = of.split.total
    there = [one for one in of.causes if _matters(of, Estimate(0, 0, one.difference_s, 0, 0))]
    known = [one for one in there if any(_explains(setting, one) for setting in settings)]
    along = [one for one in there if total.certain and one.difference_s * total.difference > 0]
    return next(iter([*known, *along]), None)


def _code_words(of: Evidence, code: causes.Cause) -> str:
    """Return `page allocation costs 2 µs [1, 3] more per packet that arrived, 40 % of … (in
    get_page_from_freelist)`."""
    size = Estimate(code.left_s, code.right_s, code.difference_s, (code.high_s - code.low_s) / 2, code.p)
    place = f"{code.function}{f' below {code.callers[0]}' if code.callers else ''}"
    several = code.path is not None and code.path.plural
    verb = ("cost" if code.difference_s > 0 else "save") + "s" * (not several)
    added = " more" if code.change == "changed" and code.difference_s > 0 else ""
    what = {
        "new": f"new code path {place}",
        "gone": f"code path no longer used: {place}",
        "changed": f"in {place}",
    }[code.change]
    return f"{code.name} {verb} {_amount(size)}{added} {_per(of)}{_share(size, of)} ({what})"


def _part_words(of: Evidence, part: switch_work.Part) -> str:
    """Return `sending packets through packet sockets costs 2 µs [1, 3] more per packet that arrived, 40 % of the
    difference, and 1 µs for each copy`."""
    verb, added = ("costs", " more") if part.size.difference > 0 else ("saves", "")
    result = f"{part.name} {verb} {_amount(part.size)}{added} {_per(of)}{_share(part.size, of)}"
    each_s = part.each_copy_s
    return result if each_s is None else f"{result}, {seconds(each_s)} for each copy"


def _frames_words(of: Evidence) -> str | None:
    """Return the frames per gigabyte of both sides in words, or None if they do not differ."""
    frames = of.frames_per_work
    if frames is None or not frames.certain or abs(frames.difference) < FRAMES_SHARE * frames.left:
        return None
    return f"{frames.left:,.3g} → {frames.right:,.3g} frames for each gigabyte that arrived"


def _of_setting(of: Evidence, setting: Setting) -> Iterator[Candidate]:
    """Yield the candidate of a setting whose code does not stand out among all functions; its code is tested by
    itself."""
    best: Estimate | None = None
    where = ""
    for path in setting.paths:
        one = causes.part(of.frames, path, of.apart)
        if (one.left or one.right) and (best is None or one.p < best.p):
            best, where = one, path.name
    evidence = [("environment", setting.words)]
    if best is not None:
        evidence.append(("profile", f"{where}: {_interval(best)} {_per(of)}"))
    certain = best is not None and best.p < 0.05 / max(len(of.settings), 1) and _matters(of, best)
    sure = 1 if setting.parameters or _effect(of) else 0
    sure = 2 if certain and not setting.parameters else sure
    yield Candidate(_short(setting), sure, tuple(evidence), best, (setting,))


def _matters(of: Evidence, size: Estimate) -> bool:
    whole = max(of.split.total.left, of.split.total.right)
    return abs(size.difference) >= LEAST_SHARE * whole


def _of_loss(of: Evidence) -> Iterator[Candidate]:
    spent = of.split.spent
    if not spent.certain or of.split.loss.estimate.half != of.split.loss.estimate.half:
        return
    share = [1 - 1 / value for value in (spent.left, spent.right)]
    text = (
        f"{spent.left:.3g} → {spent.right:.3g} packets sent for each that arrived"
        f" ({units.percent(share[0])} → {units.percent(share[1])} lost)"
    )
    evidence = [("loss", text)]
    where = of.lost_at[1] or of.lost_at[0]
    if where:
        place, most = next(iter(where.items()))
        evidence.append(("counters", f"{units.percent(most)} of the lost ones at {place}"))
    word = "more" if spent.difference > 0 else "fewer"
    yield Candidate(f"{word} packets are lost", 1, tuple(evidence), of.split.loss.estimate)


def _of_frames(of: Evidence, settings: Sequence[Setting]) -> Iterator[Candidate]:
    frames, text = of.frames_per_work, _frames_words(of)
    if frames is None or text is None:
        return
    word = "smaller" if frames.difference > 0 else "larger"
    matched = tuple(
        one for one in settings if any("segment" in path.name or "fragment" in path.name or "GRO" in path.name
                                       for path in one.paths) or "mtu" in one.name or "mss" in one.name
    )  # fmt: skip
    evidence = [("counters", text), *(("environment", one.words) for one in matched)]
    yield Candidate(f"{word} frames", 3 if matched else 2, tuple(evidence), None, matched)


def _of_disturbance(of: Evidence) -> Iterator[Candidate]:
    evidence: list[tuple[str, str]] = []
    if of.apart is None:
        return  # rounds are interleaved: other programs get more time only if an arm leaves them more
    if _apart(of):
        evidence.append(("profile", _foreign_words(of)))
    if abs(of.steal[1] - of.steal[0]) > STOLEN_SHARE:
        left, right = map(units.percent, of.steal)
        evidence.append(
            (
                "steal",
                f"the hypervisor took {right} of the CPU time in {of.names[1]}, {left} in {of.names[0]}",
            )
        )
    if evidence:
        yield Candidate("foreign load", 3, tuple(evidence))


# Words


def _per(of: Evidence) -> str:
    return f"per {of.split.unit.words}"


def _interval(size: Estimate) -> str:
    sign = "+" if size.difference > 0 else ""
    if not np.isfinite(size.half):
        return f"{sign}{seconds(size.difference)}"
    return f"{sign}{seconds(size.difference)} [{seconds(size.low)}, {seconds(size.high)}]"


def _amount(size: Estimate) -> str:
    """Return the size in words, without its sign if it is certain."""
    ends = sorted((size.low, size.high), key=abs) if size.certain else [size.low, size.high]
    if size.certain:
        return f"{seconds(abs(size.difference))} [{seconds(abs(ends[0]))}, {seconds(abs(ends[1]))}]"
    return f"{seconds(size.difference)} [{seconds(ends[0])}, {seconds(ends[1])}]"


def _short(setting: Setting) -> str:
    return setting.name


def _foreign_words(of: Evidence) -> str:
    shares = of.foreign
    at = 1 if shares.right >= shares.left else 0
    names = of.others[at][:2]
    who = f"other processes ({', '.join(names)})" if names else "other processes"
    return (
        f"{who} had {units.percent(shares.right)} of the CPUs in {of.names[1]} and {units.percent(shares.left)} in"
        f" {of.names[0]}"
    )


def _apart(of: Evidence) -> bool:
    """Return whether other programs had a larger share of the CPUs on one side than on the other."""
    foreign = of.foreign
    if not np.isfinite(foreign.difference) or abs(foreign.difference) < APART_SHARE:
        return False
    return foreign.certain or abs(foreign.difference) >= 2 * APART_SHARE


def _disturbed(of: Evidence) -> bool:
    return max(of.foreign.left, of.foreign.right) >= DISTURBED_SHARE or max(of.steal) >= STOLEN_SHARE


def _effect(of: Evidence) -> bool:
    return of.split.total.certain or (of.speed is not None and of.speed.certain)


def _difference(of: Evidence) -> str:
    """Return the total differences in words, or an empty text if nothing differs."""
    total, speed = of.split.total, of.speed
    result = []
    if total.certain:
        word = "more" if total.difference > 0 else "less"
        result.append(f"takes {_amount(total)} {word} CPU {_per(of)} than {of.names[0]}")
    if speed is not None and speed.certain:
        what = "median round-trip time" if of.point.protocol == "ping" else "throughput"
        ratio, low, high = (math.exp(one) for one in (speed.difference, speed.low, speed.high))
        result.append(
            f"has {ratio:.3g} times [{low:.3g}, {high:.3g}] the {what}{'' if result else f' of {of.names[0]}'}"
        )
    return f"{of.names[1]} {' and '.join(result)}" if result else ""


def _bounds(of: Evidence) -> str:
    """Return in words the largest difference that could have gone undetected."""
    total = of.split.total
    bound = max(abs(total.low), abs(total.high))
    share = bound / total.left if total.left > 0 else math.nan
    return f"CPU {_per(of)} differs by less than {seconds(bound)} ({units.percent(share)})"


def _share(size: Estimate, of: Evidence) -> str:
    """Return the candidate's share of the total difference in words, or an empty text if it has none."""
    total = of.split.total
    if not total.certain or total.difference * size.difference <= 0:
        return ""
    share = size.difference / total.difference
    return f", {units.percent(min(share, 1.0))} of the difference"


def _caveat(of: Evidence) -> str:
    """Return what weakens a claim, to end its sentence with."""
    lines = []
    if _disturbed(of):
        if max(of.foreign.left, of.foreign.right) >= DISTURBED_SHARE:
            lines.append(f"{_foreign_words(of)}, so the size is less certain")
        else:
            lines.append(
                f"the hypervisor took {units.percent(max(of.steal))} of the CPU time, so the size is less certain"
            )
    return f" ({'; '.join(lines)})" if lines else ""


# Conclusions


def _concluded(of: Evidence, candidates: list[Candidate]) -> Conclusion:
    order = sorted(
        candidates, key=lambda one: (-_rank(of, one), -abs(one.size.difference if one.size else 0.0))
    )
    disturbance = next((one for one in order if one.name == "foreign load"), None)
    best = next(
        (one for one in order if one is not disturbance and _names(of, one, disturbance is not None)), None
    )
    if best is not None:
        sentence = _claim(of, best) + _caveat(of)
        # The name of a function or a setting keeps its case.
        named_sides = best.settings and sentence.startswith(best.settings[0].name)
        own = bool(named_sides) or (best.cause is not None and best.cause.path is None)
        result = Conclusion(sentence if own else _capital(sentence), best.name, True)
        order = [best, *(one for one in order if one is not best)]
    elif disturbance is not None:
        result = Conclusion(
            _capital(f"{disturbance.evidence[0][1]}, so no other cause is named{_besides(of)}"),
            "foreign load",
            False,
        )
        order = [disturbance, *(one for one in order if one is not disturbance)]
    else:
        result = _withheld(of, order)
    return replace(
        result, candidates=order, settings=of.settings, notes=tuple(_notes(of)), next=tuple(_next(of, result, order)),
        split=of.split, disturbance=_foreign_words(of) if _disturbed(of) else None, parts=of.parts,
    )  # fmt: skip


def _rank(of: Evidence, one: Candidate) -> float:
    """Return the rank of a candidate: evidence from environment and profile together first, then new paths, then the
    rest."""
    parameters = bool(one.settings) and one.settings[0].parameters
    if of.apart is None and parameters and one.size is None:
        return one.sure + 0.5
    return one.sure - (0.5 if parameters and one.cause is None else 0.0)


def _names(of: Evidence, one: Candidate, disturbed: bool) -> bool:
    """Return whether a candidate may be named as the cause."""
    if one.sure < 1:
        return False
    if of.apart is None and one.size is None and one.settings and one.settings[0].parameters:
        return one.sure >= 3
    code = one.cause
    if code is not None:
        if not _matters(of, Estimate(0, 0, code.difference_s, 0, 0)):
            return False
        # Foreign load slows everything down, but no code path appears or vanishes because of it.
        safe = code.change != "changed" and one.sure >= 2
        if disturbed:
            return safe
        return safe or bool(one.settings) or not _disturbed(of)
    if disturbed:
        return False
    if one.settings:
        if all(setting.parameters for setting in one.settings):
            return _effect(of)
        return one.sure >= 2 or _effect(of)
    return _effect(of) and not _disturbed(of) and of.apart is None


def _claim(of: Evidence, best: Candidate) -> str:
    code, whole = best.cause, _difference(of)
    setting = best.settings[0] if best.settings else None
    if of.apart is None and setting is not None and setting.parameters and best.size is None:
        return _claim_of_change(of, best)
    more = f" (and {units.many(len(best.settings) - 1, 'more setting')})" if len(best.settings) > 1 else ""
    sole = "the only known difference between the sides" if _only(of, best) else "the first suspect"
    if code is not None:
        named = setting.words + more if setting is not None and not setting.parameters else ""
        tail = f"; {whole}" if whole else ""
        # What was added, such as a BPF program, is known by its code path. A setting that changed is known by its name.
        if named and setting is not None and ABSENT not in (setting.left, setting.right):
            return f"{named} is {sole}: {_code_words(of, code)}{tail}"
        return f"{_code_words(of, code)}{f'; it is {named}' if named else ''}{tail}"
    if setting is not None:
        inner = ""
        if best.size is not None and best.size.certain:
            inner = f"; {best.evidence[-1][1]}{_share(best.size, of)}"
        return f"{setting.words}{more} is {sole}, and {whole or 'its code differs'}{inner}"
    if best.size is not None and best.name.endswith("lost"):
        made = f"{_amount(best.size)} {_per(of)}{_share(best.size, of)}"
        return f"{best.name}: {best.evidence[0][1]}, which costs {made}; {whole}"
    return f"{best.name}: {best.evidence[0][1]}; {whole}"


def _claim_of_change(of: Evidence, best: Candidate) -> str:
    """Return the claim about two arms of one run whose parameters differ: the effect, and the code that has it."""
    parameters = [one for one in best.settings if one.parameters]
    more = f" (and {units.many(len(parameters) - 1, 'more setting')})" if len(parameters) > 1 else ""
    result = [_difference(of)] if _effect(of) else []
    result += [_part_words(of, best.part)] if best.part is not None else []
    result += [_code_words(of, best.cause)] if best.cause is not None else []
    result += [frames] if (frames := _frames_words(of)) is not None else []
    return f"{parameters[0].words}{more} is the cause: {'; '.join(result)}"


def _only(of: Evidence, best: Candidate) -> bool:
    return all(one in best.settings for one in of.settings if one.relevant)


def _besides(of: Evidence) -> str:
    """Return the setting that also differs and whose effect cannot be judged, or an empty text."""
    differ = [one for one in of.settings if one.relevant and not one.parameters]
    return f"; {differ[0].words} also differs, and its effect cannot be separated" if differ else ""


def _withheld(of: Evidence, order: list[Candidate]) -> Conclusion:
    """Return a conclusion that names no cause but states what is known."""
    differ = [one for one in of.settings if one.relevant and (of.apart is None or not one.parameters)]
    weak = f"; {_foreign_words(of)}" if _disturbed(of) else ""
    if _effect(of):
        runs = " of two runs at different times" if of.apart is not None else ""
        text = f"No cause is named: {_difference(of)}, but no setting differs and no code path stands out{runs}{weak}"
        return Conclusion(text, None, not _disturbed(of) and of.apart is None)
    if differ:
        first = next((one for one in order if one.settings and one.settings[0] in differ), None)
        setting = first.settings[0] if first is not None else differ[0]
        more = f" (and {units.many(len(differ) - 1, 'more setting')})" if len(differ) > 1 else ""
        size = first.size if first is not None else None
        if size is not None and np.isfinite(size.half):
            bound, where = (
                max(size.high, -size.low),
                f" ({first.evidence[-1][1].partition(':')[0]})" if first else "",
            )
        else:
            bound, where = max(abs(of.split.total.low), abs(of.split.total.high)), ""
        verb, whose = ("differ", "their") if more else ("differs", "its")
        text = f"{setting.words}{more} {verb}; {whose} cost{where} is below {seconds(bound)} {_per(of)}"
        return Conclusion(f"{text}: no effect was seen{weak}", setting.name, False)
    text = f"No difference between {of.names[1]} and {of.names[0]} was seen: no setting differs, and {_bounds(of)}"
    return Conclusion(f"{text}{weak}", None, False)


def _capital(text: str) -> str:
    """Start a sentence with a capital letter, unless it starts with a name."""
    first = text.partition(" ")[0]
    return (
        text
        if any(mark in first for mark in "._/:0123456789") or first[:1].isupper()
        else text[:1].upper() + text[1:]
    )


def _notes(of: Evidence) -> Iterator[str]:
    if of.apart is not None and of.apart.shown:
        yield (
            "Each side has several runs at different times. The intervals are over runs and include the differences"
            " between runs."
        )
    elif of.apart is not None:
        yield (
            "Two runs, measured at different times: each interval includes what two runs of the same differ by, taken"
            f" to be {units.percent(BETWEEN_SHARE)} of a cost (standard deviation), because a single run a side does"
            " not show it. Name several runs of a side as RUN+RUN, or measure both as arms of one run."
        )
    if _disturbed(of):
        yield f"Disturbed: {_foreign_words(of)}."


def _next(of: Evidence, result: Conclusion, order: Sequence[Candidate]) -> Iterator[str]:
    """Yield the steps that would decide between the candidates, with their commands."""
    row = of.point.rows[1].iloc[0]
    rerun = f"labkit run datapaths topology={_topology(of, 1)} protocol={of.point.protocol}"
    rerun += f" length_bytes={row['length_bytes']:g}" if pd.notna(row["length_bytes"]) else ""
    rerun += " rounds=1 whole_runs=1"
    observers = {str(one) for at in (0, 1) for one in of.point.rows[:2][at]["observer"].dropna()}
    if of.apart is not None:
        changes = [
            words for one in of.settings if one.relevant and not one.parameters and (words := _as_change(one))
        ]
        text = "Compare both as arms of one run, whose rounds are interleaved"
        if changes:
            yield f"{text}: {rerun} 'change=other: {' and '.join(changes[:4])}' observe=perf_record,counters"
        elif _topology(of, 0) != _topology(of, 1):
            both_arms = rerun.replace(_topology(of, 1), f"{_topology(of, 0)},{_topology(of, 1)}", 1)
            yield f"{text}: {both_arms} observe=perf_record,counters"
        else:
            form = "with the difference as change=NAME: KIND OPTIONS at PLACE"
            yield f"{text}, {form}; or repeat both runs and name them as RUN+RUN"
    if _disturbed(of):
        yield "Repeat both runs while nothing else uses the CPUs: labkit doctor names the programs that do"
    if of.parts and "switch" not in observers:
        yield f"To see the actions of the switch's flows, observe the switch: {rerun} observe=perf_record,switch"
    if "counters" not in observers:
        text = "To see where packets are lost and how large they are, record the kernel's counters"
        yield f"{text}: {rerun} observe=perf_record,counters"
    functions = [
        one.cause.function for one in order if one.cause is not None and one.cause.change == "changed"
    ][:3]
    if functions and not result.claims:
        yield (
            f"To see how long single calls take, time them: {rerun} observe=function_times"
            f" functions={','.join(functions)}"
        )
    if not result.claims and not _disturbed(of):
        count = 4 * max(map(len, of.rounds))
        yield f"More rounds detect a smaller difference: {rerun} observe=perf_record,counters profile_rounds={count}"


def _topology(of: Evidence, side: int) -> str:
    """Return a side's topology as a command has it: its name, or a placeholder for the file of a network of one's
    own."""
    rows = of.point.rows[:2][side]
    if "network" in rows and rows["network"].notna().any():
        return NETWORK_FILE
    return environment.built(of.point, side)


def _as_change(setting: Setting) -> str:
    """Return a setting as an arm's change, or an empty text if no arm can have it as a change."""
    if ABSENT in (setting.left, setting.right) or " or " in setting.right:
        return ""
    at = "both" if {"client", "server"} <= set(setting.places) else next(
        (one for one in setting.places if one in ("client", "server", "between")), ""
    )  # fmt: skip
    if setting.name.startswith("sysctl net.") and at:
        return (
            f"sysctl {setting.name.removeprefix('sysctl ').replace('.*.', '.all.')}={setting.right} at {at}"
        )
    _interface, _, feature = setting.name.partition(" offload ")
    if feature and at:
        return f"offload {feature} {setting.right} at {at}"
    if setting.name.endswith(" mtu") and at:
        return f"mtu {setting.right} at {at}"
    return ""
