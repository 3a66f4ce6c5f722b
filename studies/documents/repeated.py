"""Judge the claims that a published run answers by another run as well (`labkit compare RUN data/results/NAME`)."""

from pathlib import Path

from labkit.analysis import published_runs
from labkit.analysis.claims import JudgedClaim, Verdict
from studies.documents import document
from studies.documents.claim import judge
from studies.documents.registry import claims
from studies.documents.results import Results


def judge_by_both(left: Path, right: Path) -> list[JudgedClaim]:
    """Return each claim of docs/FINDINGS.md that both runs answer with a ratio; none if neither run is published.

    The name of the published run, which is the name of its folder, tells which claims its rows answer.
    """
    published = next((one for one in (right, left) if published_runs.is_published(one)), None)
    if published is None:
        return []
    name = published.resolve().name
    both = [Results(published.parent, {name: one}) for one in (left, right)]
    result = []
    for claim in claims():
        judged = (judge(claim, results, name) for results in both)
        one, other = (Verdict(each.word, document.ratio_summary(each)) for each in judged)
        if document.NO_RATIO not in (one.evidence, other.evidence):
            result.append(JudgedClaim(claim.name, claim.sentence, one, other))
    return result
