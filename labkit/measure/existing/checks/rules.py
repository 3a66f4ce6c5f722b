"""Rules of nftables and of iptables: those that drop, long sets, bridges that call them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from ipaddress import ip_address, ip_network
from itertools import product
from operator import and_, or_, xor
from typing import Any, NamedTuple

from labkit.common import units
from labkit.measure.existing import maps as maps_of
from labkit.measure.existing.checks.evidence import Evidence, packets_of, rule_key
from labkit.measure.existing.checks.findings import ALL, MOST, MUCH, POSSIBLE, PRESENT, SEEN, SOME, Finding
from labkit.measure.existing.checks.probes import NOISE_SHARE
from labkit.measure.existing.path import REFUSALS, Path, source_for
from labkit.measure.existing.spaces import PLAIN, Place, Space
from labkit.system import netlink

MANY_RULES, FEW_HOPS = 50, 16
LEAVING = ("output", "postrouting", "egress")  # hooks of what an end sends; others are of what it receives
UNANSWERED = {"FAILED", "INCOMPLETE"}  # states of a neighbour that does not answer
RULE_NS = 22  # what a rule that does not match costs a packet: 100 rules take 2.2 µs (README)
CHOSEN = "32768-60999"  # the usual ports of which the kernel chooses those of probes (ip_local_port_range)
TRANSLATIONS = ("dnat", "redirect", "snat", "masquerade", "tproxy", "netmap")
REPLACED = ("saddr", "daddr", "sport", "dport")  # fields whose new value leads packets elsewhere
VERDICTS = {"drop": "drops", "reject": "rejects", "fwd": "sends elsewhere"}
# What says all about whether a rule matches
SURE = {"match", "counter", "mangle", "vmap", "accept", "return", "jump", "goto", *VERDICTS, *TRANSLATIONS}
# How nft prints protocols: by their names in /etc/protocols, or without that file by their numbers.
ALSO = {
    "icmp": ("1",), "icmpv6": ("ipv6-icmp", "58"), "tcp": ("6",), "udp": ("17",), "gretap": ("gre", "47"),
    "gre": ("47",), "ipip": ("ipencap", "4"), "sit": ("ipv6", "41"),
}  # fmt: skip
# What labkit's packets of ICMP are, and those that they need: errors, and neighbours of IPv6.
TYPES = {
    "icmp": ("echo-request", "8", "destination-unreachable", "3"),
    "icmpv6": ("echo-request", "128", "packet-too-big", "2", "nd-neighbor-solicit", "135", "nd-neighbor-advert", "136"),
}  # fmt: skip
BITWISE: dict[str, Callable[[int, int], int]] = {"|": or_, "&": and_, "^": xor}
INVALID, NEW = ("state", "invalid"), ("state", "new")
MARK = ("meta", "mark")
FLAGS = {name: 1 << bit for bit, name in enumerate(("fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"))}
SYN, SYN_ACK = str(FLAGS["syn"]), str(FLAGS["syn"] | FLAGS["ack"])
DONT_FRAGMENT = "16384"  # of the packets that measure an MTU
PROTOCOLS = ("tcp", "udp", "icmp", "icmpv6", "sctp")
# An open packet stands for all packets of a family and a protocol. It has these as its addresses and its port, until a
# condition on its way names some (`_narrowed`).
ANY, ANY_PORT, MOST_PORTS = ("0.0.0.0/0", "::/0"), "0-65535", 64
RANDOM = {"numgen", "jhash", "symhash"}  # what chooses an element without regard to address or port
Rule = Mapping[str, Any]
Packet = dict[str, str]
Chain = tuple[str, str, str]  # family, table, name
# A statement or a value, whether a packet that the rule matches surely gets it, and this packet
Given = tuple[Any, bool, Packet]


def _any(results: Iterable[bool | None]) -> bool | None:
    """Return whether one of several conditions holds; None if that is unknown."""
    found = set(results)
    return True if True in found else None if None in found else False


def _holds(value: str, right: Any) -> bool | None:
    """Return whether an address, a name or a port is what a rule compares with; None if that is unknown.

    A port that the kernel chooses from a range is `first-last`.
    """
    if isinstance(right, dict):
        if "set" in right:
            known: dict[str, bool | None] = getattr(right["set"], "known", {})
            if value not in known:
                known[value] = _any(_holds(value, one) for one in right["set"])
            return known[value]
        if "prefix" in right:
            network = ip_network(f"{right['prefix']['addr']}/{right['prefix']['len']}", strict=False)
            own = ip_address(value)
            return own.version == network.version and own in network
        numbers = [int(end) for end in value.split("-") if end.isdigit()]
        if "range" in right and numbers and all(isinstance(one, int) for one in right["range"]):
            first, last = right["range"]
            inside = {first <= one <= last for one in numbers}
            partly = len(inside) > 1 or numbers[0] < first <= last < numbers[-1]
            return None if partly else inside.pop()
        return None
    if isinstance(right, int) or (isinstance(right, str) and right.isdigit()):
        return value == str(right)
    if not isinstance(right, str) or right.startswith("@"):
        return None
    return value == right or (right.endswith("*") and value.startswith(right[:-1]))


def may_match(rule: Rule, packet: Mapping[str, str], interfaces: set[str]) -> bool:
    """Return whether a rule may match a packet (saddr, daddr, protocol) that passes these interfaces; a condition that
    is not understood may."""
    return matches(rule, packet, interfaces) is not False


def matches(rule: Rule, packet: Mapping[str, str], interfaces: set[str]) -> bool | None:
    """Return whether a rule matches a packet, as `may_match`; None if that is unknown."""
    is_sure = all(one.keys() <= SURE for one in rule.get("expr", ()))
    other = "ip" if ":" in packet["saddr"] else "ip6"
    if rule["family"] == other:
        return False
    for left, right, op in _conditions(rule):
        masked = left.get("&")
        field, mask = masked if isinstance(masked, list) and len(masked) == 2 else (left, None)
        payload = field.get("payload", {}) if isinstance(field, dict) else {}
        protocol = payload.get("protocol")
        # nft adds, and does not print, that a header of the other version has to be there, whatever is compared.
        if protocol == other or (protocol in PROTOCOLS and protocol != packet["protocol"]):
            return False
        holds = _compared(left, right, packet, interfaces)
        name = payload.get("field") or (field.get("meta", {}).get("key") if isinstance(field, dict) else None)
        if (flags := _flags(name, mask, right, op, packet)) is not None:
            holds = flags
        elif op not in ("==", "!=", "in"):
            holds = None
        elif holds is not None and op == "!=":
            holds = not holds
        if holds is False:
            return False
        is_sure = is_sure and holds is True
    return True if is_sure else None


def _conditions(rule: Rule) -> Iterator[tuple[dict[str, Any], Any, str]]:
    """Yield what each condition of a rule looks at, what it compares this with, and how."""
    for match in (one["match"] for one in rule.get("expr", ()) if isinstance(one.get("match"), dict)):
        if isinstance(match.get("left"), dict):
            yield match["left"], match["right"], match.get("op", "==")


def _flags(field: Any, mask: Any, right: Any, op: str, packet: Mapping[str, str]) -> bool | None:
    """Return whether a condition on bits of a packet's header or of its mark holds; None if that is unknown."""
    known = {"flags": packet.get("flags"), "frag-off": DONT_FRAGMENT, "mark": packet.get("mark")}
    own = known.get(str(field))
    masked, wanted = (_bits(one) for one in (mask, right))
    if not own or wanted is None or (mask is not None and masked is None):
        return None
    bits = int(own) if masked is None else int(own) & masked
    if op in ("in", "!"):  # any of them, none of them
        return bool(bits & wanted) == (op == "in")
    return (bits == wanted) == (op == "==") if op in ("==", "!=") else None


def _bits(value: Any) -> int | None:
    """Return a number, or that of flags of TCP by their names; None for anything else."""
    if isinstance(value, int):
        return value
    names = [value] if isinstance(value, str) else value
    known = isinstance(names, list) and all(one in FLAGS for one in names)
    return sum(FLAGS[one] for one in set(names)) if known else None


def _compared(left: Any, right: Any, packet: Mapping[str, str], interfaces: set[str]) -> bool | None:
    """Return whether what a rule or a map looks at in a packet is a value; None if that is unknown."""
    if not isinstance(left, dict):
        return None
    field, key = str(left.get("payload", {}).get("field")), str(left.get("meta", {}).get("key"))
    if field in ("saddr", "daddr") and left["payload"].get("protocol") in ("ip", "ip6"):
        return None if packet[field] in ANY else _holds(packet[field], right)
    if key in ("iifname", "oifname", "iif", "oif"):
        results = {_holds(name, right) for name in interfaces}
        return results.pop() if len(results) == 1 else None  # which of them the rule sees is not known
    if field in ("sport", "dport"):
        return _holds(packet.get(field, CHOSEN), right)
    if field == "type" and (types := TYPES.get(left["payload"].get("protocol"))):
        return None if any(_holds(name, right) is not False for name in types) else False
    if left.get("fib", {}).get("result") == "type":
        if own := packet.get("local"):
            address = packet["saddr" if "saddr" in left["fib"]["flags"] else "daddr"]
            return _holds("local" if address in own.split() else "unicast", right)
        return None if any(_holds(name, right) is not False for name in ("local", "unicast")) else False
    if "asked" in packet and field in ("saddr ip", "daddr ip"):
        return None if any(_holds(one, right) is not False for one in packet["asked"].split()) else False
    family = "ip6" if ":" in packet["saddr"] else "ip"
    if key == "nfproto":
        return _holds("ipv6" if family == "ip6" else "ipv4", right)
    if key == "protocol" or (field == "type" and left["payload"].get("protocol") == "ether"):
        results = {_holds(name, right) for name in (family, "arp")}  # a neighbour has to be found first
        return results.pop() if len(results) == 1 else None
    if key == "pkttype":
        return bool(_holds("unicast", right) or _holds("host", right))
    tracked = left.get("ct", {}).get("key"), right
    if tracked == INVALID and packet["protocol"] != "tcp":
        return False  # of the others, conntrack takes each for new
    if tracked == NEW and packet.get("flags") == SYN_ACK:
        return False
    if key == "l4proto" or field in ("protocol", "nexthdr"):
        return _any(_holds(name, right) for name in (packet["protocol"], *ALSO.get(packet["protocol"], ())))
    return None


def _narrowed(conditions: Iterable[tuple[Any, Any, str]], packet: Packet) -> list[Packet]:
    """Return what conditions leave of an open packet: one for each port that they name. Others stay as they are.

    A condition is what it looks at, a value, and an operator. The packet also gets `not_from`, an interface whose
    packets the conditions exclude, and `random` if they choose at random.
    """
    result = [packet]
    for left, right, op in conditions if packet["saddr"] in ANY else ():
        of = left if isinstance(left, dict) else {}
        field, key = of.get("payload", {}).get("field"), of.get("meta", {}).get("key")
        is_word = isinstance(right, str) and not right.startswith("@")
        known: list[Packet] = []
        if RANDOM & of.keys():
            known = [{"random": "yes"}]
        elif op == "!=" and key in ("iif", "iifname") and is_word:
            known = [{"not_from": right}]
        elif op in ("==", "in") and field == "dport" and result[0]["dport"] == ANY_PORT:
            known = [{"dport": str(number)} for number in _numbers(right)]
        elif op == "==" and field == "daddr" and result[0]["daddr"] in ANY and is_word:
            known = [{"daddr": right}]
        result = [{**one, **each} for one in result for each in known] or result
    return result


def _numbers(right: Any) -> Iterator[int]:
    """Yield the ports that a rule compares with, of a range the first MOST_PORTS."""
    if isinstance(right, int):
        yield right
    elif isinstance(right, dict) and "range" in right:
        first, last = right["range"]
        yield from range(first, min(last, first + MOST_PORTS - 1) + 1)
    elif isinstance(right, dict) and "set" in right:
        for one in right["set"]:
            yield from _numbers(one)


def _verdicts(rule: Rule, maps: maps_of.Maps, packet: Packet, names: set[str]) -> Iterator[Given]:
    """Yield the statements of a rule, and of its verdict maps the verdicts that a packet may get."""
    for one in rule.get("expr", ()):
        vmap = one.get("vmap")
        yield from _mapped(vmap, maps, packet, names) if isinstance(vmap, dict) else ((one, True, packet),)


def _mapped(of: Rule, maps: maps_of.Maps, packet: Packet, names: set[str]) -> Iterator[Given]:
    """Yield the values that a map may give to a packet. An open one then has `through`, the chains that maps choose."""
    if packet["saddr"] in ANY:
        packet = {"through": "", **packet}
    for key, value in maps_of.elements(dict(of), maps):
        parts = [*zip(maps_of.parts(of.get("key")), maps_of.parts(key), strict=False)]
        for own in _narrowed([(part, given, "==") for part, given in parts], packet):
            holds = [_compared(part, given, own, names) for part, given in parts]
            if False not in holds:
                yield value, own is packet and all(holds), own


def _replaced(given: Any, maps: maps_of.Maps, packet: Packet, names: set[str]) -> Iterator[Given]:
    """Yield what a translation may give to a packet. A map may choose the address, and the port with it."""
    address = given.get("addr") if isinstance(given, dict) else None
    of_map = address.get("map") if isinstance(address, dict) else None
    if not isinstance(of_map, dict):
        yield given, True, packet
        return
    for value, is_sure, own in _mapped(of_map, maps, packet, names):
        chosen = dict(zip(("addr", "port"), maps_of.parts(value), strict=False))
        yield {**given, **chosen}, is_sure, own


def entries(listed: list[dict[str, Any]], kind: str) -> list[Rule]:
    """Return the rules or the chains of what nft lists."""
    return [one[kind] for one in listed if kind in one]


def chain_of(one: Rule) -> Chain:
    """Return the chain of a rule, or a chain itself."""
    return one["family"], one["table"], one.get("chain") or one["name"]


def _reached(starts: Iterable[Chain], calls: Callable[[Chain], Iterable[str]]) -> set[Chain]:
    """Return these chains, and those that they call in their tables, directly or through others."""
    reached, waiting = set[Chain](), list(starts)
    while waiting:
        if (chain := waiting.pop()) not in reached:
            reached.add(chain)
            waiting += [(*chain[:2], name) for name in calls(chain)]
    return reached


def _by_chain(listed: list[dict[str, Any]]) -> defaultdict[Chain, list[Rule]]:
    result = defaultdict[Chain, list[Rule]](list)
    for one in entries(listed, "rule"):
        result[chain_of(one)].append(one)
    return result


def _reachable(listed: list[dict[str, Any]], packet: Packet, interfaces: set[str]) -> set[Chain]:
    """Return the chains that a packet may pass: those with a hook, and those that matching rules call."""
    rules, known = _by_chain(listed), maps_of.named(listed)

    def called(chain: Chain) -> Iterator[str]:
        for rule in rules[chain]:
            calls = any(word in one for one in rule.get("expr", ()) for word in ("jump", "goto", "vmap"))
            if calls and may_match(rule, packet, interfaces):
                verdicts = _verdicts(rule, known[chain[:2]], packet, interfaces)
                yield from _targets([one for one, *_packet in verdicts])

    return _reached((chain_of(one) for one in entries(listed, "chain") if "hook" in one), called)


def _packets(seen: Evidence) -> Iterator[dict[str, str]]:
    """Yield what labkit's packets have that did not all arrive or had no answer, and the outer ones of tunnels: saddr,
    daddr, protocol, and dport if it is known."""
    icmp, asked = "icmpv6" if seen.client.version == 6 else "icmp", " ".join(_asked(seen))
    for path, probe in seen.directions:
        if not probe.arrives:
            for one in (outer for outer in path.outer if outer.source):
                yield {"saddr": one.source, "daddr": one.destination, "asked": asked, **one.packet}
        whole = probe.mtu is None or probe.mtu.passes_bytes >= probe.mtu.full_bytes
        known = {"saddr": path.source, "daddr": path.destination, "asked": asked}
        here, there = (seen.client, seen.server) if path is seen.forward else (seen.server, seen.client)
        known |= {"sport": _chosen(seen, here.space), "dport": _chosen(seen, there.space)}
        for protocol, sent in ((icmp, probe.icmp), ("udp", probe.udp)):
            if sent.lost_share > NOISE_SHARE or not whole:
                yield {**known, "protocol": protocol}
        if not seen.connects:
            flags = SYN if path is seen.forward else SYN_ACK
            tcp = {**known, "protocol": "tcp", "flags": flags}
            side = "dport" if path is seen.forward else "sport"
            yield from ({**tcp, side: str(port)} for port in seen.ports)
            if not seen.ports:
                yield tcp


def _chosen(seen: Evidence, end: Space) -> str:
    own = end.sysctl("net/ipv4/ip_local_port_range") if end in seen.ends else None
    return own.replace(" ", "-") if own else CHOSEN


def _routing(seen: Evidence) -> set[Space]:
    """Return the ends, and the namespaces that route packets between them."""
    arrivals = (place.space for path in (seen.forward, seen.back) for place in path.arrivals)
    return {*seen.ends, *arrivals}


def unanswered(sender: Place, address: str) -> bool:
    """Return whether the kernel asked for a neighbour of an interface in vain."""
    alike = (
        one for one in sender.space.neighbours if (one.get("dst"), one.get("dev")) == (address, sender.name)
    )
    return any(UNANSWERED & set(one.get("state", ())) for one in alike)


def _asked(seen: Evidence) -> list[str]:
    """Return the addresses in requests of ARP that nobody answered: those asked for, and those of who asks."""
    hops = (hop for path, _probe in seen.directions for hop in path.hops)
    missing = [(sender, to) for sender, to, _owner in hops if ":" not in to and unanswered(sender, to)]
    own = [one for out, _to in missing for one, at in out.space.addresses.items() if at == out.index]
    return [*(to for _out, to in missing), *own]


def applied(seen: Evidence, space: Space, family: str) -> bool:
    """Return whether rules of a family see the packets in a namespace: it routes them, or its bridge calls them."""
    if family == "arp":
        return bool(_asked(seen))
    if family in ("netdev", "bridge") or space in _routing(seen):
        return True
    calls = f"nf_call_ip{'6' if seen.client.version == 6 else ''}tables"  # for all bridges, or of one
    of_bridges = (
        one.details.get("linkinfo", {}).get("info_data", {}) for one in seen.places if one.space is space
    )
    switch = f"net/bridge/bridge-{calls.replace('_', '-')}"
    return space.number(switch) == 1 or any(one.get(calls) for one in of_bridges)


def _rules(seen: Evidence) -> Iterator[tuple[Space, set[str], Rule]]:
    """Yield each rule with its namespace, and the names of the interfaces that packets pass there."""
    for space in seen.spaces:
        names = seen.names(space)
        yield from ((space, names, rule) for rule in entries(seen.rulesets[space.name], "rule"))


def dropping(seen: Evidence) -> Iterator[Finding]:
    """Rules and policies that drop packets like those that were lost."""
    packets = list(_packets(seen))
    reachable: dict[tuple[str, int], set[Chain]] = {}
    maps = {name: maps_of.named(listed) for name, listed in seen.rulesets.items()} if packets else {}
    # Numbers of packets that a rule of the chain accepts, so that later ones do not see them.
    accepted = set[tuple[str, Chain, int]]()
    for space, names, rule in _rules(seen) if packets else ():
        hits = seen.hits.get(rule_key(space.name, rule))
        if hits != 0 and any("accept" in one for one in rule.get("expr", ())):
            taken = (n for n, packet in enumerate(packets) if matches(rule, packet, names))
            accepted.update((space.name, chain_of(rule), number) for number in taken)
        if hits == 0 or not any(word in one for one in rule.get("expr", ()) for word in (*VERDICTS, "vmap")):
            continue
        listed, chain = seen.rulesets[space.name], chain_of(rule)
        known, verdict, fit = maps[space.name][chain[:2]], None, list[dict[str, str]]()
        for number, packet in enumerate(packets):
            if (space.name, chain, number) in accepted or not may_match(rule, packet, names):
                continue
            said = [one for one, *_to in _verdicts(rule, known, packet, names) if isinstance(one, dict)]
            found = next((word for one in said for word in VERDICTS if word in one), None)
            key = (space.name, number)
            if found and key not in reachable:
                reachable[key] = _reachable(listed, packet, names)
            if found and chain in reachable[key]:
                verdict, fit = found, [*fit, packet]
        if verdict is None:
            continue
        only_icmp = all(packet["protocol"].startswith("icmp") for packet in fit)
        takes = bool(hits) or any(matches(rule, one, names) for one in fit)
        likely = seen.filtered and INVALID[1] not in str(rule["expr"])
        if not applied(seen, space, rule["family"]) or not (hits or _passed(seen, space, rule, names)):
            continue
        counted = f": it counted {units.counted(hits, 'packet')} during the check" if hits else ""
        yield Finding(
            cause="drop rule",
            what=f"a rule in {' '.join(chain)} {VERDICTS[verdict]} packets like those that were lost{counted}:"
            f" {_text(space, rule)}",
            where=space.name, certainty=SEEN if hits or likely or (takes and verdict == "fwd") else POSSIBLE,
            weight=SOME if only_icmp and seen.passes else ALL - (0.01 if takes else 0.015),
            undo=_deletion(space, rule),
        )  # fmt: skip
    for space in seen.spaces if packets else ():
        passed = {chain for name, chain, _n in accepted if name == space.name}
        whole = {one for one in passed if all((space.name, one, n) in accepted for n in range(len(packets)))}
        yield from _policies(seen, space, whole)


def _policies(seen: Evidence, space: Space, passed: set[Chain]) -> Iterator[Finding]:
    """Yield the chains whose policy may have dropped packets. passed: those that accept all of them."""
    dropped = seen.lossy and any(reason == "NETFILTER_DROP" and name for reason, _at, name in seen.drops)
    for chain in entries(seen.rulesets[space.name], "chain"):
        if (
            chain.get("policy") == "drop"
            and (seen.blocked or dropped)
            and chain_of(chain) not in passed
            and applied(seen, space, chain["family"])
            and not _other_family(seen, chain["family"])
            and _passed(seen, space, chain, seen.names(space))
        ):
            name = " ".join(chain_of(chain))
            yield Finding(
                cause="drop policy",
                what=f"the chain {name} (hook {chain.get('hook')}) drops what no rule of it accepts",
                where=space.name, certainty=SEEN if seen.filtered else POSSIBLE, weight=ALL - 0.02,
                undo="add a rule that accepts the packets of this path",
            )  # fmt: skip


def _passed(seen: Evidence, space: Space, of: Rule, names: set[str]) -> bool:
    """Return whether packets of the path may pass a rule's chain by its hook and device: ends receive and send, others
    forward. names: the interfaces of the path there."""
    chain = _chain(seen, space, of)
    hook, devices = chain.get("hook"), chain.get("dev")
    if devices and names.isdisjoint([devices] if isinstance(devices, str) else devices):
        return False
    if of["family"] == "arp":  # routers ask and answer, too
        return True
    if space in seen.ends:
        return hook != "forward"
    # Outer packets may begin and end anywhere.
    tunnelled = any(path.outer for path, _probe in seen.directions)
    silent = any(probe.mtu and probe.mtu.is_hole for _path, probe in seen.directions)
    return tunnelled or hook not in ("input", "output") or (silent and hook == "output")  # of ICMP errors


def _chain(seen: Evidence, space: Space, of: Rule) -> Rule:
    chains = entries(seen.rulesets[space.name], "chain")
    return next((one for one in chains if chain_of(one) == chain_of(of)), {})


def _is_plain(rule: Rule) -> bool:
    """Return whether its table and chain have names that nft reads as names: over netlink they may have any."""
    return bool(PLAIN.fullmatch(rule["table"]) and PLAIN.fullmatch(rule["chain"]))


def _deletion(space: Space, rule: Rule) -> str | None:
    if "undo" in rule:
        return space.command(rule["undo"])
    place = " ".join(chain_of(rule))
    return space.command(f"nft delete rule {place} handle {rule['handle']}") if _is_plain(rule) else None


def _text(space: Space, rule: Rule) -> str:
    """Return a rule as its program prints it."""
    if "text" in rule:
        return str(rule["text"])
    if not _is_plain(rule):
        return f"handle {rule['handle']}"
    ended = space.namespace.run("nft", "-a", "list", "chain", *chain_of(rule))
    wanted = f"# handle {rule['handle']}"
    lines = [line.strip() for line in ended.stdout.splitlines() if line.rstrip().endswith(wanted)]
    return lines[0].removesuffix(wanted).strip() if lines else f"handle {rule['handle']}"


def long_sets(seen: Evidence) -> Iterator[Finding]:
    """Base chains that each packet passes, whose rules and those of the chains that they call are many. Those of type
    nat see only the first packet of a connection."""
    for space in seen.spaces:
        rules = entries(seen.rulesets[space.name], "rule")
        counts, calls = Counter(map(chain_of, rules)), defaultdict[Chain, set[str]](set)
        for rule in rules:
            calls[chain_of(rule)].update(_targets(rule.get("expr", ())))
        passed = [[(0, "")], [(0, "")]]
        for chain in entries(seen.rulesets[space.name], "chain"):
            family = chain["family"]
            if "hook" not in chain or chain.get("type") == "nat" or _other_family(seen, family):
                continue
            if not applied(seen, space, family) or not _passed(seen, space, chain, seen.names(space)):
                continue
            count = sum(counts[one] for one in _reached([chain_of(chain)], calls.__getitem__))
            passed[chain["hook"] in LEAVING].append((count, " ".join(chain_of(chain))))
        ways = passed if space in seen.ends else [passed[0] + passed[1]]
        total, (most, where) = max((sum(count for count, _chain in one), max(one)) for one in ways)
        if total < MANY_RULES:
            continue
        hit = sum(bool(seen.hits.get(rule_key(space.name, rule))) for rule in rules)
        counted = sum(packets_of(rule) is not None for rule in rules)
        bridged = space not in _routing(seen)
        by = ", which a bridge calls for each frame (br_netfilter)" if bridged else ""
        hits = f"; {hit} of {counted} with a counter counted packets during the check" if counted else ""
        yield Finding(
            cause="bridge calls long rule sets" if bridged else "long rule set",
            what=f"up to {total} rules see each packet{by}, {most} of them from {where}{hits}",
            where=space.name, weight=min(SOME + total / 5000, MUCH),
            cost=f"up to {units.si(total * RULE_NS * 1e-9, 's')} for each packet",
            undo=space.command("sysctl -w net.bridge.bridge-nf-call-iptables=0") if bridged else None,
        )  # fmt: skip


def _other_family(seen: Evidence, family: str) -> bool:
    return family == ("ip" if seen.client.version == 6 else "ip6")


def _targets(value: Any) -> Iterator[str]:
    """Yield the chains to which a rule or its verdict map jumps."""
    if isinstance(value, dict):
        if isinstance(value.get("target"), str):
            yield value["target"]
        for inner in value.values():
            yield from _targets(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _targets(inner)


def translated(seen: Evidence) -> Iterator[Finding]:
    """Rules that replace addresses or ports of packets that do not arrive."""
    arrives = all(probe.arrives for _path, probe in seen.directions)
    closed = {port for port, one in closed_ports(seen).items() if one.is_sure} if arrives else set()
    explained = bool(closed) and seen.ports.keys() == closed
    for space, names, rule in _rules(seen) if seen.blocked and not explained else ():
        every = rule.get("expr", ())
        replaces = any(word in one for one in every for word in TRANSLATIONS)
        replaces = replaces or any(
            one.get("mangle", {}).get("key", {}).get("payload", {}).get("field") in REPLACED for one in every
        )
        if seen.hits.get(rule_key(space.name, rule)) == 0:
            continue
        if replaces and any(may_match(rule, packet, names) for packet in _packets(seen)):
            lost = _no_way_back(seen, space, rule)
            yield Finding(
                cause="address translation", weight=MOST,
                certainty=SEEN if lost or not arrives else POSSIBLE,
                where=space.name, undo=_deletion(space, rule),
                what=f"a rule replaces addresses or ports of packets like those that do not arrive{lost}:"
                f" {_text(space, rule)}",
            )  # fmt: skip


class ClosedPort(NamedTuple):
    """Where connections to a port arrive, and nothing listens.

    to: the port there. why: the rules that lead to it, in words. undo: what deletes one of them, if something listens
    without it. is_sure: whether all conditions of these rules are known to hold.
    """

    to: int
    why: str
    undo: str | None
    is_sure: bool


def closed_ports(seen: Evidence) -> dict[int, ClosedPort]:
    """Return the ports that take no connection because nothing listens where it arrives."""
    result, own = dict[int, ClosedPort](), seen.server.address
    packet = {"saddr": seen.client.address, "daddr": seen.asked or own, "protocol": "tcp"}
    for port in (port for port, said in seen.ports.items() if said and seen.far != "server"):
        to, address, listening, why, undo = port, packet["daddr"], seen.listening(), "", None
        is_sure, between = True, (one.space for one in seen.forward.places)
        ways = dict.fromkeys((seen.client.space, *between, seen.server.space))
        for space in (one for one in ways if applied(seen, one, "ip")):
            names = {one.name for one in seen.forward.arrivals if one.space is space} or seen.names(space)
            hook = "output" if seen.ends.get(space) == "client" else "prerouting"
            own_packet = {**packet, "daddr": address, "dport": str(to), "local": " ".join(space.addresses)}
            rule, given, is_known = translation(seen.rulesets[space.name], hook, own_packet, names)
            is_sure = is_sure and is_known
            if not rule:
                continue
            word = "leads" if is_sure else "may lead"
            why += f"; a rule of {space.name} {word} port {to} there: {_text(space, rule)}"
            if to in listening:
                undo = _deletion(space, rule)
            # Any other than DNAT gives the packet to a program of this namespace.
            stays = space is seen.server.space or any("dnat" in one for one in rule["expr"])
            address, to = given.get("addr", address if stays else ""), given.get("port", to)
            is_there = any(address == known for one in ways for known in one.addresses)
            if not is_there or not isinstance(to, int):  # a range
                break
        if address == own and isinstance(to, int) and to not in listening:
            result[port] = ClosedPort(to, why, undo, is_sure)
    return result


class Met(NamedTuple):
    """What a packet meets: a rule, the word of its statement and what this gives, whether that is sure, and the packet,
    of an open one what conditions on its way left of it."""

    rule: Rule
    word: str
    given: Any
    is_sure: bool
    packet: Packet


def _met(listed: list[dict[str, Any]], hook: str, packet: Packet, names: set[str]) -> Iterator[Iterator[Met]]:
    """Yield, for each base chain at a hook, the translations that a packet may meet, and what surely ends its way.

    A condition that is not understood may hold. The packet gets the marks that rules set, or "" for one that is not
    known.
    """
    maps, rules = maps_of.named(listed), _by_chain(listed)
    packet.setdefault("mark", "0")
    is_over = False  # perhaps: an accept, which ends all chains that called its own, may match

    def said(chain: Chain, packet: Packet, is_called: bool) -> Iterator[Met]:
        nonlocal is_over
        known = maps[chain[:2]]
        each_rule = ((rule, own) for rule in rules[chain] for own in _narrowed(_conditions(rule), packet))
        for rule, own in each_rule:
            if (holds := matches(rule, own, names)) is False:
                continue
            # What meets the packets of one port says nothing of the others.
            is_known = is_called and not is_over and holds is True and own is packet
            for what, mark, is_given in _written(rule, known, own, names):
                if what == MARK:
                    packet["mark"] = str(mark) if is_known and is_given and mark is not None else ""
            for one, is_given, each in _verdicts(rule, known, own, names):
                word, given = next(iter(dict[str, Any](one or {"": None}).items()))
                is_sure = is_known and is_given
                if word == "xt":  # a target that nft does not read
                    name = str((given or {}).get("name"))
                    word, given = name.lower(), {} if name == "MASQUERADE" else {"addr": ""}
                    if name in ("MARK", "CONNMARK"):
                        packet["mark"] = ""
                if word in ("jump", "goto"):
                    if "through" in each:
                        chains = filter(None, (each["through"], given["target"]))
                        each = {**each, "through": ", ".join(chains)}
                    yield from said((*chain[:2], given["target"]), each, is_sure)
                # What may not match ends nothing: a packet that arrives was not dropped.
                if word in TRANSLATIONS:
                    for chosen, is_chosen, last in _replaced(given, known, each, names):
                        yield Met(rule, word, chosen, is_sure and is_chosen, last)
                elif is_sure and word in ("accept", "drop"):
                    yield Met(rule, word, given, is_sure, each)
                if word in ("goto", "return", "accept"):
                    if is_sure:
                        return
                    is_over = is_over or word == "accept"
                    is_called = False  # what follows may not be reached

    bases = [one for one in entries(listed, "chain") if one.get("hook") == hook]
    for base in sorted(bases, key=lambda one: int(one.get("prio", 0))):
        is_over = False  # another base chain is passed all the same
        yield said(chain_of(base), packet, True)


def translation(
    listed: list[dict[str, Any]], hook: str, packet: Packet, names: set[str]
) -> tuple[Rule, Rule, bool]:
    """Return the rule, and what its statement gives, by which chains of NAT at a hook replace addresses or ports of a
    packet (without one both are empty), and whether that is sure. An address that is not known is "". The packet gets
    marks (`_met`)."""
    for met in _met(listed, hook, packet, names):
        one = next(met, None)
        if one is not None and one.word in TRANSLATIONS:
            return one.rule, one.given or {}, one.is_sure
    return {}, {}, True


def destinations(listed: list[dict[str, Any]]) -> Iterator[Met]:
    """Yield the rules that replace destinations, each with the packets that it takes: those of TCP first."""
    for protocol, address, hook in product(("tcp", "udp", "sctp"), ANY, ("prerouting", "output")):
        packet = {"saddr": address, "daddr": address, "dport": ANY_PORT, "protocol": protocol, "mark": ""}
        for met in _met(listed, hook, packet, set()):
            yield from (one for one in met if one.word == "dnat")


def source_translation(
    at: Space, sent: dict[str, str], to: str, arrived: str | None, out: str
) -> tuple[str | None, bool]:
    """Return the address that rules put in the place of the sender's before a packet leaves a namespace by an interface
    (None: they keep it, "": it is not known), and whether that is sure.

    arrived: the interface where the packet came; None: it begins here. to: where it goes after other translations.
    """
    listed, sent["local"] = at.ruleset, " ".join(at.addresses)
    _rule, given, _sure = translation(listed, "prerouting" if arrived else "output", sent, {arrived or out})
    port = given.get("port")  # of a range, the one that was asked for
    sent |= {"daddr": to} | ({"dport": str(port)} if isinstance(port, int) else {})
    if arrived:
        translation(listed, "forward", sent, {arrived, out})  # it may give a mark
    rule, given, is_sure = translation(listed, "postrouting", sent, {out})
    if not rule:
        return None, is_sure
    address = given.get("addr", source_for(at, to, at.usable()))
    return address if isinstance(address, str) else "", is_sure


def _no_way_back(seen: Evidence, space: Space, rule: Rule) -> str:
    """Return why answers of the server to the address that a rule puts in the place of the sender's do not come back to
    its namespace; "" if they do, or if that is unknown."""
    given = next((one["snat"] for one in rule["expr"] if "snat" in one), None)
    address = given.get("addr") if isinstance(given, dict) else None
    address = address["range"][0] if isinstance(address, dict) and "range" in address else address
    at, sent = seen.server.space, (one for one in _packets(seen) if one["saddr"] == seen.client.address)
    if not isinstance(address, str) or at not in seen.ends:
        return ""
    if not any(may_match(rule, one, seen.names(space)) for one in sent):
        return ""
    for _ in seen.spaces:
        if at is space:
            return ""
        try:
            next_hop = netlink.route_to(at.namespace.netlink, address).hops[0].via or address
        except netlink.LinkError:
            return f", and {at.name} has no route back to {address}"
        owner = next((one for one in seen.spaces if next_hop in one.addresses), None)
        if owner is None:
            return f", and nobody on the path has {next_hop}, to which {at.name} sends the answers"
        at = owner
    return f", and answers to {address} do not come back to {space.name}"


def marks(seen: Evidence) -> Iterator[Finding]:
    """Rules that mark packets which did not arrive, where rules of routing refuse packets with this mark."""
    packets = list(_packets(seen)) if seen.blocked else []
    known = {name: maps_of.named(listed) for name, listed in seen.rulesets.items()} if packets else {}
    for space, names, rule in _rules(seen) if packets else ():
        if seen.hits.get(rule_key(space.name, rule)) == 0:
            continue
        for path, _probe in seen.directions:
            own = [one for one in packets if one["saddr"] == path.source and may_match(rule, one, names)]
            maps = known[space.name][chain_of(rule)[:2]]
            written = (each for one in own for each in _written(rule, maps, one, names))
            given = {mark for what, mark, _sure in written if what == MARK and mark}
            if path.problems or space not in path.routers or not given:
                continue
            # Of those that begin here, a chain of type route alone looks for the way again.
            hook, kind = (chain := _chain(seen, space, rule)).get("hook"), chain.get("type")
            asked = "prerouting" if path.routers[space] else "output"
            if hook not in (None, asked) or (hook, kind) == ("output", "filter"):
                continue
            refusals = ((mark, _refusal(space, path, mark)) for mark in given)
            mark, refused = next((one for one in refusals if one[1] is not None), (0, None))
            if refused is not None and _refusal(space, path) is None:
                yield Finding(
                    cause="marked packets", certainty=SEEN if hook else POSSIBLE, weight=ALL, where=space.name,
                    undo=_deletion(space, rule),
                    what=f"a rule gives packets like those that were lost the mark {mark:#x}, with which they have no"
                    f" way to {path.destination} ({REFUSALS.get(refused.errno, 'no route')}): {_text(space, rule)}",
                )  # fmt: skip


def policy_routing(seen: Evidence) -> Iterator[Finding]:
    """Rules of routing that lead lost packets of one protocol or port another way than others of the path."""
    ip, icmp = f"ip -{seen.client.version}", {"icmpv6": 58} if seen.client.version == 6 else {"icmp": 1}
    numbers = {**icmp, "tcp": 6, "udp": 17}  # names need /etc/protocols

    def printed(space: Space, words: str) -> str:
        return space.namespace.run(*ip.split(), *words.split()).stdout.partition("\n")[0]

    packets = list(_packets(seen))
    choosing = {
        space
        for space in (_routing(seen) if packets else ())
        if re.search(r" (ipproto|[sd]port) ", space.namespace.run(*ip.split(), "rule").stdout)
    }
    for packet in packets:
        path = seen.forward if packet["saddr"] == seen.forward.source else seen.back
        # A path is that of UDP (below), so it may end where other packets have a way.
        asked = {path.start: 0, **{place.space: place.index for place in path.arrivals}}
        is_own = packet["daddr"] == path.destination and packet["protocol"] in numbers
        for space, into in asked.items() if is_own else ():
            if space not in choosing:
                continue
            came = f" iif {space.links[into].name}" if into else ""
            get = f"route get {path.destination} from {path.source}{came} ipproto"
            port = "".join(
                f" {side} {packet[side]}" for side in ("sport", "dport") if packet.get(side, "").isdigit()
            )
            # Each has a protocol: the kernel takes a question without one for UDP (inet_rtm_getroute).
            own = printed(space, f"{get} {numbers[packet['protocol']]}{port}")
            others = {printed(space, f"{get} {numbers[one]}") for one in numbers if one != packet["protocol"]}
            if own in others - {""} or not any(others):
                continue
            like = f"{packet['protocol']}{port} to {path.destination}"
            yield Finding(
                cause="rule of routing", certainty=POSSIBLE if own else SEEN, weight=ALL, where=space.name,
                what=f"a rule of routing leads {like} another way than other packets: {own}" if own else
                f"a rule of routing leaves {like} without a route, which other packets have",
                undo=space.command(f"{ip} rule  # shows it: delete it"),
            )  # fmt: skip


def _refusal(space: Space, path: Path, mark: int = 0) -> netlink.LinkError | None:
    """Return why a namespace has no way for the packets of a path with a mark; None if it has one."""
    try:
        netlink.route_to(
            space.namespace.netlink, path.destination, path.source or None, path.routers[space], mark
        )
    except netlink.LinkError as error:
        return error
    return None


def _number(value: Any, mark: int | None) -> Any:
    """Return the number that an expression gives with a packet's mark; anything else if that is unknown."""
    for word in BITWISE.keys() & value if isinstance(value, dict) else ():
        each = [_number(one, mark) for one in value[word]]
        return reduce(BITWISE[word], each) if all(isinstance(one, int) for one in each) else value
    return mark if value == {"meta": {"key": "mark"}} else value


def _written(
    rule: Rule, maps: maps_of.Maps, packet: Packet, interfaces: set[str]
) -> Iterator[tuple[tuple[str, str], int | None, bool]]:
    """Yield each field that a rule sets in a packet, for example MARK or ("payload", "ttl"), the number, and whether a
    packet that the rule matches surely gets it. None is a number that is not known."""
    mark = packet.get("mark", "0")
    for mangle in (one["mangle"] for one in rule.get("expr", ()) if isinstance(one.get("mangle"), dict)):
        value = _number(mangle.get("value"), int(mark) if mark else None)
        of_map = value.get("map") if isinstance(value, dict) else None
        mapped = (
            _mapped(of_map, maps, packet, interfaces) if isinstance(of_map, dict) else [(value, True, packet)]
        )
        for header, of in dict(mangle["key"]).items():
            name = next((str(of[name]) for name in ("key", "name", "field") if name in of), "")
            for one, is_sure, _to in mapped:
                yield (header, name), one if isinstance(one, int) else None, is_sure


def ends_hops(seen: Evidence, path: Path, limit: int, at: Space) -> str | None:
    """Return how certain it is that packets which have a hop limit in a namespace of the path do not arrive; None if it
    is enough for the routers from there on."""
    spaces = [place.space for place in path.arrivals]
    if limit <= path.router_count - (spaces.index(at) if at in spaces else 0):
        return SEEN if seen.blocked else POSSIBLE
    return POSSIBLE if limit < FEW_HOPS and not (path.complete and path.exit is None) else None


def clamps(seen: Evidence) -> Iterator[Finding]:
    """Rules that make TCP segments small, that limit a rate, or give packets to a program."""
    packet = {"saddr": seen.client.address, "daddr": seen.server.address, "protocol": "tcp"}
    back = {"saddr": seen.server.address, "daddr": seen.client.address, "protocol": "tcp"}
    for space, names, rule in _rules(seen):
        if not applied(seen, space, rule["family"]) or not any(
            may_match(rule, one, names) for one in (packet, back)
        ):
            continue
        undo, counted = _deletion(space, rule), seen.hits.get(rule_key(space.name, rule))
        for field, value, _sure in _written(rule, {}, packet, names):
            if value is None:
                continue
            if field == ("tcp option", "maxseg") and value < 1000:
                yield Finding(
                    cause="segments clamped", what=f"a rule sets the TCP segment size to {value} bytes", weight=MUCH,
                    where=space.name, undo=undo,
                )  # fmt: skip
            if field not in (("payload", "ttl"), ("payload", "hoplimit")) or counted == 0:
                continue
            every = [one for path, _probe in seen.directions for one in (path, *path.outer)]
            passing = [one for one in every if space in (one.start, *(place.space for place in one.arrivals))]
            if certain := {ends_hops(seen, one, value, space) for one in passing} - {None}:
                yield Finding(
                    cause="hop limit", what=f"a rule sets the hop limit (TTL) to {value}: {_text(space, rule)}",
                    where=space.name, undo=undo, certainty=SEEN if SEEN in certain else POSSIBLE, weight=ALL,
                )  # fmt: skip
        for one in rule.get("expr", ()):
            if "queue" in one:  # what it gives to nobody is dropped, unless the rule says bypass
                stops = bool(seen.blocked and counted and "bypass" not in str(one["queue"]))
                yield Finding(
                    cause="queue to a program", weight=ALL if stops else MUCH, where=space.name, undo=undo,
                    certainty=SEEN if stops else PRESENT,
                    what=f"a rule gives each packet to a program (nfqueue): {_text(space, rule)}",
                )  # fmt: skip
            drops = any(word in each for each in rule["expr"] for word in VERDICTS)
            if "limit" in one and drops:
                yield Finding(
                    cause="rate limit", weight=MUCH, where=space.name, undo=undo, certainty=POSSIBLE,
                    what=f"a rule limits a rate and drops what is above: {_text(space, rule)}",
                )  # fmt: skip
