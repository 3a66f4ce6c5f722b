"""Draw the conclusion of `labkit why`.

One sentence states the cause, its size and its share of the difference, or what is known and what is not. Then follow
all candidates with their evidence, and the steps that would decide between them.

A conclusion excludes other explanations first. If other programs disturbed one side more than the other, foreign load
is the first cause. Between two runs, every interval includes the run-to-run variation.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from labkit.analysis import load
from labkit.analysis.flame.function_table import seconds
from labkit.analysis.flame.load_profiles import WITHIN
from labkit.analysis.flame.significance import BETWEEN_SHARE, TESTS_COUNT
from labkit.analysis.protocols import PROTOCOLS
from labkit.analysis.why import candidates, environment, phrases, sections, switch_work, verdict, work
from labkit.analysis.why.candidates import FOREIGN_LOAD, Candidate
from labkit.analysis.why.environment import ABSENT, Setting
from labkit.analysis.why.evidence import Evidence, gather
from labkit.analysis.why.sections import CountedLoss
from labkit.analysis.why.selection import ProfiledPoint
from labkit.analysis.why.work import Split
from labkit.common import schema, units
from labkit.common.errors import BadInput
from labkit.system.machine import sysctl_journal

NETWORK_FILE = "FILE.yaml"  # the file of a network of one's own, because a row has only the network's name
# The parameters that say what is measured, each with its column of a row, in the order of a command
PARAMETERS = {name: name for name in ("where", "endpoint", *schema.names(writer=("rows",), use="group"))}
# The same of a search for a rate
SEARCHED = {
    "where": "where", "endpoint": "endpoint", "guest": "guest", "pairs": "pairs", "mtu_bytes": "mtu_bytes",
    "family": "family", "frame_bytes": "frame", "flows": "flows_count", "vlan": "vlan",
    "burst_frames": "burst_frames",
}  # fmt: skip
# Each is the usual one of its protocols.
USUAL_GENERATORS = {one.generator for one in PROTOCOLS.values()}
VALUE = r"[A-Za-z0-9_ .,:-]{1,200}"
OBSERVED = "observe=perf_record,counters"


@dataclass(frozen=True)
class Conclusion:
    """The conclusion about one point.

    sentence: the conclusion itself. cause: the name of the cause, or None if none is named. claims: whether the
    sentence claims a cause of the difference. has_effect: whether the sides certainly differ in CPU time or speed, if
    this is the only comparison. candidates: strongest first. notes: caveats. next: the steps that would
    decide, with their commands. p: the p value of the hypothesis that nothing differs. parts: the kinds of work of an
    Open vSwitch or a relay, if a side has one. round_trips: the parts of a round trip's time, if that is known.
    """

    sentence: str
    cause: str | None
    claims: bool
    candidates: Sequence[Candidate] = ()
    settings: Sequence[Setting] = ()
    notes: Sequence[str] = ()
    next: Sequence[str] = ()
    split: Split | None = None
    p: float = 1.0
    parts: Sequence[switch_work.Part] = ()
    has_effect: bool = False
    round_trips: work.RoundTrips | None = None


def conclude(point: ProfiledPoint, processes: str = WITHIN) -> Conclusion:
    """Return the conclusion about one point."""
    names = point.sides[0].name, point.sides[1].name
    settings = environment.differences(point)
    try:
        rounds = work.rounds(point, 0, processes), work.rounds(point, 1, processes)
    except BadInput as error:
        return _conclude_without_profiles(point, settings, str(error))
    if min(map(len, rounds)) < 2:
        few = "a side has a single profiled round: measure both with profile_rounds=5 or more"
        return _conclude_without_profiles(point, settings, few)
    control = work.rounds(point, 2, processes) if len(point.profiled_sides()) > 2 else ()
    evidence = gather(point, names, rounds, control, settings)
    if evidence.cut is not None:
        return _conclude_with_cut_stacks(evidence, evidence.cut)
    return _conclude(evidence, list(candidates.find(evidence)))


def _conclude_without_profiles(point: ProfiledPoint, settings: Sequence[Setting], why: str) -> Conclusion:
    """Return the conclusion from the counters if the loss differs: no profile is needed to know where packets go."""
    loss = _counted_loss(point, settings, sections.loss_answer(point))
    if loss is not None and loss.is_certain:
        return _conclude_from_loss(loss, settings)
    text = f"No conclusion about {' against '.join(side.name for side in point.sides[1::-1])}: {why}"
    if (measured := verdict.of_point(point)) is not None and measured.is_certain:
        text = f"No cause is named: {measured.sentence}, but {why}"
    text = phrases.join_sentences([text, loss.sentence if loss is not None else ""])
    differ = [one for one in settings if one.relevant]
    text += f"; {phrases.settings(differ)} differs" if differ else ""
    return Conclusion(text, None, False, settings=settings)


def _counted_loss(
    point: ProfiledPoint, settings: Sequence[Setting], of_all: CountedLoss | None = None
) -> CountedLoss | None:
    """Return the loss of all hops, or else at one where settings act, unless the verdict says otherwise.

    At a socket all programs that read too slowly lose packets.
    """
    hops = work.loss_by_hop(point.rows[0]) | work.loss_by_hop(point.rows[1])
    places = [hop for hop in hops if _acting(hop, settings) and not hop.endswith(candidates.AT_SOCKET)]
    if (loss := of_all or sections.loss_answer(point, places)) is None:
        return None
    measured = verdict.of_point(point)
    agrees = measured is None or not measured.is_certain or measured.is_right_slower == loss.is_more
    return loss if agrees else None


def _acting(hop: str, settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings that act at the place of a hop; without a hop, all that are relevant."""
    at = re.split(r"\W", hop)[0]
    at = at if at in ("", "client", "server") else "between"
    return [one for one in settings if one.relevant and (not at or at in one.places)]


def _conclude_from_loss(loss: CountedLoss, settings: Sequence[Setting]) -> Conclusion:
    name = f"{'more' if loss.is_more else 'fewer'} packets are lost"
    differ = _acting(loss.place, settings)
    known = [("counters", loss.sentence), *(("environment", one.description) for one in differ[:4])]
    found = Candidate(name, 3, tuple(known), settings=tuple(differ))
    text = f"{loss.sentence}; {phrases.settings(differ)} differs" if differ else loss.sentence
    return Conclusion(text, name, True, [found], settings, p=TESTS_COUNT * loss.p, has_effect=True)


def _conclude_with_cut_stacks(evidence: Evidence, cut: Setting) -> Conclusion:
    """Return the conclusion if one side's stacks lack their outer functions: then most functions seem to differ."""
    text = (
        f"No cause is named: the setting {phrases.setting(cut)} differs and cuts off the stacks of the profiles, so the"
        " functions of the two sides cannot be compared"
    )
    text = phrases.join_sentences([text, _measured(evidence)])
    step = f"Set kernel.perf_event_max_stack={max(int(cut.left), int(cut.right))} and repeat both runs"
    return Conclusion(text, None, False, settings=evidence.settings, next=(step,), split=evidence.split)


def _conclude(evidence: Evidence, all_candidates: list[Candidate]) -> Conclusion:
    def place(one: Candidate) -> tuple[float, ...]:
        size = abs(one.size.difference) if one.size else 0.0
        return -_rank(evidence, one), -_plausibility(evidence, one), -size

    order = sorted(all_candidates, key=place)
    disturbance = next((one for one in order if one.name == FOREIGN_LOAD), None)
    is_disturbed = disturbance is not None
    may_be = (one for one in order if one is not disturbance and _names(evidence, one, is_disturbed))
    best = next(may_be, None)
    lost = _counted_loss(evidence.point, evidence.settings)
    lost = lost if lost is not None and lost.is_certain else None
    if best is not None:
        counted = lost.sentence if lost is not None and candidates.effect_of_loss(evidence) is None else ""
        claim = [*_claim(evidence, best), counted, _measured(evidence), phrases.caveat(evidence)]
        sentence = phrases.join_sentences(claim)
        named = best.cause is not None and best.cause.path is None  # the name of a function keeps its case
        result = Conclusion(sentence if named else phrases.capitalised(sentence), best.name, True)
        order = [best, *(one for one in order if one is not best)]
    elif (other := disturbance or _at_times(evidence, order)) is not None:
        text = phrases.capitalised(f"{other.evidence[0][1]}, so no other cause is named")
        every = _counted_loss(evidence.point, evidence.settings, sections.loss_answer(evidence.point))
        beside = ["" if every is None else every.sentence, _besides(evidence), _measured(evidence)]
        sentence = phrases.join_sentences([text, *beside])
        result = Conclusion(sentence, FOREIGN_LOAD, False)
        order = [other, *(one for one in order if one is not other)]
    elif lost is not None:
        result = _conclude_from_loss(lost, evidence.settings)
        whole = phrases.total_difference(phrases.difference(evidence)) or phrases.bounds(evidence)
        disturbed = phrases.capitalised(phrases.disturbance(evidence))
        claim = [result.sentence, whole, _measured(evidence), disturbed]
        result = replace(result, sentence=phrases.join_sentences(claim))
        [found] = result.candidates
        order = [found, *(one for one in order if one.strength or one.settings != found.settings)]
    else:
        result = _withheld(evidence, order)
    return replace(
        result,
        sentence=phrases.join_sentences([result.sentence, phrases.round_trip(evidence)]),
        round_trips=evidence.round_trips,
        candidates=order,
        settings=evidence.settings,
        notes=tuple(_notes(evidence, result.sentence)),
        next=tuple(_next_steps(evidence, result.claims, order)),
        split=evidence.split,
        p=min([evidence.p, result.p, *(p for one in order[:1] for p in _further_p_values(evidence, one))]),
        parts=evidence.parts,
        has_effect=evidence.has_effect or result.has_effect,
    )


def _at_times(evidence: Evidence, order: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate of other programs that ran in some rounds only, or None.

    Few such rounds do not hide that a setting has no effect.
    """
    if not evidence.has_effect and any(one.can_affect_result for one in evidence.settings):
        return None
    return next((one for one in order if one.name == candidates.FOREIGN_AT_TIMES), None)


def _further_p_values(evidence: Evidence, one: Candidate) -> Iterator[float]:
    """Yield the p values of tests that a candidate's claim rests on and that are not among those of `evidence.p`."""
    if one.cause is not None and one.cause.expected:
        yield TESTS_COUNT * one.cause.size.p
    if one.part is not None:
        yield TESTS_COUNT * len(evidence.parts) * one.part.size.p
    if one.place and one.size is not None:
        yield TESTS_COUNT * one.size.p
    if one.name.endswith("lost"):
        yield TESTS_COUNT * evidence.split.spent.p
    if one.name in candidates.FRAMES.values() and evidence.frames_per_work is not None:
        yield TESTS_COUNT * evidence.frames_per_work.p


def _rank(evidence: Evidence, one: Candidate) -> float:
    """Return the rank of a candidate: evidence from environment and profile together first, then new paths, then the
    rest."""
    if _is_change(evidence, one) or _is_run_difference(evidence, one):
        return one.strength + 0.5
    of_most_code = one.size is not None and one.name in (*candidates.FRAMES.values(), candidates.RELAYING)
    if (one.strength == 3 and of_most_code) or (one.strength > 0 and _is_largest_loss(evidence, one)):
        return 3.25  # the largest part of the difference, before code that explains a smaller one
    is_parameter = bool(one.settings) and one.settings[0].requested
    if one.cause is None and one.settings:
        # Between two runs a setting that differs says more than code that takes longer for no known reason, and one
        # that slows the load down says more than new code, because waiting has code of its own.
        if evidence.run_variation is None or is_parameter:
            return one.strength + (-0.5 if is_parameter else 0.0)
        slower = one.strength > 0 and evidence.speed_differs and candidates.slows_down(one.settings[0])
        return one.strength + (1.5 if slower else 0.25)
    return one.strength


def _is_largest_loss(evidence: Evidence, one: Candidate) -> bool:
    """Return whether a candidate is the loss, and the loss the largest part of the difference."""
    loss, stages = evidence.split.loss, evidence.split.stages.values()
    return one.size is loss and all(abs(loss.difference) > abs(each.difference) for each in stages)


def _plausibility(evidence: Evidence, one: Candidate) -> int:
    """Return the order of settings with the same rank: a certain size comes first, then a known reason for an effect
    on speed alone, then a setting whose code labkit does not know."""
    if one.cause is not None or not one.settings:
        return 0
    if one.size is not None and one.size.certain and evidence.matters(one.size.difference):
        return 3
    if evidence.speed_differs and not evidence.cost_differs and candidates.slows_down(one.settings[0]):
        return 2
    return 1 if not one.settings[0].paths else 0


def _is_change(evidence: Evidence, one: Candidate) -> bool:
    """Return whether a candidate is the parameters in which two arms or two points of one run differ."""
    is_parameter = bool(one.settings) and one.settings[0].requested and one.name == one.settings[0].name
    return evidence.run_variation is None and is_parameter and one.size is None


def _is_run_difference(evidence: Evidence, one: Candidate) -> bool:
    """Return whether a candidate is another kernel or machine, or the parameters in which two runs differ."""
    if not one.settings or one.size is not None or not candidates.explains_all(one.settings[0]):
        return False
    if one.name != one.settings[0].name:
        return False
    return one.settings[0].concerns_machine or evidence.run_variation is not None


def _names(evidence: Evidence, one: Candidate, disturbed: bool) -> bool:
    """Return whether a candidate may be named as the cause."""
    if one.strength < 1 or evidence.is_repetition or evidence.contradicts_verdict:
        return False
    own = one.size if one.cause is None else one.cause.size
    is_whole = _is_change(evidence, one) or _is_run_difference(evidence, one)
    if own is not None and not is_whole and not candidates.acts_along(evidence, one.settings, own.difference):
        return False
    if _is_run_difference(evidence, one):
        return evidence.has_effect and not disturbed
    if _is_change(evidence, one):
        return one.strength >= 3
    if one.name == candidates.RELAYING:  # other programs do not add it
        return evidence.has_effect and not _is_waiting(evidence)
    code = one.cause
    if code is not None:
        if not evidence.matters(code.difference_s) or (_is_waiting(evidence) and not one.settings):
            return False
        between_two = evidence.run_variation is not None and not evidence.run_variation.is_measured
        if between_two and code.path is not None and code.path.depends_on_timing and not one.settings:
            return False  # the scheduler may have placed the programs differently in the only run of a side
        # Other programs slow everything down, and their own packets add code. A setting that explains code that is new
        # or gone excludes that, and so does code that somebody set up.
        if disturbed:
            return code.is_set_up or (code.change != "changed" and one.strength >= 3)
        if one.settings or code.is_set_up or not evidence.is_disturbed:
            return True
        # Within a run their packets are on both sides alike.
        return evidence.run_variation is None and code.change != "changed"
    if disturbed:
        return False
    if one.settings:
        if all(setting.requested for setting in one.settings):
            return evidence.has_effect
        return one.strength >= 2 or evidence.has_effect
    is_known = evidence.run_variation is None or _is_largest_loss(evidence, one)
    return evidence.has_effect and not evidence.is_disturbed and is_known


def _claim(evidence: Evidence, best: Candidate) -> Iterator[str]:
    """Yield the sentences of a claim. The first names the cause, with its size if that is known."""
    if _is_change(evidence, best):
        yield from _claim_of_change(evidence, best)
        return
    code, whole = None if _is_waiting(evidence) else best.cause, phrases.difference(evidence)
    setting = best.settings[0] if best.settings else None
    is_only = all(one in best.settings for one in evidence.settings if one.can_affect_result)
    opening = "The only known difference between the sides" if is_only else "The first suspect"
    named = phrases.settings(best.settings)
    if code is not None:
        # Of two topologies the code is the answer.
        answer = setting is not None and setting.requested and not candidates.explains_all(setting)
        explaining = None if answer else setting
        # What was added, such as a BPF program, is known by its code path. A setting that changed is known by its name,
        # and so is a limit, which acts by what does not run.
        by_name = explaining is not None and (
            explaining.requested
            or explaining.name.startswith(("cgroup ", "sysctl "))
            or not explaining.paths
            or ABSENT not in (explaining.left, explaining.right)
        )
        cost = phrases.cost(evidence, code)
        yield f"{opening} is {named}: {cost}" if by_name else cost
        yield phrases.place(code)
        if setting is None and code.path is not None and code.path.observes:
            yield "Any program on the machine can switch this code on for all packets, and no recorded setting says so"
        if explaining is not None and not by_name:
            yield f"It is explained by {named}"
        yield phrases.total_difference(whole)
    elif best.size is not None and best.name.endswith("lost"):
        start = best.name if setting is None else f"{opening} is {named}"
        places = [text for source, text in best.evidence if source == "counters"]
        what = ", ".join([best.evidence[0][1], *places])
        yield f"{start}: {what}, which {phrases.effect(evidence, best.size)}"
        yield phrases.total_difference(whole)
    elif setting is not None:
        makes = f", which makes {best.name}" if best.name in candidates.FRAMES.values() else ""
        yield f"{opening} is {named}{makes}{f': {whole}' if whole else ''}"
        if best.size is not None and best.size.certain:
            size = f"{phrases.interval(best.size)} {phrases.per_unit(evidence)}{phrases.share(best.size, evidence)}"
            yield f"The CPU time of {best.place} differs by {size}"
    else:
        yield f"{best.name}: {best.evidence[0][1]}"
        yield phrases.total_difference(whole)


def _claim_of_change(evidence: Evidence, best: Candidate) -> Iterator[str]:
    """Yield the sentences about two arms of one run whose parameters differ: the code through which the change acts,
    and the total effect."""
    requested = [one for one in best.settings if one.requested]
    start = f"The cause is the change of {phrases.change(requested[0])}{phrases.further_settings(requested)}"
    whole, code = phrases.difference(evidence), best.cause
    effects = [phrases.switch_part(evidence, best.part)] if best.part is not None else []
    effects += [phrases.cost(evidence, code)] if code is not None else []
    lost = candidates.effect_of_loss(evidence)
    if lost is not None and (code is None or abs(lost[0]) > abs(code.difference_s)):
        effects.insert(0, lost[1])
    if effects and not _is_waiting(evidence):
        yield f"{start}: {effects[0]}"
        yield from map(phrases.capitalised, effects[1:])
        yield phrases.place(code) if code is not None else ""
        yield phrases.total_difference(whole)
    else:
        yield f"{start}: {whole}" if whole else start
    yield phrases.frames_sentence(evidence)


def _measured(evidence: Evidence) -> str:
    """Return the sentence about the verdict, or an empty text where it is unknown or the profiled rounds show it as
    well."""
    if (measured := evidence.measured) is None:
        return ""
    if not measured.is_certain:
        # The profiled rounds are fewer, but closer to each other: what they say alone is not the verdict.
        return f"In the measuring rounds: {measured.sentence}" if evidence.speed_differs else ""
    if evidence.speed_differs and not evidence.contradicts_verdict:
        return ""
    if evidence.contradicts_verdict:
        return f"The measuring rounds say otherwise: {measured.sentence}"
    return f"In the measuring rounds, {measured.sentence}"


def _is_waiting(evidence: Evidence) -> bool:
    """Return whether most of the difference between round trips is time in which nothing runs, so no code causes it."""
    return evidence.round_trips is not None and evidence.round_trips.is_rest


def _besides(evidence: Evidence) -> str:
    """Return the setting that also differs and whose effect cannot be judged, and what a relay takes."""
    setting = next((phrases.setting(one) for one in evidence.settings if one.can_affect_result), "")
    text = f"The setting {setting} also differs, and its effect cannot be separated" if setting else ""
    return phrases.join_sentences([text, _relay(evidence)])


def _relay(evidence: Evidence) -> str:
    """Return what the profile shows of a program that relays all data but is not named as the cause."""
    if evidence.relay is None or not evidence.matters(evidence.relay.size.difference):
        return ""
    doubt = "" if evidence.relay.size.certain else ", which so few rounds do not make certain"
    return f"In the profile, {phrases.switch_part(evidence, evidence.relay)}{doubt}"


def _withheld(evidence: Evidence, order: list[Candidate]) -> Conclusion:
    """Return a conclusion that names no cause but states what is known."""
    is_doubtful = evidence.contradicts_verdict or evidence.is_disturbed or evidence.is_repetition
    claims = evidence.has_effect and not is_doubtful and evidence.run_variation is None
    weak = phrases.capitalised(phrases.disturbance(evidence))
    known = [_what_is_known(evidence, order), weak, _relay(evidence)]
    return Conclusion(phrases.join_sentences(known), None, claims)


def _what_is_known(evidence: Evidence, order: list[Candidate]) -> str:
    """Return what is known where no cause is named, and why none is."""
    differ = [one for one in evidence.settings if one.relevant]
    may_act = [one for one in differ if one.can_affect_result]
    there = [one for one in evidence.causes if evidence.matters(one.difference_s)]
    unexplained = f"does not explain it ({phrases.cost(evidence, there[0])})" if there else ""
    if evidence.has_effect:
        facts = ", ".join([phrases.difference(evidence), *phrases.known(evidence)])
        if evidence.contradicts_verdict and evidence.verdict is not None:
            return f"No cause is named: {facts}, but the measuring rounds say otherwise: {evidence.verdict.sentence}"
        runs = " between two runs at different times" if evidence.run_variation is not None else ""
        chance = "is a small part of a round trip" if _is_waiting(evidence) else "may do so by chance"
        if not any(candidates.acts_along(evidence, may_act, one.difference_s) for one in there):
            chance = unexplained
        code = f"the code that stands out {chance}" if there else f"no code path stands out{runs}"
        where = " of the experiment" if len(differ) > len(may_act) else ""
        nothing = f"no recorded setting{where} differs and {code}"
        if may_act:
            nothing = f"{code}, though {phrases.settings(may_act)} differs"
        if evidence.is_repetition:
            nothing = "both sides are one arm, measured twice, so other differences of this run may be chance as well"
        return phrases.join_sentences([f"No cause is named: {facts}, but {nothing}", _measured(evidence)])
    if evidence.verdict is not None:
        named = f", though {phrases.settings(differ)} differs" if differ else ""
        code = f"the code that stands out {unexplained}" if there else "no code path stands out"
        return (
            f"No cause is named: {evidence.verdict.sentence}, but the profiled rounds do not show it:"
            f" {phrases.bounds(evidence)}, and {code}{named}"
        )
    if not differ:
        names = evidence.names
        text = f"No difference between {names[1]} and {names[0]} was seen: no recorded setting differs"
        return f"{text}, and {phrases.bounds(evidence)}"
    if not may_act:
        seen = f"no effect on the experiment was seen: {phrases.bounds(evidence)}"
        where = "differs in the machine's own network namespace only"
        return f"The setting {phrases.settings(differ)} {where}, and {seen}"
    first = next((one for one in order if one.settings and one.settings[0] in may_act), None)
    setting = first.settings[0] if first is not None else may_act[0]
    more = phrases.further_settings(may_act)
    verb, whose = ("differ", "their") if more else ("differs", "its")
    if first is not None and first.place and first.size is not None and np.isfinite(first.size.half):
        size, where = first.size, f" ({first.place})"
        bound = max(size.high, -size.low)
    else:
        size, where = evidence.split.total, ""
        bound = max(abs(size.low), abs(size.high))
    seen = f"no effect was seen: {whose} cost{where} is below {seconds(bound)}"
    if where and abs(size.difference) > size.half:
        seen = f"{whose} effect is not certain: {whose} cost{where} is {phrases.interval(size)}"
    return f"The setting {phrases.setting(setting)}{more} {verb}, but {seen} {phrases.per_unit(evidence)}"


def _notes(evidence: Evidence, sentence: str) -> Iterator[str]:
    if evidence.run_variation is not None and evidence.run_variation.is_measured:
        yield (
            "Each side has several runs at different times. The intervals are over runs and include the differences"
            " between runs."
        )
    elif evidence.run_variation is not None:
        yield (
            "Two runs of one arm also differ. With one run per side labkit assumes"
            f" {units.percent(BETWEEN_SHARE)} of the cost for this (standard deviation), and includes it in every"
            " interval. Name several runs of a side as RUN+RUN, or measure both as arms of one run."
        )
    if (frames := evidence.frames_per_work) is not None and min(frames.left, frames.right) > 0:
        total, names = evidence.split.total, evidence.names
        left, right = seconds(total.left / frames.left), seconds(total.right / frames.right)
        yield (
            f"Each frame that arrived took {left} of CPU time in {names[0]} and {right} in {names[1]}. A frame is what"
            " the receiving interface counts: several segments where it receives them as one."
        )
    if evidence.polls:
        yield (
            "A thread of Open vSwitch with DPDK polls without a pause, so CPU time per packet is only the inverse of"
            " the packet rate. labkit does not compare it."
        )
    if (disturbed := phrases.disturbance(evidence)) and disturbed.casefold() not in sentence.casefold():
        yield f"Disturbed: {disturbed}."


def _next_steps(evidence: Evidence, claims: bool, order: Sequence[Candidate]) -> Iterator[str]:
    """Yield the steps that would decide between the candidates, with their commands.

    claims: whether a cause is named. order: the candidates, strongest first.
    """
    observers = {str(one) for at in (0, 1) for one in evidence.point.rows[:2][at]["observer"].dropna()}
    if evidence.run_variation is not None:
        yield _as_arms(evidence)
    if evidence.is_disturbed:
        yield _undisturbed(evidence)
    if evidence.parts and evidence.relay is None and "switch" not in observers:
        text = "To see the actions of the switch's flows, observe the switch"
        yield f"{text}: {_again(evidence, 'observe=perf_record,switch')}"
    if "counters" not in observers:
        text = "To see where packets are lost and how large they are, record the kernel's counters"
        yield f"{text}: {_again(evidence, OBSERVED)}"
    code = (one.cause for one in order if one.cause is not None)
    functions = [one.function for one in code if one.change == "changed"][:3]
    if functions and not claims:
        options = f"observe=function_times functions={','.join(functions)}"
        yield f"To see how long single calls take, time them: {_again(evidence, options)}"
    if not claims and not evidence.is_disturbed:
        yield f"More rounds detect a smaller difference: {_again(evidence, _more_rounds(evidence))}"


def _undisturbed(evidence: Evidence) -> str:
    """Return the step that repeats the measurement without other programs: arms of one run are measured together."""
    doctor = "labkit doctor names the programs that do"
    if evidence.run_variation is not None:
        return f"Repeat both runs while nothing else uses the CPUs: {doctor}"
    again = _again(evidence, _more_rounds(evidence))
    return f"Measure more rounds of this run while nothing else uses the CPUs ({doctor}): {again}"


def _more_rounds(evidence: Evidence) -> str:
    return f"{OBSERVED} profile_rounds={4 * max(map(len, evidence.rounds))}"


def _again(evidence: Evidence, options: str) -> str:
    """Return the command that measures the point again with other observers."""
    # A row lacks the text of its change. One with a load beside it is not of the experiment `datapaths`.
    special = (rows.reindex(columns=["change", "load"]) for rows in evidence.point.rows[:2])
    if any(rows.notna().to_numpy().any() for rows in special):
        return f"repeat the run with {options}"
    return f"{_command(evidence, (0, 1) if evidence.run_variation is None else (1,))} {options}"


def _command(evidence: Evidence, sides: Sequence[int]) -> str:
    """Return the command that measures these sides as arms of one run."""
    values = {"topology": ",".join(dict.fromkeys(_topology(evidence, at) for at in sides))}
    rows = evidence.point.rows[:2]
    search = any(one["frame"].notna().any() for one in rows if "frame" in one)
    for name, column in (SEARCHED if search else PARAMETERS).items():
        there = (rows[at][column].dropna() for at in sides if column in rows[at])
        of = dict.fromkeys(text for values in there for text in load.values(values))
        several = name in ("endpoint", "pairs")
        text = (",".join(of) if several else next(iter(of))) if of else ""
        is_usual = text in (USUAL_GENERATORS if name == "generator" else schema.BY_NAME[column].usual)
        if text and not is_usual:
            values[name] = text
    words = " ".join(f"{name}={text}" for name, text in values.items())
    return f"labkit run {f'throughput {words}' if search else f'datapaths {words} rounds=1 whole_runs=1'}"


def _as_arms(evidence: Evidence) -> str:
    """Return the step that measures both runs as arms of one."""
    text = "Compare both as arms of one run, whose rounds are interleaved"
    acting = (one for one in evidence.settings if one.can_affect_result and not one.requested)
    if changes := list(filter(None, map(_as_change, acting))):
        machine = any(one.startswith("machine_sysctl") for one in changes[:4])
        allowed = " (as root, with LABKIT_ALLOW=machine_sysctl in the environment)" if machine else ""
        change = f"'change=other: {' and '.join(changes[:4])}'"
        return f"{text}{allowed}: {_command(evidence, (1,))} {change} {OBSERVED}"
    if any(one.name in ("topology", "endpoint") for one in evidence.settings if one.requested):
        return f"{text}: {_command(evidence, (0, 1))} {OBSERVED}"
    form = "with the difference as change=NAME: KIND OPTIONS at PLACE"
    return f"{text}, {form}; or repeat both runs and name them as RUN+RUN"


def _topology(evidence: Evidence, side: int) -> str:
    """Return a side's topology as a command has it: its name, or a placeholder for the file of a network of one's
    own."""
    rows = evidence.point.rows[:2][side]
    if "network" in rows and rows["network"].notna().any():
        return NETWORK_FILE
    return environment.built_topology(evidence.point, side)


def _as_change(setting: Setting) -> str:
    """Return a setting as an arm's change, or an empty text if no arm can have it as a change."""
    lacks = ABSENT in (setting.left, setting.right)
    if lacks or " or " in setting.right or not re.fullmatch(VALUE, setting.right):
        return ""
    at = next((one for one in setting.places if one in ("client", "server", "between")), "")
    at = "both" if {"client", "server"} <= set(setting.places) else at
    sysctl = setting.name.removeprefix("sysctl ").replace(".conf.*.", ".conf.all.")
    if "*" in sysctl:  # of neighbours no sysctl is of all interfaces
        return ""
    if setting.name.startswith("sysctl net.") and at:
        return f"sysctl {sysctl}={setting.right} at {at}"
    allowed = "machine" in setting.places and re.fullmatch(sysctl_journal.ALLOWED, sysctl)
    if setting.name.startswith("sysctl ") and allowed:
        return f"machine_sysctl {sysctl}={setting.right}"
    _interface, _, feature = setting.name.partition(" offload ")
    if feature and at:
        return f"offload {feature} {setting.right} at {at}"
    if setting.name.endswith(" mtu") and at:
        return f"mtu {setting.right} at {at}"
    return ""
