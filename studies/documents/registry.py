"""The claims of the five documents, read from claims.toml. To add a claim, add an entry there.

Keys of a claim are the fields of `claim.Claim`. `range` is a name of RANGES, two bounds, or what the document prints,
with a factor of tolerance: `{ printed = [2.5, 3], factor = 1.25 }`. Braces in `remark`, `conditions` and `had` name
an entry of `[texts]`, or of `printed.numbers` with its format.

A source is one of these. Each value of a list is a source of its own; "none" is null:

- `arm` divided by `against` in a `run`, both topologies (without `against`: the arm without its options), `where`
  columns have these values; with `column`, the arm's `value` of it divided by the value `against`
- `printed`: a quotient that a function of `printed` computes from the document's own numbers
- with `ratios`, the arm's ratio to that arm with the `value` of a `column`, divided by its ratio with the value
  `against`
- `function` divided by `against`, each a kind of endpoint and a function, or with the second of `lengths` (datagrams)
  divided by the first; `function_times`; `counts` of a `part`, of rows as in `where`; `share` of mirrored packets that
  a link of `link_bps` carried

`unless` says when a ratio decides nothing, and `deviation` takes the distance of a ratio from 1.
"""

import functools
import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from labkit.common import errors, units
from labkit.common.errors import BadInput
from studies.documents import counted, evidence, printed
from studies.documents.claim import RANGES, Claim, Document, Range, printed_range
from studies.documents.evidence import Source

Table = Mapping[str, Any]
TABLE: Table = tomllib.loads((Path(__file__).parent / "claims.toml").read_text())
KEYS = {
    "run", "arm", "against", "value", "link_bps", "where", "column", "of", "printed", "what", "arguments", "function",
    "function_times", "lengths", "part", "counts", "ratios", "share", "unless", "deviation",
}  # fmt: skip
EACH = ("run", "arm", "against", "value", "link_bps", "where")  # keys whose lists are sources of their own


def claim_of(entry: Table) -> Claim:
    """Return the claim of an entry of the table. Raises BadInput or TypeError for a key that nothing reads."""
    fields = dict(entry)
    for name in ("remark", "conditions"):
        fields[name] = _text(fields.get(name, ""))
    fields["had"] = {name: _text(text) for name, text in fields.get("had", {}).items()}
    fields["claimed_range"] = _range(fields.pop("range", None))
    fields["sources"] = tuple(source for one in fields.get("sources", ()) for source in _sources(one))
    return Claim(**fields)


def _text(text: str) -> str:
    """Return a text in which names in braces are replaced: `{of_a_text}`, `{of_a_number:.2f}`."""

    def named(match: re.Match[str]) -> str:
        name, form = match.groups("")
        texts = TABLE["texts"]
        return _text(texts[name]) if name in texts else format(_made(printed.numbers)[name], form)

    return re.sub(r"\{(\w+)(?::([^}]+))?\}", named, text).strip()


def _made(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function makes of printed tables. Raises BadInput if one was edited so that it cannot."""
    with errors.reading(f"what {function.__name__} takes from data/reference", BadInput):
        return function(*arguments)


def _range(given: Any) -> Range | None:
    if given is None:
        return None
    if isinstance(given, str):
        return RANGES[given]
    if isinstance(given, list):
        return given[0], given[1]
    ratios = given["printed"]
    if isinstance(ratios, str):
        ratios = _made(getattr(printed, ratios))
    bounds = ratios if isinstance(ratios, list) else [ratios]
    return printed_range(*bounds, **{name: given[name] for name in ("factor",) if name in given})


def _sources(entry: Table) -> Iterator[Source]:
    """Yield the sources of an entry: the lists among EACH are combined, the last one changes fastest."""
    if unknown := entry.keys() - KEYS:
        raise BadInput(f"claims.toml: a source has {units.listed(sorted(unknown))}, which no source has")
    lists = {
        name: entry[name] for name in EACH if isinstance(entry.get(name), list) and "function" not in entry
    }
    for values in itertools.product(*lists.values()):
        one = {**entry, **dict(zip(lists, values, strict=True))}
        source = _source(one)
        if one.get("deviation"):
            source = evidence.deviation(source)
        yield evidence.undecided_if(one["unless"], source) if "unless" in one else source


def _source(one: Table) -> Source:
    where = where_of(one)
    if "printed" in one:
        number = getattr(printed, one["printed"])
        return evidence.computed(one["what"], lambda: _made(number, *one.get("arguments", ())))
    if "counts" in one:
        return evidence.ratios_of_counts(one["run"], one["part"], getattr(counted, one["counts"]), **where)
    if "share" in one:
        return evidence.mirrored_share(one["run"], one["share"], float(one["link_bps"]))
    if "function" in one:
        sides = tuple(one.get("against", one["function"])), tuple(one["function"])
        return evidence.function_ratio(one["run"], *sides, one.get("lengths") and tuple(one["lengths"]))
    if "function_times" in one:
        return evidence.function_time_ratio(one["run"])
    if "ratios" in one:
        ends = (filter_of(one[name]) for name in ("against", "value"))
        return evidence.ratio_of_ratios(one["run"], one["arm"], one["ratios"], one["column"], *ends, **where)
    if "column" in one:
        values = (one["column"], one["against"], one["value"], one["arm"], one.get("of", "speed"))
        return evidence.ratio_of_values(one["run"], *values, **where)
    other = one.get("against", one["arm"].partition("+")[0])
    return evidence.ratio_of_arms(one["run"], one["arm"], other, one.get("of", "speed"), **where)


def where_of(entry: Table) -> dict[str, Any]:
    """Return the filters of an entry, as `rows_with` takes them."""
    return {name: filter_of(value) for name, value in entry.get("where", {}).items()}


def filter_of(value: Any) -> Any:
    """Return a value of `where` as `rows_with` takes it: a list is a tuple, and "none" is null."""
    if isinstance(value, list):
        return tuple(map(filter_of, value))
    return None if value == "none" else value


DOCUMENTS = {name: Document(**entry) for name, entry in TABLE["documents"].items()}


@functools.cache
def claims() -> tuple[Claim, ...]:
    """Return all claims, whose ranges and remarks are made of printed tables."""
    return tuple(map(claim_of, TABLE["claims"]))
