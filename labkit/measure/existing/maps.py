"""Sets and maps of nftables: the elements of those that rules name, or have in place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

Listed = list[dict[str, Any]]
Maps = dict[str, list[Any]]  # the elements of a table's maps


class Elements(list[Any]):
    """The elements of a set, which many rules may name. known: whether a value is one of them, as far as asked."""

    def __init__(self, listed: Listed) -> None:
        super().__init__(parts(one)[0] for one in listed)
        self.known: dict[str, bool | None] = {}

    def __repr__(self) -> str:  # a text of a rule does not repeat them
        return f"{len(self)} elements"


def named(ruleset: Listed) -> defaultdict[tuple[str, str], Maps]:
    """Return the elements of all maps by table (family and name), then by the map's name."""
    result: defaultdict[tuple[str, str], Maps] = defaultdict(dict)
    for one in (listed["map"] for listed in ruleset if "map" in listed):
        result[one["family"], one["table"]][one["name"]] = one.get("elem", [])
    return result


def resolved(ruleset: Listed) -> Listed:
    """Return a ruleset whose matches hold the elements of the sets that they name, but for sets that packets fill."""
    sets = {
        (one["family"], one["table"], f"@{one['name']}"): {"set": Elements(one.get("elem", []))}
        for one in (listed["set"] for listed in ruleset if "set" in listed)
        if "dynamic" not in one.get("flags", ())
    }
    for rule in (listed["rule"] for listed in ruleset if "rule" in listed):
        for match in (one["match"] for one in rule.get("expr", ()) if isinstance(one.get("match"), dict)):
            name = match.get("right")
            key = rule["family"], rule["table"], name if isinstance(name, str) else ""
            match["right"] = sets.get(key, name)
    return ruleset


def elements(of: dict[str, Any], maps: Maps) -> Iterator[tuple[Any, Any]]:
    """Yield key and value of each element of a map that a rule uses, by its name or in place."""
    data = of.get("data")
    found = data.get("set", []) if isinstance(data, dict) else []
    found = maps.get(data[1:], []) if isinstance(data, str) else found
    yield from ((one[0], one[1]) for one in found if isinstance(one, list) and len(one) == 2)


def parts(value: Any) -> list[Any]:
    """Return the parts of a concatenation, or the only one; an element may have a counter or a comment."""
    value = value["elem"]["val"] if isinstance(value, dict) and "elem" in value else value
    result: list[Any] = value["concat"] if isinstance(value, dict) and "concat" in value else [value]
    return result
