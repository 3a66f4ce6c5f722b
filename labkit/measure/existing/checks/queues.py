"""Queueing disciplines of the path: shapers, emulated delay and loss, short queues, drops; filters of tc."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from labkit.common import units
from labkit.measure.existing.checks.evidence import REDIRECTED, Evidence
from labkit.measure.existing.checks.findings import ALL, MOST, MUCH, POSSIBLE, PRESENT, SEEN, SOME, Finding
from labkit.measure.existing.spaces import Space
from labkit.system.machine.printed import CLASSFUL

FAST_BPS = 40e9  # a shaper above this limits nothing here
SHORT_PACKETS = 32
RATE_NAMES = ("rate", "maxrate", "bandwidth", "ceil")
UNITS = {"bit": 1, "Kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "Tbit": 1e12}
# Its ceiling: of HTB the last rate, of HFSC the upper limit, or a real-time curve where no other one is.
_CLASS = re.compile(
    r"\w+ (?P<id>[\da-f]+:\S+) (?:root|parent (?P<parent>\S+)) .*?"
    r"(?:(?:ceil|ul m1 \S+ d \S+ m2|rt m1 \S+ d \S+ m2(?= \S+ +Sent)) (?P<rate>[\d.]+)(?P<unit>[KMGT]?bit).*)?"
    r" Sent (?P<sent>\d+)"
)
# A line of a filter has an order or a handle; others are of a hash table or a priority.
_FILTER = re.compile(r"^filter .*(?: order \d| handle 0x)", re.M)
# A u32 filter that does not match: 300 take 4.8 µs (`labkit why`, Linux 6.18).
MANY_FILTERS, FILTER_NS = 50, 16
COUNTS = (r"Sent (\d+)", r"\(dropped (\d+)")
_PARTS = re.compile(r"^(?=filter |[ \t]*action order \d)", re.M)  # filters, and each of their actions
# What replaces addresses, ports or tags. Other keys of pedit are of TOS, TTL and the like, and so are other actions.
_CHANGES = re.compile(
    r" order \d+: (?P<kind>nat\b|skbmod(?= \w+ (?:set|swap))|vlan(?= push| pop| modify id [1-9])"
    r"|mpls(?= push| pop| mac_push| modify label)"
    r"|pedit(?=.* at (?:eth|(?:tcp|udp)\+0:|ipv4\+\d\d|ipv6\+(?:8:|\d\d)|-|\d\d)))(?: (?P<tag>push|pop)\b)?"
)
UNDONE_BY = {"push": "pop", "pop": "push"}
NETEM = {"loss-random": "loses", "duplicate": "duplicates", "corrupt": "corrupts", "reorder": "reorders"}


def shapers(seen: Evidence) -> Iterator[Finding]:
    """Shapers, emulated delay and loss, and short queues that packets of the path pass, with their drops."""
    hole = any(probe.mtu and probe.mtu.is_hole for _path, probe in seen.directions)
    for space, name, redirecting, _filters, classes in seen.queued:
        changed = seen.changed.get("namespaces", {}).get(space.name, {})
        if redirecting and not changed.get("interfaces", {}).get(name, {}).get("tx_packets"):
            continue  # its filter redirects other packets
        then = seen.queued_before.get((space, name))
        by = f" (a filter of {redirecting} redirects packets to it)" if redirecting else ""
        own = [one for one in space.json("tc", "-s", "-j", "qdisc", "show", "dev", name) if one.get("kind")]
        dropped = changed.get("qdiscs", {}).get(name, {})
        counts = [one.get("drop", 0) for handle, one in dropped.items() if not handle.endswith(" ffff:")]
        drops = max(counts, default=0)  # a parent counts what its children drop, too
        lost = f"dropped {units.counted(drops, 'packet')} during the check" if drops else ""
        large = hole and drops > 10  # it takes no large packets
        made = [one for one in own if one.get("root") and one.get("handle") != "0:"]  # not by the kernel
        undo = space.command(f"tc qdisc del dev {name} root") if made and len(own) == 1 else None
        for one in own:
            kind, options = str(one["kind"]), one.get("options") or {}
            limits = list(_limits(kind, options, _class_rates(classes, then.classes if then else "")))
            if limits:
                yield Finding(
                    cause="shaper" if kind != "netem" else "emulated network",
                    what=f"the queueing discipline {kind} of {name}{by} {units.listed(limits)}"
                    f"{lost and f'; it {lost}'}",
                    where=f"{space.name} {name}", certainty=SEEN if drops else PRESENT, undo=undo,
                    weight=ALL if large else MOST,
                    cost=units.listed(limits),
                )  # fmt: skip
                break
        else:
            queue = next((one for one in own if "limit" in (one.get("options") or {})), None)
            length = int(queue["options"]["limit"]) if queue else 0
            is_short = queue is not None and queue["kind"] == "pfifo" and length <= SHORT_PACKETS
            if drops or is_short:
                kind = own[0]["kind"] if own else "?"
                short = f"has room for {units.counted(length, 'packet')} only" if is_short else ""
                yield Finding(
                    cause="short queue" if is_short else "queue drops",
                    what=f"the queueing discipline {kind} of {name}{by}"
                    f" {units.listed([one for one in (short, lost) if one])}",
                    where=f"{space.name} {name}", certainty=SEEN if drops else PRESENT,
                    weight=ALL if large or kind == "blackhole" else MUCH if drops > 10 else SOME, undo=undo,
                )  # fmt: skip


def _limits(kind: str, options: dict[str, Any], rates: list[float]) -> Iterator[str]:
    """Yield what a queueing discipline limits, in words. rates: of its classes. tc prints others in bytes per
    second."""
    if kind not in CLASSFUL:
        found = (options.get(word) for word in RATE_NAMES)
        rates = [
            8 * (one["rate"] if isinstance(one, dict) else one)
            for one in found
            if isinstance(one, (int, float, dict))
        ]
    if rates and min(rates) < FAST_BPS:
        yield f"limits the rate to {units.si(min(rates), 'bit/s')}"
    if kind == "netem":
        delay = options.get("delay")
        delay_s = delay.get("delay") if isinstance(delay, dict) else delay
        if delay_s:
            yield f"delays each packet by {units.si(float(delay_s), 's')}"
        for word, verb in NETEM.items():
            share = options.get(word)
            share = next(iter(share.values())) if isinstance(share, dict) and share else share
            if isinstance(share, (int, float)) and share:
                yield f"{verb} {units.percent(float(share))} of the packets"


def _class_rates(text: str, before: str = "") -> list[float]:
    """Return the highest rates of the classes that packets passed since `before`: of those that sent some, and of their
    parents, of which not every kind counts; tc prints text only."""
    now, then = (
        {
            found["id"]: found
            for one in each.split("\nclass ")
            if (found := _CLASS.search(one.replace("\n", " ")))
        }
        for each in (text, before)
    )
    passed = set[str]()
    for at, one in now.items():
        if one["sent"] != (then[at]["sent"] if at in then else "0"):
            own = at
            while own in now and own not in passed:
                passed.add(own)
                own = now[own]["parent"]
    return [
        float(one["rate"]) * UNITS[one["unit"]] for own, one in now.items() if own in passed and one["rate"]
    ]


def filters(seen: Evidence) -> Iterator[Finding]:
    """Filters of tc that are many, or that drop, police, redirect or change packets.

    Those that drop, redirect or change count where packets were lost.
    """
    busy = list[tuple[Space, str, str, str, bool]]()  # those that saw packets, and whether they dropped some
    for space, name, _by, filters_of, _classes in seen.queued:
        then = seen.queued_before.get((space, name))
        for word, lines in filters_of.items():
            earlier = _parts(then.filters.get(word, "") if then else "")
            for at, (text, sent, dropped) in _parts(lines).items():
                _text, was_sent, was_dropped = earlier.get(at, ("", "0", "0"))
                if sent != was_sent:
                    busy.append((space, name, word, text, dropped != was_dropped))
            if (count := len(_FILTER.findall(lines))) >= MANY_FILTERS:
                yield Finding(
                    cause="many tc filters", where=f"{space.name} {name}", weight=min(SOME + count / 5000, MUCH),
                    what=f"up to {count} filters of tc see each packet at {name} ({word or 'root'})",
                    cost=f"up to {units.si(count * FILTER_NS * 1e-9, 's')} for each packet",
                    undo=space.command(f"tc filter show dev {name} {word}  # then delete those that are not needed"),
                )  # fmt: skip
    changed = [(*one, _CHANGES.search(one[3])) for one in busy]
    tags = {changes["tag"] for *_one, changes in changed if changes and changes["tag"]}
    for space, name, word, text, drops, changes in changed:
        # From an ifb that is up packets come back, and a redirect to an interface of the path is the path itself.
        back = seen.names(space) | {one.name for one in space.links.values() if one.kind == "ifb" and one.up}
        does = [f"redirects packets to {one}" for one in REDIRECTED.findall(text) if one not in back]
        if changes:
            does.append(f"changes packets ({changes['kind']})")
        polices, loses = "police" in text, drops and (seen.blocked or seen.lossy)
        leads = seen.blocked and bool(does)
        if polices or leads or (loses and ("action drop" in text or " drop val " in text)):
            what = "polices the rate" if polices else does[0] if leads else "drops packets"
            is_undone = changes is not None and UNDONE_BY.get(changes["tag"]) in tags
            yield Finding(
                cause="tc filter", what=f"a filter of tc at {name} ({word or 'root'}) {what}: {text[:160]}",
                where=f"{space.name} {name}", weight=MOST,
                certainty=POSSIBLE if is_undone else SEEN if loses or leads else PRESENT,
                undo=space.command(f"tc filter show dev {name} {word}  # then delete this one by its pref"),
            )  # fmt: skip


def _parts(lines: str) -> dict[tuple[str, str], tuple[str, str, str]]:
    """Return the text of each filter and of each of its actions, and how much it sent and dropped.

    The key is the filter's first line, and that of the action, which is "" for the filter itself.
    """
    result, of = {}, ""
    for part in _PARTS.split(lines):
        first = part.partition("\n")[0].partition(" (rule hit")[0]  # this counts, so it is no part of the key
        of, order = (first, "") if part.startswith("filter ") else (of, first.partition(":")[0])
        sent, dropped = (found[1] if (found := re.search(one, part)) else "0" for one in COUNTS)
        result[of, order] = " ".join((of * bool(order) + part).split()), sent, dropped
    return result
