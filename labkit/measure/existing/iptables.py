"""Rules of iptables-legacy, in the form in which nft prints its own rules as JSON, as far as they are understood."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

PROGRAMS = {"iptables": "ip", "ip6tables": "ip6"}
_LINE = re.compile(r"\[(?P<packets>\d+):\d+\] -A (?P<rule>(?P<chain>\S+).*)")
_META = {"-i": "iifname", "-o": "oifname", "-p": "l4proto"}
_FIELDS = {"-s": "saddr", "-d": "daddr", "--sport": "sport", "--dport": "dport"}
_TARGETS = {"DROP": "drop", "REJECT": "reject", "ACCEPT": "accept", "NFQUEUE": "queue", "REDIRECT": "redirect",
            "DNAT": "dnat", "SNAT": "snat", "MASQUERADE": "masquerade", "TPROXY": "tproxy"}  # fmt: skip


def ruleset(program: str, saved: str) -> Iterator[dict[str, Any]]:
    """Yield chains and rules; `text` and `handle` of a rule are as it was given, and `undo` removes it.

    program: a key of PROGRAMS. saved: the output of its save command with counters.
    """
    table = ""
    for line in saved.splitlines():
        of = {"family": PROGRAMS[program], "table": f"{table} (legacy)"}
        if line.startswith("*"):
            table = line[1:].strip()
        elif line.startswith(":"):
            name, policy, *_ = line[1:].split()
            base = {} if policy == "-" else {"hook": name.lower(), "policy": policy.lower()}
            yield {"chain": {**of, "name": name, **base}}
        elif found := _LINE.match(line):
            undo = f"{program}-legacy -t {table} -D {shlex.join(shlex.split(found['rule']))}"
            counter = {"counter": {"packets": int(found["packets"])}}
            text = found["rule"]
            rule = {**of, "chain": found["chain"], "handle": text, "text": text, "undo": undo}
            yield {"rule": {**rule, "expr": [counter, *_expressions(of["family"], found["rule"])]}}


def _expressions(family: str, rule: str) -> Iterator[dict[str, Any]]:
    right: Any
    op, words = "==", shlex.split(rule)[1:]
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word == "-m" and value == "limit":
            yield {"limit": {}}
        elif word in _META:
            yield _match(
                op, {"meta": {"key": _META[word]}}, f"{value[:-1]}*" if value.endswith("+") else value
            )
        elif word in ("-s", "-d"):
            address, _, length = value.partition("/")
            right = (
                {"prefix": {"addr": address, "len": int(length)}} if length.isdigit() else "@"
            )  # another mask
            yield _match(op, {"payload": {"protocol": family, "field": _FIELDS[word]}}, right)
        elif word in _FIELDS:
            ends = [int(end) for end in value.split(":") if end.isdigit()]
            right = {"range": ends} if len(ends) > 1 else ends[0] if ends else "@"
            yield _match(op, {"payload": {"protocol": "th", "field": _FIELDS[word]}}, right)
        elif word == "--set-mss" and value.isdigit():
            yield {"mangle": {"key": {"tcp option": {"name": "maxseg"}}, "value": int(value)}}
        elif word in ("-j", "-g"):
            yield {_TARGETS[value]: None} if value in _TARGETS else {"jump": {"target": value}}
        op = "!=" if word == "!" else "=="


def _match(op: str, left: dict[str, Any], right: Any) -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}
