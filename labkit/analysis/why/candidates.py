"""Find the possible causes of a difference, each with the evidence for it (`labkit why`)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from labkit.analysis import protocols
from labkit.analysis.flame.significance import CLAIM_SHARE, Estimate
from labkit.analysis.why import causes, code_paths, phrases, switch_work
from labkit.analysis.why.environment import ABSENT, RULES, Setting
from labkit.analysis.why.evidence import DISTURBED_SHARE, Evidence
from labkit.common import units

FOREIGN_LOAD = "foreign load"  # the candidate of other programs
IDLE_BELOW = 0.9  # of the time of all CPUs: a program that wants to run gets a CPU
AT_SOCKET = ("UDP socket", "left unread in the socket")  # the ends of places where a program was too slow
FOREIGN_AT_TIMES = "foreign load at times"  # of other programs that ran in some rounds only
FRAMES = {True: "smaller frames", False: "larger frames"}  # candidates, by whether there are more of them
RELAYING = "relaying all data in user space"  # the candidate of a program between the ends
SEGMENTATION = "tcp-segmentation-offload"  # without it, the sender segments before the path
GSO_BYTES = 65536  # of a packet of TCP before segmentation (GSO_LEGACY_MAX_SIZE, linux/netdevice.h)


@dataclass(frozen=True)
class Candidate:
    """A possible cause.

    strength: how strong the evidence is, 0 (none) to 3 (strong), by which candidates are ordered. evidence: pairs of a
    source and a finding. size: seconds per unit that arrived with its interval, or None if unknown. part: the kind of a
    switch's work that a change of its options affects most. place: the code that `size` is about, if it was tested by
    itself.
    """

    name: str
    strength: int
    evidence: tuple[tuple[str, str], ...]
    size: Estimate | None = None
    settings: tuple[Setting, ...] = ()
    cause: causes.Cause | None = None
    part: switch_work.Part | None = None
    place: str = ""


def find(evidence: Evidence) -> Iterator[Candidate]:
    """Yield all candidates."""
    relevant = [one for one in evidence.settings if one.can_affect_result]
    run_differences = _run_differences(evidence, relevant)
    matched_names: set[str] = set()
    for cause in evidence.causes:
        matched = tuple(one for one in relevant if _explains(one, cause))
        by_timing = cause.path is not None and cause.path.depends_on_timing
        if not matched and cause.change != "changed" and not by_timing and not evidence.is_disturbed:
            # The packets of other programs add code, too.
            matched = run_differences or _only_known_difference(evidence, relevant)
        matched_names |= {one.name for one in matched}
        yield _code_candidate(evidence, cause, matched)
    change = _change_candidate(evidence, relevant) or _run_difference_candidate(evidence, run_differences)
    if change is not None:
        yield change
    for setting in relevant:
        if setting.name not in matched_names and (change is None or setting not in change.settings):
            yield from _setting_candidate(evidence, setting)
    for setting in evidence.settings:
        if setting.outside and setting.relevant:
            yield Candidate(setting.name, 0, (("environment", setting.description),), settings=(setting,))
    yield from _loss_candidate(evidence, relevant)
    yield from _frames_candidate(evidence, relevant)
    if evidence.relay is not None:
        yield _relay_candidate(evidence, evidence.relay)
    yield from _disturbance_candidate(evidence)


def _explains(setting: Setting, cause: causes.Cause) -> bool:
    """Return whether a setting changes the code of a cause."""
    own = [cause.path, *map(code_paths.path_of_function, (cause.function, *cause.below))]
    return any(path in own for path in setting.paths)


def _only_known_difference(evidence: Evidence, relevant: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the only setting in which two runs differ, if it may bring code that labkit does not expect of it.

    That is so if labkit does not know the code that the setting changes, or if the speed differs: a small window, for
    example, makes programs wait, and waiting has code of its own.
    """
    if evidence.run_variation is None or len(relevant) != 1 or relevant[0].requested:
        return ()
    return (relevant[0],) if not relevant[0].paths or evidence.speed_differs else ()


def slows_down(setting: Setting) -> bool:
    """Return whether a setting makes programs wait or packets be dropped, so that the load itself needs less CPU
    time."""
    return any(path.depends_on_timing or path.name == code_paths.DROPPING for path in setting.paths)


def _code_candidate(evidence: Evidence, cause: causes.Cause, matched: tuple[Setting, ...]) -> Candidate:
    caller = f" below {cause.callers[0]}" if cause.callers else ""
    changes = {"new": "new code path", "gone": "code path that is no longer used", "changed": "changed"}
    inner = f" (with {', '.join(cause.below)})" if cause.below else ""
    size = f"{phrases.interval(cause.size)} {phrases.per_unit(evidence)}"
    findings = [("profile", f"{changes[cause.change]} {cause.function}{caller}{inner}: {size}")]
    findings += [("environment", one.description) for one in matched]
    findings += [("profile", f"{cause.samples_count:,} samples, p = {cause.size.p:.2g}")]
    strength = 3 if matched else 2 if cause.change != "changed" else 1
    strength = strength if acts_along(evidence, matched, cause.difference_s) else 0
    return Candidate(cause.name, strength, tuple(findings), cause.size, matched, cause)


def _change_candidate(evidence: Evidence, relevant: Sequence[Setting]) -> Candidate | None:
    """Return the candidate for the parameters in which two arms or two points of one run differ, with all their
    effects.

    The rounds are interleaved, so these parameters cause the differences, and the profile shows which code is affected.
    Return None for different topologies or endpoint kinds: there the question is which code differs.
    """
    requested = [one for one in relevant if one.requested]
    asks_for_code = any(one.name in ("topology", "endpoint") for one in requested)
    if evidence.run_variation is not None or not requested or asks_for_code:
        return None
    requested = _explaining_first(evidence, requested)
    settings = (*requested, *(one for one in relevant if not one.requested))
    findings = [("environment", one.description) for one in settings[:4]]
    part = switch_work.main_part(evidence.parts, evidence.split.total)
    if part is not None and not explains_direction(evidence, part.size.difference):
        part = None
    if part is not None:
        findings.insert(0, ("profile", phrases.switch_part(evidence, part)))
    code = _code_of_change(evidence, settings) if part is None else None
    if code is not None:
        findings.insert(0, ("profile", phrases.code_path(evidence, code)))
    if (frames := phrases.frames(evidence)) is not None:
        findings.append(("counters", frames))
    shown = (
        evidence.has_effect
        or _code_shows_effect(evidence, code, settings)
        or (part is not None and part.size.p < CLAIM_SHARE / len(evidence.parts))
    )
    strength = 3 if shown else 0
    return Candidate(requested[0].name, strength, tuple(findings), None, settings, code, part)


def _explaining_first(evidence: Evidence, requested: Sequence[Setting]) -> list[Setting]:
    """Return the effects of a function in the order of the code that they explain; other changes have an order.

    Nobody says which of its effects a function was called for.
    """
    if not all(one.name.startswith("function ") for one in requested):
        return list(requested)
    code = [one for one in evidence.causes if evidence.matters(one.difference_s)]

    def order(one: Setting) -> int:
        return next((at for at, each in enumerate(code) if _explains(one, each)), len(code))

    return sorted(requested, key=order)


def _code_shows_effect(evidence: Evidence, code: causes.Cause | None, settings: Sequence[Setting]) -> bool:
    """Return whether code shows an effect of the parameters in which two arms of one run differ, even if the total
    difference is uncertain.

    Nothing else differs between such arms. But other programs also change what code costs.
    """
    if code is None:
        return False
    explained = any(_explains(one, code) for one in settings)
    return explained or not evidence.is_disturbed or code.change != "changed"


def explains_all(setting: Setting) -> bool:
    """Return whether a setting that differs between two runs can explain all other differences by itself.

    True for another kernel or machine, which has other code and defaults, and for a parameter of the load. False for
    the topology and the kind of endpoint, because there the question is about their code.
    """
    return setting.concerns_machine or (setting.requested and setting.name not in ("topology", "endpoint"))


def _run_differences(evidence: Evidence, relevant: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the kernel, the machine and the parameters in which two runs differ; no parameters if the question is
    about two topologies or kinds of endpoints, or about one run (`_change_candidate`)."""
    code = any(one.requested and not explains_all(one) for one in relevant)
    result = [one for one in relevant if explains_all(one)]
    if code or evidence.run_variation is None:
        result = [one for one in result if one.concerns_machine]
    return tuple(sorted(result, key=lambda one: one.requested))


def _run_difference_candidate(evidence: Evidence, settings: tuple[Setting, ...]) -> Candidate | None:
    """Return the candidate for these settings, with the code through which they act, or None if there are none."""
    if not settings:
        return None
    findings = [("environment", one.description) for one in settings[:4]]
    code = _code_of_change(evidence, settings)
    if code is not None and evidence.is_disturbed and not any(_explains(one, code) for one in settings):
        code = None  # other programs also change what code costs
    if code is not None:
        findings.insert(0, ("profile", phrases.code_path(evidence, code)))
    return Candidate(settings[0].name, 3 if evidence.has_effect else 0, tuple(findings), None, settings, code)


def _code_of_change(evidence: Evidence, settings: Sequence[Setting]) -> causes.Cause | None:
    """Return the code through which a change acts.

    That is code that the change is known to affect, or else the largest cause. If the total difference is certain, the
    code acts in its direction.
    """
    # Code that depends on timing differs between two runs for no reason of the settings.
    there = [
        one
        for one in evidence.causes
        if evidence.matters(one.difference_s)
        and (evidence.run_variation is None or one.path is None or not one.path.depends_on_timing)
    ]
    explained = [one for one in there if any(_explains(setting, one) for setting in settings)]
    explained += _expected_causes(evidence, settings)

    along = (one for one in [*explained, *there] if acts_along(evidence, settings, one.difference_s))
    return next(along, None)


def _expected_causes(evidence: Evidence, settings: Sequence[Setting]) -> list[causes.Cause]:
    """Return the code paths that the requested changes are known to affect, if they differ when tested by themselves.

    All functions together need stronger evidence, which a small cost does not have.
    """
    if evidence.polls:
        return []
    paths = {path.name: path for one in settings if one.requested for path in one.paths}
    made = (causes.path_cause(evidence.frames, path) for path in paths.values())
    there = [one for one in made if one is not None]
    corrected = [replace(one, size=replace(one.size, p=min(one.size.p * len(paths), 1.0))) for one in there]
    shown = [one for one in corrected if one.size.certain and evidence.matters(one.difference_s)]
    return sorted(shown, key=lambda one: one.size.p)


def _setting_candidate(evidence: Evidence, setting: Setting) -> Iterator[Candidate]:
    """Yield the candidate of a setting whose code does not stand out among all functions; its code is tested by
    itself."""
    paths = setting.paths if not evidence.polls else ()
    sizes = [(causes.part(evidence.frames, path), path.name) for path in paths]
    tested = [one for one in sizes if one[0].left or one[0].right]
    best, where = min(tested, key=lambda one: one[0].p, default=(None, ""))
    findings = [("environment", setting.description)]
    if best is not None:
        # The smallest p value of several settings and of their paths is small by chance more often (Bonferroni).
        best = replace(best, p=min(best.p * len(tested) * max(len(evidence.settings), 1), 1.0))
        findings.append(("profile", f"{where}: {phrases.interval(best)} {phrases.per_unit(evidence)}"))
    certain = best is not None and best.certain and evidence.matters(best.difference)
    # A bound on the CPU time of its code says nothing about a setting that makes packets wait.
    bounded = best is not None and not evidence.matters(max(best.high, -best.low))
    waits = any(path.depends_on_timing for path in setting.paths)
    excluded = bounded and not (waits and evidence.speed_differs)
    strength = 1 if setting.requested or (evidence.has_effect and not excluded) else 0
    strength = 2 if certain and not setting.requested else strength
    yield Candidate(setting.name, strength, tuple(findings), best, (setting,), place=where)


def _loss_candidate(evidence: Evidence, relevant: Sequence[Setting]) -> Iterator[Candidate]:
    spent = evidence.split.spent
    if not spent.certain or math.isnan(evidence.split.loss.half):
        return
    side = int(spent.difference > 0)  # the one that loses more
    place, most = next(iter(evidence.loss_by_hop[side].items()), ("", 0.0))
    by_rules = bool(place) and not place.endswith(AT_SOCKET)  # rules drop on the way to a socket
    matched = tuple(
        one
        for one in relevant
        if any(path.name == code_paths.DROPPING for path in one.paths)
        or (by_rules and RULES.match(one.name) and (one.left, one.right)[side] not in (ABSENT, "none"))
    )
    share = [1 - 1 / value for value in (spent.left, spent.right)]
    text = (
        f"{units.digits(spent.left)} → {units.digits(spent.right)} packets sent for each that arrived"
        f" ({units.percent(share[0])} → {units.percent(share[1])} lost)"
    )
    findings = [("loss", text)]
    if place:
        findings.append(("counters", f"{units.percent(most)} of the lost ones at {place}"))
    findings += [("environment", one.description) for one in matched]
    word, loss = "more" if spent.difference > 0 else "fewer", evidence.split.loss
    clear = evidence.matters(loss.difference)
    strength = (3 if matched else 1) if clear and explains_direction(evidence, loss.difference) else 0
    yield Candidate(f"{word} packets are lost", strength, tuple(findings), loss, matched)


def effect_of_loss(evidence: Evidence) -> tuple[float, str] | None:
    """Return what lost packets cost per unit that arrived, in seconds and in words; None unless that is certain and in
    the direction of the difference."""
    one = next(_loss_candidate(evidence, ()), None)
    if one is None or one.size is None or one.strength == 0:
        return None
    return one.size.difference, f"{one.name}, which {phrases.effect(evidence, one.size)}"


def _frames_candidate(evidence: Evidence, settings: Sequence[Setting]) -> Iterator[Candidate]:
    """Yield the candidate of smaller or larger frames, as the counters say, or without them the clients' offloads."""
    frames, text, offload = evidence.frames_per_work, phrases.frames(evidence), _segmentation(evidence)
    size = _common_functions(evidence)
    if frames is not None and text is not None:
        more, findings = frames.difference, [("counters", text)]
    elif frames is None and offload is not None and size is not None:
        more, findings = (1.0 if offload.right == "off" else -1.0), []
    else:
        return
    matched = tuple(
        one for one in settings if any("segment" in path.name or "fragment" in path.name or "GRO" in path.name
                                       for path in one.paths) or "mtu" in one.name or "mss" in one.name
    )  # fmt: skip
    if offload is not None and not any(one.name.endswith(SEGMENTATION) for one in matched):
        matched = (offload, *matched)
    findings += [("environment", one.description) for one in matched]
    explains = explains_direction(evidence, more)
    differs = evidence.has_effect or evidence.verdict is not None
    strength = 3 if explains and matched else 2 if explains and differs else 0
    place = "the code that both sides run" if size else ""
    yield Candidate(FRAMES[more > 0], strength, tuple(findings), size, matched, place=place)


def _relay_candidate(evidence: Evidence, relay: switch_work.Part) -> Candidate:
    """Return the candidate of a program that relays all data, with the kinds of work that differ most."""
    size, more = relay.size, relay.size.difference
    kinds = [one for one in evidence.parts if one.name in switch_work.RELAY_WORK]
    findings = [("profile", phrases.switch_part(evidence, one)) for one in (relay, *kinds[:3])]
    shown = size.certain and evidence.matters(more) and explains_direction(evidence, more)
    is_most = evidence.cost_differs and more / evidence.split.total.difference > 0.5
    strength = 3 if shown and is_most else 2 if shown else 0
    return Candidate(RELAYING, strength, tuple(findings), size, place="the relay")


def _segmentation(evidence: Evidence) -> Setting | None:
    """Return the segmentation offload of TCP if the clients' rows say that one side alone has it.

    With an MTU of which one packet before segmentation has less than two, it makes no frame smaller.
    """
    left, right = (
        "".join({"on" if SEGMENTATION in names.split() else "off" for names in rows["offloads"].dropna()})
        for rows in evidence.point.rows[:2]
    )
    is_bulk = protocols.find(evidence.point.protocol).work == "gigabyte"
    is_split = all(rows["mtu_bytes"].le(GSO_BYTES / 2).all() for rows in evidence.point.rows[:2])
    if {left, right} != {"on", "off"} or not is_bulk or not is_split:
        return None
    return Setting(f"offload {SEGMENTATION}", left, right, ("client",))


def _common_functions(evidence: Evidence) -> Estimate | None:
    """Return the time of the code that both sides run, if it carries most of the difference: it runs more often."""
    if not evidence.cost_differs:
        return None
    size = causes.common_functions(evidence.frames)
    return size if size.certain and size.difference / evidence.split.total.difference > 0.5 else None


def explains_direction(evidence: Evidence, more: float) -> bool:
    """Return whether more work per packet (positive) or less work (negative) can explain the difference.

    The side with more work takes more CPU time. If the CPU times do not certainly differ, it is slower, by the profiled
    rounds or else by the verdict.
    """
    if evidence.cost_differs:
        return evidence.split.total.difference * more > 0
    if evidence.speed is not None and evidence.speed_differs:
        worse = -1 if evidence.point.judged.higher_is_better else 1
        return worse * evidence.speed.difference * more > 0
    return evidence.verdict is None or (more > 0) == evidence.verdict.is_right_slower


def acts_along(evidence: Evidence, settings: Sequence[Setting], difference_s: float) -> bool:
    """Return whether code whose time differs by this can be the cause.

    Where a setting makes programs wait, the slower side may well take less CPU time.
    """
    waits = any(slows_down(one) for one in settings) and not evidence.cost_differs
    return waits or explains_direction(evidence, difference_s)


def _disturbance_candidate(evidence: Evidence) -> Iterator[Candidate]:
    findings: list[tuple[str, str]] = []
    if evidence.run_variation is None and not _ran_beside_one_side(evidence):
        return  # rounds are interleaved: other programs get more time if an arm leaves them more
    foreign, steal = evidence.foreign, evidence.steal
    explains = evidence.explained_by(foreign.left, foreign.right) and not _takes_what_is_left(evidence)
    counts = evidence.has_effect or abs(foreign.difference) >= DISTURBED_SHARE
    if counts and evidence.foreign_differs and explains:
        findings.append(("profile", phrases.foreign_load(evidence)))
    if abs(steal[1] - steal[0]) > DISTURBED_SHARE and evidence.explained_by(*steal):
        left, right = map(units.percent, steal)
        names = evidence.names
        text = f"the hypervisor took {right} of the CPU time in {names[1]}, {left} in {names[0]}"
        findings.append(("steal", text))
    if findings:
        yield Candidate(FOREIGN_LOAD, 3, tuple(findings))
    elif explains and (text := phrases.foreign_at_times(evidence)):
        yield Candidate(FOREIGN_AT_TIMES, 1, (("profile", text),))


def _ran_beside_one_side(evidence: Evidence) -> bool:
    """Return whether other programs ran in the rounds of one arm only, although the other arm left CPUs idle, too."""
    few, many = sorted((evidence.foreign.left, evidence.foreign.right))
    ran = evidence.foreign_differs and few < many / 2
    return ran and evidence.has_effect and max(evidence.busy) < IDLE_BELOW


def _takes_what_is_left(evidence: Evidence) -> bool:
    """Return whether the same busy program runs on both sides and takes the CPU time that a slower load leaves.

    Then its larger share is a consequence. A setting that slows the load down must differ, and the speed.
    """
    left, right = (set(list(side)[:2]) for side in evidence.others)  # the busiest first
    both = min(evidence.foreign.left, evidence.foreign.right) >= DISTURBED_SHARE
    slower = any(slows_down(one) for one in evidence.settings if one.can_affect_result)
    return bool(left & right) and both and slower and evidence.speed_differs
