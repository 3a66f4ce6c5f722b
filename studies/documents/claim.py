"""A claim of a document, the rule of its verdict, and the verdict.

A ratio **agrees** with a claim if its 95 % interval lies in the range for which the claim holds, and **contradicts**
the claim if the interval lies outside. Otherwise, and with any doubt, it decides nothing. A claim that one side has
more may have a margin: a ratio whose interval includes 1 and lies within it is **equal** (two one-sided tests, each at
2.5 %), which counts against the claim. A claim is confirmed if more of its ratios agree than chance explains, and
contradicted if more contradict it than chance explains. One exact count is enough for either, and so is one ratio that
says it at the confidence that all ratios of the claim share (Bonferroni); being equal needs several. It depends if
both hold. It also depends if it is contradicted under conditions other than the document's; then it was not reproduced
here, which is said beside the word. Otherwise it cannot be told here. Chance lets one of twenty intervals miss the
true ratio.

A document's own numbers, put together, measure nothing. They never decide a claim that runs answer. A claim that only
they answer is consistent with them or inconsistent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from scipy.special import bdtrc, stdtrit

from labkit.analysis.stats import CONFIDENCE, LOST_FREEDOM
from labkit.common.units import percent
from studies.documents.evidence import PRINTED, Evidence, Source
from studies.documents.results import Results
from studies.function_time_claim import NEAR

CONFIRMED, CONTRADICTED, DEPENDS, UNKNOWN = "confirmed", "contradicted", "depends", "cannot be told here"
CONSISTENT, INCONSISTENT = "consistent", "inconsistent"
BY_RUNS = (CONFIRMED, CONTRADICTED, DEPENDS)
BY_NUMBERS = (CONSISTENT, INCONSISTENT)  # the verdicts that the document's own numbers give
FALSE_SHARE = 1 - CONFIDENCE
AGREES, CONTRADICTS, EQUAL, UNDECIDED = "agrees", "contradicts", "equal", "undecided"
MISSING = "not measured"
WITHIN_CONTROL = "within A/A"
OTHER_CONDITIONS, NOT_REPRODUCED = "under other conditions", "not reproduced here, and conditions differ"

Range = tuple[float, float]
# By their names in claims.toml. Computed numbers (exact) are printed with three or more digits.
RANGES: dict[str, Range] = {
    "more": (1.0, math.inf), "less": (-math.inf, 1.0), "exact": (0.999, 1.001), "within 10 %": (1 / 1.1, 1.1),
    "within 25 %": (1 / NEAR, NEAR),
}  # fmt: skip


def printed_range(low: float, high: float | None = None, factor: float = NEAR) -> Range:
    """Return the range of a printed ratio, or of two of them, wider by this factor on each side."""
    return low / factor, (low if high is None else high) * factor


@dataclass(frozen=True)
class Document:
    """A document that makes claims: who wrote it (and when, if it is known), and its title.

    had: the conditions that its measurements had, by name (`conditions`).
    """

    author: str
    title: str
    had: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.author}, {self.title}"


@dataclass(frozen=True)
class Claim:
    """A claim in one sentence, where it is made, and what answers it.

    ratio: what is divided by what. claimed_range: the range of the ratio in which the claim is true. sources: what
    answers it; empty if nothing here can. settle: what would settle it. remark: what else a reader must know, for
    example why nothing here can tell. conditions: what differs here from the document's measurement. A claim that has
    conditions and is not reproduced depends on them, and is not contradicted. all_points: whether the claim is about
    all points; then it is confirmed only if all ratios agree. margin: of a claim that one side has more; a ratio whose
    interval lies within 1 / (1 + margin) to 1 + margin is equal. had: the conditions of the document's measurement that
    are this claim's own.
    """

    name: str
    sentence: str
    document: str
    place: str
    settle: str
    ratio: str = ""
    claimed_range: Range | None = None
    sources: tuple[Source, ...] = ()
    remark: str = ""
    conditions: str = ""
    all_points: bool = False
    margin: float | None = None
    had: Mapping[str, str] = field(default_factory=dict)

    @property
    def equal_range(self) -> Range | None:
        """The range of ratios that are a tie, or None for a claim without a margin."""
        return None if self.margin is None else (1 / (1 + self.margin), 1 + self.margin)


@dataclass(frozen=True)
class Judgement:
    """The verdict about a claim: its word, the counts of readings (`2 agree, 1 undecided`), and each piece of evidence
    with its reading. note: what a reader must know beside the word: NOT_REPRODUCED, OTHER_CONDITIONS or nothing."""

    claim: Claim
    word: str
    counts: str
    evidence: Sequence[tuple[Evidence, str]]
    note: str = ""

    @property
    def deciding(self) -> Sequence[tuple[Evidence, str]]:
        """What the verdict comes from: the evidence of runs, or the document's own numbers if there is no other."""
        return [(one, read) for one, read in self.evidence if one.run != PRINTED] or self.evidence


def reading(one: Evidence, claimed_range: Range, equal_range: Range | None = None) -> str:
    """Return what one piece of evidence says: agrees, contradicts, equal, undecided or not measured."""
    if math.isnan(one.ratio):
        return MISSING
    if one.doubt or math.isnan(one.low):
        return UNDECIDED
    if one.within_control:  # the ratio shows no direction
        return _reading(min(one.low, 1.0), max(one.high, 1.0), claimed_range, equal_range)
    return _reading(one.low, one.high, claimed_range, equal_range)


def _reading(low: float, high: float, claimed_range: Range, equal_range: Range | None = None) -> str:
    if claimed_range[0] < low and high < claimed_range[1]:  # an interval that ends at 1 shows no direction
        return AGREES
    if high < claimed_range[0] or low > claimed_range[1]:
        return CONTRADICTS
    return EQUAL if equal_range and equal_range[0] < low and high < equal_range[1] else UNDECIDED


def reason(one: Evidence, claimed_range: Range, equal_range: Range | None = None) -> str:
    """Return why a piece of evidence decides nothing, or "" if its interval alone is the reason."""
    if one.doubt or not one.within_control or reading(one, claimed_range, equal_range) != UNDECIDED:
        return one.doubt
    return WITHIN_CONTROL if _reading(one.low, one.high, claimed_range) != UNDECIDED else ""


def judge(claim: Claim, results: Results, run: str | None = None) -> Judgement:
    """Judge a claim by the published runs, or by the document's own numbers if no run answers it.

    run: the name of the only run that counts; None: all of them.
    """
    if claim.claimed_range is None or not claim.sources:
        return Judgement(claim, UNKNOWN, "", [])
    evidence = [one for source in claim.sources for one in source(results) if run in (None, one.run)]
    readings = [reading(one, claim.claimed_range, claim.equal_range) for one in evidence]
    judged = Judgement(claim, UNKNOWN, "", list(zip(evidence, readings, strict=True)))
    numbers = {
        word: sum(read == word for _, read in judged.deciding)
        for word in (AGREES, CONTRADICTS, EQUAL, UNDECIDED)
    }
    counts = ", ".join(_count_text(count, word, claim.margin) for word, count in numbers.items() if count)
    yes, no = (_is_decided(claim, judged.deciding, words) for words in ((AGREES,), (CONTRADICTS, EQUAL)))
    if claim.all_points:
        yes = yes and numbers[AGREES] == sum(numbers.values())
    if all(one.run == PRINTED for one in evidence):
        word = INCONSISTENT if no else CONSISTENT if yes else UNKNOWN
    else:
        word = DEPENDS if yes and no else CONFIRMED if yes else CONTRADICTED if no else UNKNOWN
    note = ""
    if claim.conditions and word == CONTRADICTED:
        word, note = DEPENDS, NOT_REPRODUCED
    elif claim.conditions and word == CONFIRMED:
        note = OTHER_CONDITIONS
    return replace(judged, word=word, counts=counts, note=note)


def _is_decided(claim: Claim, each: Sequence[tuple[Evidence, str]], words: Sequence[str]) -> bool:
    """Return whether these readings decide: one exact number does, measured ratios if chance does not explain them."""
    if any(read in words and one.exact for one, read in each):
        return True
    ratios = [(one, read) for one, read in each if not math.isnan(one.ratio) and not one.exact]
    those = [one for one, read in ratios if read in words]
    return beyond_chance(len(those), len(ratios)) or any(
        reading(_stretched(one, len(ratios)), claim.claimed_range or RANGES["less"]) in words for one in those
    )


def _stretched(one: Evidence, of_count: int) -> Evidence:
    """Return a ratio with the wider interval of which all of `of_count` hold together with 95 % (Bonferroni).

    Student's t with the fewest degrees of freedom that an interval over these set-ups may have (`stats.LOST_FREEDOM`).
    """
    freedom = (one.setups_count or 0) - 1 - LOST_FREEDOM
    if freedom < 1 or one.low <= 0:
        return replace(one, doubt=one.doubt or "too few set-ups")
    ends = (1 - FALSE_SHARE / 2 / of_count, 1 - FALSE_SHARE / 2)
    factor = float(stdtrit(freedom, ends[0]) / stdtrit(freedom, ends[1]))
    low, high = (one.ratio * (end / one.ratio) ** factor for end in (one.low, one.high))
    return replace(one, low=low, high=high)


def beyond_chance(count: int, of_count: int) -> bool:
    """Return whether so many of these ratios are unlikely (at most 5 %) if each is a false alarm with 5 %."""
    return count > 0 and float(bdtrc(count - 1, of_count, FALSE_SHARE)) <= FALSE_SHARE + 1e-9


def _count_text(count: int, word: str, margin: float | None) -> str:
    if word == EQUAL:
        return f"{count} equal within {percent(margin or 0)}"
    return f"{count} {word if count == 1 or word == UNDECIDED else word.removesuffix('s')}"
