"""A finding: a known cause that is present, where, how certain it is, what it costs, and what undoes it."""

from __future__ import annotations

from dataclasses import dataclass

SEEN, PRESENT, POSSIBLE = "seen", "present", "possible"
CERTAINTY = {
    SEEN: "packets or counters showed it during the check",
    PRESENT: "the configuration or counters since the start have it",
    POSSIBLE: "it may be the cause",
}
BETWEEN = "the network between"  # the place of what is on neither of two machines
# How much a cause can cost, as the share of the traffic or its rate that it takes.
ALL, MOST, MUCH, SOME, LITTLE = 1.0, 0.8, 0.5, 0.2, 0.05


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A known cause of a slow or broken path.

    cause: its name. what: one sentence with numbers. where: namespace and interface. certainty: one of CERTAINTY.
    weight: how much it can cost, 0 to 1. cost: what it costs in words, if known. undo: the command that undoes it.
    change: the text of `change=` that tries it on a copy.
    """

    cause: str
    what: str
    where: str
    certainty: str = PRESENT
    weight: float = SOME
    cost: str | None = None
    undo: str | None = None
    change: str | None = None


def ordered(findings: list[Finding]) -> list[Finding]:
    """Return the findings by certainty, then by what they can cost; of equal sentences the first."""
    ranks = list(CERTAINTY)
    result = sorted(findings, key=lambda one: (ranks.index(one.certainty), -one.weight))
    first: dict[tuple[str, str, str], Finding] = {}
    for one in result:
        first.setdefault((one.cause, one.what, one.where), one)
    return list(first.values())
