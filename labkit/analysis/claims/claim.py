"""A claim of a document, the rule of its verdict, and the verdict.

A piece of evidence **agrees** if its 95 % interval lies in the range of ratios that the claim means, and
**contradicts** it if the interval lies outside. Otherwise, and with any doubt, it decides nothing. A claim is confirmed
if more of its ratios agree than chance explains, contradicted if more contradict it than chance explains, and it
depends if both is so. Otherwise it cannot be told here. Chance lets one of twenty intervals miss the true ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import bdtrc

from labkit.analysis.claims.evidence import Evidence, Source
from labkit.analysis.claims.results import Results
from labkit.analysis.packet_cost.function_time_claim import NEAR
from labkit.analysis.stats import CONFIDENCE

CONFIRMED, CONTRADICTED, DEPENDS, UNKNOWN = "confirmed", "contradicted", "depends", "cannot be told here"
FALSE_SHARE = 1 - CONFIDENCE
WORDS = (CONFIRMED, CONTRADICTED, DEPENDS, UNKNOWN)
AGREES, AGAINST, UNDECIDED = "agrees", "contradicts", "undecided"

Range = tuple[float, float]
MORE: Range = (1.0, math.inf)
LESS: Range = (-math.inf, 1.0)
ALIKE: Range = (1 / NEAR, NEAR)
CLOSE: Range = (1 / 1.1, 1.1)
SAME: Range = (0.999, 1.001)  # of computed numbers, which are printed with three or more digits


def about(low: float, high: float | None = None) -> Range:
    """Return the range of a printed ratio, or of two of them, a factor of NEAR wider on each side."""
    return low / NEAR, (low if high is None else high) * NEAR


@dataclass(frozen=True)
class Document:
    """A document that makes claims: who wrote it, its title, and its year."""

    author: str
    title: str

    @property
    def words(self) -> str:
        return f"{self.author}, *{self.title}*"


@dataclass(frozen=True)
class Claim:
    """A claim in one sentence, where it is made, and what answers it.

    ratio: what the ratio is of. meant: the range of the ratio in which the claim is true. sources: what answers it;
    empty if nothing here can. settle: what would settle it. remark: what else a reader must know, for example why
    nothing here can tell.
    """

    name: str
    sentence: str
    document: str
    place: str
    settle: str
    ratio: str = ""
    meant: Range | None = None
    sources: tuple[Source, ...] = ()
    remark: str = ""


@dataclass(frozen=True)
class Judgement:
    """The verdict about a claim: a word of WORDS, why in one sentence, and each piece of evidence with its reading."""

    claim: Claim
    word: str
    why: str
    evidence: Sequence[tuple[Evidence, str]]


def reading(one: Evidence, meant: Range) -> str:
    """Return what one piece of evidence says: agrees, contradicts or undecided."""
    if one.doubt or math.isnan(one.low):
        return UNDECIDED
    low, high = meant
    if low < one.low and one.high < high:  # an interval that ends at 1 shows no direction
        return AGREES
    return AGAINST if one.high < low or one.low > high else UNDECIDED


def judge(claim: Claim, results: Results) -> Judgement:
    """Judge a claim by the published runs."""
    if claim.meant is None or not claim.sources:
        return Judgement(claim, UNKNOWN, claim.remark, [])
    evidence = [one for source in claim.sources for one in source(results)]
    each = [(one, reading(one, claim.meant)) for one in evidence]
    counts = {word: sum(read == word for _, read in each) for word in (AGREES, AGAINST, UNDECIDED)}
    why = ", ".join(_counted(count, word) for word, count in counts.items() if count)
    ratios_count = sum(not math.isnan(one.ratio) for one in evidence)
    yes, no = (beyond_chance(counts[word], ratios_count) for word in (AGREES, AGAINST))
    word = DEPENDS if yes and no else CONFIRMED if yes else CONTRADICTED if no else UNKNOWN
    return Judgement(claim, word, why, each)


def beyond_chance(count: int, of_count: int) -> bool:
    """Return whether so many of these ratios are unlikely (at most 5 %) if each is a false alarm with 5 %."""
    return count > 0 and float(bdtrc(count - 1, of_count, FALSE_SHARE)) <= FALSE_SHARE + 1e-9


def _counted(count: int, word: str) -> str:
    return f"{count} {word if count == 1 or word == UNDECIDED else word.removesuffix('s')}"
