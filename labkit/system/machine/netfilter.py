"""List the nftables rules of this network namespace over nfnetlink (nft may be missing), and loaded iptables
tables."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from labkit.system.netlink.nft_counters import NETLINK_NETFILTER, NFNL_SUBSYS_NFTABLES, NLM_F_DUMP
from labkit.system.netlink.sockets import LinkError, Netlink, attribute, attributes, request

# linux/netfilter/nf_tables.h
NFT_MSG_GETCHAIN, NFT_MSG_GETRULE, NFT_MSG_GETSET, NFT_MSG_GETSETELEM = 4, 7, 10, 13
NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_HANDLE, NFTA_RULE_POSITION = 1, 2, 3, 6
NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_HOOK, NFTA_CHAIN_POLICY = 1, 3, 4, 5
NFTA_SET_TABLE, NFTA_SET_NAME, NFTA_SET_FLAGS, NFT_SET_EVAL = 1, 2, 3, 0x20
NFTA_SET_ELEM_LIST_ELEMENTS = 3
NFTA_SET_ELEM_PARTS = (1, 2, 3, 10)  # key, data, flags (the end of an interval), last key of a range
NF_DROP = bytes(4)
EMPTY = " without rules"
# Messages of up to 32 KiB that are read of a set. The first elements tell two sets apart; a million of them took 45 s.
MAX_MESSAGES = 32
FAMILIES = {0: "unspec", 1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
NFTA_RULE_EXPRESSIONS, NFTA_EXPR_NAME, NFTA_EXPR_DATA = 4, 1, 2
# Expressions with attributes that change with every packet: bytes and packets, used bytes, the time of the last packet.
COUNTING = {b"counter\0": {1, 2}, b"quota\0": {4}, b"last\0": {1, 2}}
COUNTERS = re.compile(r"\[\d+:\d+\]")
COMMENT = re.compile(r'-m comment --comment ("(\\.|[^"\\])*"|\S+)')
UNSTABLE = (NFTA_RULE_HANDLE, NFTA_RULE_POSITION)
HEAD = 20  # bytes of nlmsghdr and nfgenmsg


def is_nftables(name: str) -> bool:
    """Return whether a name of `rules` is that of a chain or a set of nftables, and not of a table of iptables."""
    return name.startswith("nftables ")


def rules() -> dict[str, str]:
    """Return each chain with its number of rules and a digest of them, each set likewise, and each loaded iptables
    table."""
    result: dict[str, str] = {}
    with suppress(OSError):
        for family, given in _dump(NFT_MSG_GETCHAIN):
            kind = "base chain" if NFTA_CHAIN_HOOK in given else "chain"
            name = f"{_word(given.get(NFTA_CHAIN_TABLE))} {_word(given.get(NFTA_CHAIN_NAME))}"
            policy = ", policy drop" if given.get(NFTA_CHAIN_POLICY) == NF_DROP else ""
            result[f"nftables {family} {name}"] = f"{kind}{EMPTY}{policy}"
        rules_of: dict[str, list[bytes]] = {}
        for family, given in _dump(NFT_MSG_GETRULE):
            words = [_word(given.get(one)) for one in (NFTA_RULE_TABLE, NFTA_RULE_CHAIN)]
            own = [
                _without_counters(value) if kind == NFTA_RULE_EXPRESSIONS else value
                for kind, value in sorted(given.items())
                if kind not in UNSTABLE
            ]
            rules_of.setdefault(" ".join(["nftables", family, *words]), []).append(b"".join(own))
        for name, own in rules_of.items():
            result[name] = _counted(own, "rule") + result.get(name, "").partition(EMPTY)[2]
        result |= _sets()
    for file in ("ip_tables_names", "ip6_tables_names", "arp_tables_names"):
        with suppress(OSError):
            for name in Path("/proc/thread-self/net", file).read_text().split():
                result[f"{file.removesuffix('_names').replace('_', '')} {name}"] = "loaded"
    return result


def _counted(own: list[bytes], what: str) -> str:
    digest = hashlib.sha256(b";".join(own)).hexdigest()[:8]
    return f"{len(own)} {what}{'s' * (len(own) != 1)}, digest {digest}"


def _sets() -> dict[str, str]:
    """Return each set, also those of a rule's braces, which the rule itself does not have; those that packets change
    without their elements."""
    result = {}
    for family, given in _dump(NFT_MSG_GETSET):
        table, name = (given.get(one, b"?") for one in (NFTA_SET_TABLE, NFTA_SET_NAME))
        own, messages = list[bytes](), list[dict[int, bytes]]()
        if not int.from_bytes(given.get(NFTA_SET_FLAGS, b"")) & NFT_SET_EVAL:
            messages = [of for _, of in _dump(NFT_MSG_GETSETELEM, family, table, name)]
        for of in messages:
            for _, one in attributes(of.get(NFTA_SET_ELEM_LIST_ELEMENTS, b"")):
                parts = dict(attributes(one))
                own.append(b":".join(parts.get(each, b"") for each in NFTA_SET_ELEM_PARTS))
        what = "first element" if len(messages) == MAX_MESSAGES else "element"
        # A hash has no order.
        result[f"nftables {family} {_word(table)} set {_word(name)}"] = _counted(sorted(own), what)
    return result


def _without_counters(value: bytes) -> bytes:
    """Return a rule's expressions without the numbers that change with every packet."""
    expressions = [dict(attributes(one)) for _, one in attributes(value)]
    if not any(one.get(NFTA_EXPR_NAME) in COUNTING for one in expressions):
        return value
    result = b""
    for one in expressions:
        name, data = one.get(NFTA_EXPR_NAME, b""), one.get(NFTA_EXPR_DATA, b"")
        if changing := COUNTING.get(name):
            data = b"".join(b"%d:" % kind + own for kind, own in attributes(data) if kind not in changing)
        result += name + data
    return result


def iptables_tables(program: str, text: str) -> dict[str, str]:
    """Return each table of iptables with its number of rules and a digest of them and the policies, without counters
    and comments. text: the output of `iptables-save` or `ip6tables-save`."""
    tables: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("*"):
            lines = tables.setdefault(f"{program} {line[1:].strip()}", [])
        elif line.startswith((":", "-A", "[")):
            lines.append(COMMENT.sub("", COUNTERS.sub("", line)).strip())
    result = {}
    for name, own in tables.items():
        count = sum(line.startswith("-A") for line in own)
        digest = hashlib.sha256("\n".join(own).encode()).hexdigest()[:8]
        result[name] = f"{count} rule{'s' * (count != 1)}, digest {digest}"
    return result


def _word(value: bytes | None) -> str:
    return (value or b"?").rstrip(b"\0").decode(errors="replace")


def _dump(message: int, family: str = "unspec", *words: bytes) -> Iterator[tuple[str, dict[int, bytes]]]:
    """Yield family and attributes of every object of a type; `words`: its table and set."""
    number = next(one for one, name in FAMILIES.items() if name == family)
    # struct nfgenmsg
    body = bytes((number, 0, 0, 0)) + b"".join(attribute(at, word) for at, word in enumerate(words, 1))
    asked = request("list nftables", NFNL_SUBSYS_NFTABLES << 8 | message, NLM_F_DUMP, body)
    # A kernel without nftables, a user without the right, or a set that has just gone.
    with suppress(LinkError), closing(Netlink(NETLINK_NETFILTER)) as kernel:
        # If changes interrupted every attempt, what the last one listed still counts.
        for answer in kernel.attempted(asked, MAX_MESSAGES if words else None)[0]:
            yield FAMILIES.get(answer[16], str(answer[16])), dict(attributes(answer[HEAD:]))
