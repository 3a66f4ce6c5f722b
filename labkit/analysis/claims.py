"""Claims that a published run answers, judged by another run as well (`labkit compare RUN data/results/NAME`).

An installed package has the claims: an entry point of the group `labkit.claims` is a function from the folders of two
runs to a list of JudgedClaim. It is empty if neither run answers a claim.
"""

from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

from labkit.common import extensions


@dataclass(frozen=True)
class Verdict:
    """A verdict about a claim by one run, with its evidence in a few words."""

    word: str
    evidence: str


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with two verdicts: by the left run alone, and by the right run alone."""

    name: str
    sentence: str
    left: Verdict
    right: Verdict


def judge_by_both(left: Path, right: Path) -> list[JudgedClaim]:
    """Return each claim that a published run among the two answers, judged by either run."""
    every = extensions.load_all("labkit.claims", FunctionType, ())
    return [claim for judge in every.values() for claim in judge(left, right)]
