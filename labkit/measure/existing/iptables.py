"""Rules of iptables, in the form in which nft prints its own rules as JSON, as far as they are understood.

nft does not list those of iptables-legacy, and does not read the extensions (`xt`) of those of iptables-nft.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

PROGRAMS = {"iptables": "ip", "ip6tables": "ip6"}
_LINE = re.compile(r"\[(?P<packets>\d+):\d+\] -A (?P<rule>(?P<chain>\S+).*)")
_META = {"-i": "iifname", "-o": "oifname", "-p": "l4proto"}
_PORTS = {"--sport": "sport", "--dport": "dport", "--sports": "sport", "--dports": "dport"}
_TARGETS = {"DROP": "drop", "REJECT": "reject", "ACCEPT": "accept", "NFQUEUE": "queue", "REDIRECT": "redirect",
            "DNAT": "dnat", "SNAT": "snat", "MASQUERADE": "masquerade", "TPROXY": "tproxy",
            "RETURN": "return", "NETMAP": "netmap"}  # fmt: skip
_TEXTS = ("--comment", "--log-prefix", "--nflog-prefix", "--string")  # their values may look like options
_GIVEN = {family: re.compile(rf"--to-(?:(?:source|destination) {address}|ports)(?::? ?(\d+)(?:-(\d+))?(?=[ /]|$))?")
          for family, address in (("ip", r"([0-9.]+)?(?:-([0-9.]+))?"),
                                  ("ip6", r"\[?([0-9a-f]*:[0-9a-f]*:[0-9a-f:]*)?(?:-([0-9a-f:]+))?\]?"))}  # fmt: skip
# Modules without a condition of their own: their options say all. An option that is not read is not understood.
_MODULES = ("tcp", "udp", "sctp", "icmp", "icmp6", "multiport", "addrtype", "comment", "mark", "conntrack")
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+")
_MANGLED = {"--set-mss": {"tcp option": {"name": "maxseg"}}, "--ttl-set": {"payload": {"field": "ttl"}},
            "--hl-set": {"payload": {"field": "hoplimit"}}, "--set-xmark": {"meta": {"key": "mark"}}}  # fmt: skip

Listed = list[dict[str, Any]]


def save_programs(listed: Listed) -> list[str]:
    """Return the programs that print the rules of iptables-nft whose extensions nft lists without reading them."""
    rules = [one["rule"] for one in listed if "rule" in one]
    families = {rule["family"] for rule in rules if any("xt" in each for each in rule.get("expr", ()))}
    return [f"{program}-nft-save" for program, family in PROGRAMS.items() if family in families]


def merged(listed: Listed, program: str, saved: str) -> Listed:
    """Return what nft lists with the rules of iptables, which replace those that it lists of the same tables.

    program: one that prints rules, for example iptables-legacy-save. saved: what it prints with counters. `text` and
    `handle` of such a rule are as it was given, and `undo` removes it.
    """
    command, table, found = program.removesuffix("-save"), "", Listed()
    name, _, variant = command.partition("-")
    for line in saved.splitlines():
        of = {"family": PROGRAMS[name], "table": f"{table} (legacy)" if variant == "legacy" else table}
        if line.startswith("*"):
            table = line[1:].strip()
        elif line.startswith(":") and variant == "legacy":
            chain, policy, *_ = line[1:].split()
            nat = 100 if chain in ("INPUT", "POSTROUTING") else -100
            prio = {"raw": -300, "mangle": -150, "nat": nat, "security": 50}.get(table, 0)
            base = {"hook": chain.lower(), "policy": policy.lower(), "type": table, "prio": prio}
            found.append({"chain": {**of, "name": chain, **(base if policy != "-" else {})}})
        elif rule := _LINE.match(line):
            text = rule["rule"]
            undo = f"{command} -t {table} -D {shlex.join(shlex.split(text))}"
            counter = {"counter": {"packets": int(rule["packets"])}}
            own = {**of, "chain": rule["chain"], "handle": text, "text": text, "undo": undo}
            found.append({"rule": {**own, "expr": [counter, *_expressions(of["family"], text)]}})
    tables = {(one["rule"]["family"], one["rule"]["table"]) for one in found if "rule" in one}
    known = ((one, one.get("rule")) for one in listed)
    kept = (one for one, rule in known if not rule or (rule["family"], rule["table"]) not in tables)
    return [*kept, *found]


def _expressions(family: str, rule: str) -> Iterator[dict[str, Any]]:
    right: Any
    op, is_match, each = "==", True, iter(shlex.split(rule)[1:])
    words = [word for word in each if word not in _TEXTS or next(each, None) is None]
    for word, value in zip(words, [*words[1:], ""], strict=False):  # a rule that only counts has no words
        if word == "-m" and value in ("limit", "hashlimit"):
            yield {"limit": {}}
        elif word in _META:
            right = f"{value[:-1]}*" if value.endswith("+") else value
            yield _match(op, {"meta": {"key": _META[word]}}, right)
        elif word in ("-s", "-d"):
            address, _, length = value.partition("/")
            if length == ("128" if family == "ip6" else "32"):
                right = address
            elif length.isdigit():
                right = {"prefix": {"addr": address, "len": int(length)}}
            else:
                right = "@"  # another mask
            yield _match(op, {"payload": {"protocol": family, "field": f"{word[1]}addr"}}, right)
        elif word in _PORTS:
            right = {"set": [_ports(one) for one in value.split(",")]}
            yield _match(op, {"payload": {"protocol": "th", "field": _PORTS[word]}}, right)
        elif word in ("--icmp-type", "--icmpv6-type"):
            kind = {"payload": {"protocol": word[2:].removesuffix("-type"), "field": "type"}}
            yield _match(op, kind, _ports(value.partition("/")[0]))
        elif word in ("--src-type", "--dst-type"):
            right = {"set": value.lower().split(",")}
            yield _match(op, {"fib": {"result": "type", "flags": [f"{word[2]}addr"]}}, right)
        elif word == "--mark" and "connmark" not in words:
            right, _, mask = value.partition("/")
            mark = {"&": [{"meta": {"key": "mark"}}, int(mask or "0xffffffff", 0)]}
            yield _match(op, mark, int(right, 0))
        elif word == "--ctstate":
            yield _match(op, {"ct": {"key": "state"}}, value.lower())
        elif word in _MANGLED and (number := _NUMBER.match(value)) and "CONNMARK" not in words:
            kept = 0xFFFFFFFF & ~int(value.partition("/")[2] or "0xffffffff", 0)
            right = int(number[0], 0)
            right = {"^": [{"&": [_MANGLED[word], kept]}, right]} if kept else right
            yield {"mangle": {"key": _MANGLED[word], "value": right}}
        elif word == "--restore-mark":  # that of the connection is not known
            yield {"mangle": {"key": _MANGLED["--set-xmark"], "value": "@"}}
        elif word in ("-j", "-g"):
            is_match = False
            options: dict[str, Any] | None = {"flags": "bypass"} if "--queue-bypass" in words else None
            if given := _GIVEN[family].search(" ".join(words)):
                first, last, *of_ports = given.groups()
                options = {"addr": {"range": [first, last]} if last else first} if first else {}
                options |= {"port": _ports(":".join(filter(None, of_ports)))} if of_ports[0] else {}
            elif value == "NETMAP":  # the address depends on the one that it replaces
                options = {"addr": ""}
            called = {"jump" if word == "-j" else "goto": {"target": value}}
            yield {_TARGETS[value]: options} if value in _TARGETS else called
        elif is_match and (value not in _MODULES if word == "-m" else word.startswith("-")):
            yield {"xt": {"name": word}}  # not understood
        op = "!=" if word == "!" else "=="


def _ports(text: str) -> Any:
    """Return a port, or a range; "@", which nothing is compared with, for another word."""
    ends = [int(end) for end in text.split(":") if end.isdigit()]
    return {"range": ends} if len(ends) > 1 else ends[0] if ends else "@"


def _match(op: str, left: dict[str, Any], right: Any) -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}
