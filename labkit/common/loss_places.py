"""Name the places where packets were lost, from the hops of a pair's path (`loss` of the observer counters)."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from labkit.common import units


def without_pair_number(text: str) -> str:
    """Remove the pair's number: `client3:eth0 sends` becomes `client:eth0 sends`."""
    return re.sub(r"\b(client|server)\d+\b", r"\1", text)


def shares(pairs: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return each hop's share of all loss of these pairs, the largest first; empty if nothing was lost."""
    lost: Counter[str] = Counter()
    for place, hop in _hops(pairs):
        lost[place] += max(hop.get("lost_count") or 0, 0)
    return {place: count / lost.total() for place, count in lost.most_common() if count}


def where(pairs: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the place with most of the loss, in words with the counter that has the most there; None if unknown."""
    pairs = list(pairs)
    place, share = next(iter(shares(pairs).items()), (None, 0.0))
    if place is None:
        return None
    reasons: Counter[str] = Counter()
    for at, hop in _hops(pairs):
        if at == place:
            # A queue gets another handle in every round.
            why = hop.get("why") or {}
            reasons.update(
                {re.sub(r" [0-9a-f]+:(?= dropped)", "", name): count for name, count in why.items()}
            )
    reason = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
    return f"{units.percent(share)} of these at {place}{reason}"


def duplicated(pairs: Iterable[Mapping[str, Any]]) -> tuple[float, str] | None:
    """Return how many more packets left a place than came to it, as a share of those that were sent, and the place."""
    pairs = list(pairs)
    sent, gained = sum(pair.get("sent_count") or 0 for pair in pairs), Counter[str]()
    for place, hop in _hops(pairs):
        gained[place] += max(-(hop.get("lost_count") or 0), 0)
    [(place, most)] = gained.most_common(1) or [("", 0)]
    return (most / sent, place) if sent and most else None


def _hops(pairs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((without_pair_number(hop["at"]), hop) for pair in pairs for hop in pair.get("hops", []))
