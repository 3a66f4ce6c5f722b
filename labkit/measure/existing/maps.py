"""Where maps of nftables lead what is sent to an address and a port, through the chains that they call.

kube-proxy writes such maps: an address and a port choose the chain of a service, which chooses one of its endpoints at
random, whose chain replaces the address.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

DEEPEST, MOST_PORTS = 16, 64
RANDOM = ("numgen", "jhash", "symhash")  # what chooses an element without regard to address or port
HOOKS = ("prerouting", "output")

Listed = list[dict[str, Any]]
Maps = dict[str, list[Any]]  # the elements of a table's maps


@dataclass(frozen=True)
class Translation:
    """Packets to these ports of an address (None: any of the machine's) go to another one.

    chains: those that maps chose. others: the further addresses, of which one is chosen at random. not_from: the rule
    does not match what arrives at this interface.
    """

    ports: tuple[int, ...] = ()
    address: str | None = None
    to: str = ""
    chains: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    not_from: str | None = None
    is_random: bool = False
    is_mapped: bool = False


def translations(ruleset: Listed) -> list[Translation]:
    """Return what maps of a ruleset, as `nft -j` prints it, translate for TCP."""
    tables: dict[tuple[str, str], _Table] = {}
    maps = named(ruleset)
    for kind, one in (each for listed in ruleset for each in listed.items()):
        if "table" in one:
            key = one["family"], one["table"]
            tables.setdefault(key, _Table(maps[key])).add(kind, one)
    found = [
        one for table in tables.values() for base in table.bases for one in table.walk(base, Translation())
    ]
    mapped = list(dict.fromkeys(one for one in found if one.is_mapped and one.ports))
    alike = defaultdict[tuple[str | None, tuple[int, ...]], list[str]](list)
    for one in mapped:
        alike[one.address, one.ports].append(one.to)
    return [
        replace(one, others=tuple(to for to in alike[one.address, one.ports] if to != one.to))
        if one.is_random
        else one
        for one in mapped
    ]


class Elements(list[Any]):
    """The elements of a set, which many rules may name. known: whether a value is one of them, as far as asked."""

    def __init__(self, listed: Listed) -> None:
        super().__init__(parts(one)[0] for one in listed)
        self.known: dict[str, bool | None] = {}

    def __repr__(self) -> str:  # a text of a rule does not repeat them
        return f"{len(self)} elements"


class _Table:
    """The chains and maps of a table."""

    def __init__(self, maps: Maps) -> None:
        self.bases: list[str] = []
        self._rules: dict[str, list[Listed]] = {}
        self._maps = maps

    def add(self, kind: str, one: dict[str, Any]) -> None:
        if kind == "rule":
            self._rules.setdefault(one["chain"], []).append(one.get("expr", []))
        elif kind == "chain" and one.get("type") == "nat" and one.get("hook") in HOOKS:
            self.bases.append(one["name"])

    def walk(self, chain: str, known: Translation, depth: int = 0) -> Iterator[Translation]:
        """Yield the translations of a chain and of those that it calls."""
        for rule in self._rules.get(chain, ()) if depth < DEEPEST else ():
            now: Translation | None = known
            for one in rule:
                if now is None:
                    break
                if isinstance(match := one.get("match"), dict):
                    now = _matched(now, match)
                elif isinstance(vmap := one.get("vmap"), dict):
                    for each, verdict in self._chosen(vmap, now):
                        yield from self._called(verdict, each, depth)
                elif isinstance(given := one.get("dnat"), dict):
                    yield from self._replaced(given.get("addr"), now)
                else:
                    yield from self._called(one, now, depth)

    def _called(self, verdict: Any, known: Translation, depth: int) -> Iterator[Translation]:
        for word in ("jump", "goto"):
            if isinstance(verdict, dict) and isinstance(called := verdict.get(word), dict):
                chain = str(called["target"])
                chains = (*known.chains, chain) if known.is_mapped else ()
                yield from self.walk(chain, replace(known, chains=chains), depth + 1)

    def _replaced(self, address: Any, known: Translation) -> Iterator[Translation]:
        if isinstance(address, str):
            yield replace(known, to=address)
        elif isinstance(address, dict) and isinstance(address.get("map"), dict):
            for each, value in self._chosen(address["map"], known):
                first = value["concat"][0] if isinstance(value, dict) and "concat" in value else value
                if isinstance(first, str):
                    yield replace(each, to=first)

    def _chosen(self, of: dict[str, Any], known: Translation) -> Iterator[tuple[Translation, Any]]:
        """Yield what is known with each element of a map, and the element's value."""
        for key, value in elements(of, self._maps):
            now: Translation | None = replace(known, is_mapped=True)
            for part, one in zip(parts(of.get("key")), parts(key), strict=False):
                now = now and _equal(now, part, one)
            if now is not None:
                yield now, value


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


def _matched(known: Translation, match: dict[str, Any]) -> Translation | None:
    """Return what is known behind a match; None if no packet of TCP passes it."""
    left, right = match.get("left"), match.get("right")
    if match.get("op") == "!=":
        is_input = isinstance(left, dict) and left.get("meta", {}).get("key") in ("iif", "iifname")
        return replace(known, not_from=right) if is_input and isinstance(right, str) else known
    return _equal(known, left, right)


def _equal(known: Translation, left: Any, right: Any) -> Translation | None:
    if not isinstance(left, dict):
        return known
    field, meta = left.get("payload", {}).get("field"), left.get("meta", {}).get("key")
    if field == "dport":
        ports = tuple(_numbers(right)) or known.ports
        both = tuple(port for port in ports if port in (known.ports or ports))
        return replace(known, ports=both) if both or not ports else None
    if field == "daddr" and isinstance(right, str) and not right.startswith("@"):
        return replace(known, address=right) if known.address in (None, right) else None
    if meta == "l4proto" and right in ("udp", "sctp"):
        return None
    return replace(known, is_random=True) if any(word in left for word in RANDOM) else known


def _numbers(right: Any) -> Iterator[int]:
    if isinstance(right, int):
        yield right
    elif isinstance(right, dict) and "range" in right:
        first, last = right["range"]
        yield from range(first, min(last, first + MOST_PORTS - 1) + 1)
    elif isinstance(right, dict) and "set" in right:
        for one in right["set"]:
            yield from _numbers(one)
