"""The checks, one function for a family of causes. CHECKS is the one place to add a new one.

A check is a function from the evidence of both ends and of the namespaces between them to findings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from labkit.common import units
from labkit.measure.existing.checks import drops, mtu, probes, processing, queues, reach, rules, sockets
from labkit.measure.existing.checks.evidence import CARRIED_SHARE, Evidence
from labkit.measure.existing.checks.findings import (
    BETWEEN,
    LITTLE,
    MUCH,
    POSSIBLE,
    SEEN,
    SOME,
    Finding,
    ordered,
)
from labkit.measure.existing.clone import node_name
from labkit.measure.existing.path import Path
from labkit.system import machine, netlink

CHECKS: tuple[Callable[[Evidence], Iterable[Finding]], ...] = (
    reach.switches, reach.next_hops, reach.paths, reach.filtered, reach.asymmetric, reach.loops, reach.policies,
    reach.interfaces, reach.bridges, reach.forwarding, reach.macvlans, reach.duplicates, reach.handshakes,
    reach.neighbours, reach.detection, reach.hop_limits, mtu.measured, mtu.differing, mtu.fragmented, mtu.routes,
    rules.dropping, rules.marks, rules.policy_routing, rules.translated, rules.long_sets, rules.clamps, queues.shapers,
    queues.filters, processing.offloads, processing.checksums, processing.quotas, processing.stopped,
    processing.captures, processing.proxies, processing.softirqs, sockets.buffers, sockets.dropped, sockets.programs,
    sockets.tables, sockets.connection, sockets.echo_requests,
)  # fmt: skip

# Commands that undo a cause in a namespace, by the kind of change that does the same.
COMMANDS = {
    "sysctl": r"sysctl -w (?P<options>net[./](?:ipv[46]|bridge)[./](?!neigh[./]default)[^ =]+=(?:\S+|'.*'))",
    "mtu": r"ip link set (?P<dev>\S+) mtu (?P<options>\d+)", "offload": r"ethtool -K (?P<dev>\S+) (?P<options>.+)",
    "qdisc": r"tc qdisc del dev (?P<dev>\S+) root(?P<options>)",
}  # fmt: skip
MAX_SHOWN = 4
_OF_INTERFACE = re.compile(r"(?<=\.conf)\.(?!all\.|default\.)[^ ]+\.(\w+)$")
# What routers have, what follows from interfaces, and what is not of the network.
_NORMAL = re.compile(r"forward|\.conf\.(default|lo)\.|\.mtu$|^(?!sysctl net\.)")


def explained(seen: Evidence) -> list[Finding]:
    """Return what the checks find."""
    return [with_change(seen, one) for check in CHECKS for one in check(seen)]


def with_change(seen: Evidence, one: Finding) -> Finding:
    """Return a finding with the change that does in a copy of the path what undoes the cause, if there is one."""
    nodes = [node_name(space.name) for space in seen.spaces]
    for space, node in zip(seen.spaces, nodes, strict=True) if one.undo and not one.change else ():
        prefix, names = space.command(""), {place.name for place in seen.places if place.space is space}
        is_own = bool(names) and nodes.count(node) == 1 and str(one.undo).startswith(prefix)
        for kind, pattern in COMMANDS.items() if is_own else ():
            if found := re.fullmatch(pattern, str(one.undo).removeprefix(prefix)):
                at = f"{node}:{found.groupdict().get('dev') or min(names)}"
                options = found["options"].replace("'", "")
                return replace(one, change=f"{kind}: {kind} {options or 'noqueue'} at {at}")
    return one


def judged(found: list[Finding], others: Iterable[Finding]) -> list[Finding]:
    """Return all findings, the most certain and most costly first.

    others: where nothing explains what the probes lost, they say at least where it was lost (`unexplained`). Loss has
    little weight where something is explained, because that need not be its cause.
    """
    if any(one.certainty == SEEN and one.weight > SOME for one in found):
        others = [replace(one, weight=LITTLE) for one in others if one.cause == "loss"]
    return ordered([*found, *others])


def unexplained(seen: Evidence) -> Iterator[Finding]:
    """Yield what the probes lost, and where."""
    for path, probe in seen.directions:
        sent = probe.sent_count
        arrived = sum(one.arrived for one in (probe.icmp, probe.udp) if not one.exempt)
        shares = {"ICMP": probe.icmp.lost_share, "UDP": probe.udp.lost_share}
        lossy = {name: share for name, share in shares.items() if share > probes.NOISE_SHARE}
        place, counted = _last(seen, path, max(CARRIED_SHARE * sent, (sent + arrived) / 2))
        if not place and probe.arrives == probe.icmp.arrives == probe.udp.arrives:
            continue
        if not probe.arrives:
            said = probe.udp.said or probe.icmp.said
            yield Finding(
                cause="nothing arrives", certainty=SEEN, weight=1.0, where=place,
                what=f"nothing from {path.source} arrives at {path.destination}{f' ({said})' if said else ''}:"
                f" {counted}{_unusual(seen)}",
            )  # fmt: skip
        elif not probe.icmp.arrives or not probe.udp.arrives:
            name = "ICMP" if not probe.icmp.arrives else "UDP"
            yield Finding(
                cause=f"{name} is dropped", certainty=SEEN, weight=SOME, where="path",
                what=f"no packet of {name} from {path.source} arrives at {path.destination}, although others do",
            )  # fmt: skip
        elif lossy:
            of = f" of {''.join(lossy)}" if len(lossy) == 1 else ""
            yield Finding(
                cause="loss", certainty=SEEN, weight=SOME + LITTLE, where=place,
                what=f"{units.percent(sum(lossy.values()) / len(lossy))} of small packets{of} from {path.source} to"
                f" {path.destination} are lost: {counted}",
            )  # fmt: skip
    lost = seen.lost_count
    for (reason, function, name), count in seen.drops.most_common():
        own = bool(name) and lost / 2 <= count <= 2 * lost  # other interfaces may have the same name
        if (seen.blocked or seen.lossy) and reason not in drops.EVERYDAY and count > 2:
            yield Finding(
                cause="kernel drops", certainty=SEEN if own else POSSIBLE, weight=MUCH if own else SOME,
                where=" or ".join(str(place) for place in seen.places if place.name == name) or f"function {function}",
                what=f"the kernel dropped {units.counted(count, 'packet')} {f'of {name}' if name else 'anywhere'}"
                f" during the check, in {function} with the reason {reason}",
            )  # fmt: skip
    if not seen.connects and any(probe.arrives for _path, probe in seen.directions):
        why = [f"port {port}: {said}" for port, said in seen.ports.items()]
        if seen.connection is not None and not seen.connection.connected:
            why.append(f"a port of labkit's own: {seen.connection.said}")
        yield Finding(
            cause="TCP does not connect", certainty=SEEN, weight=1.0, where="path",
            what=f"no TCP connection from {seen.client.address} to {seen.server.address} comes about:"
            f" {'; '.join(why)}{_unusual(seen)}",
        )  # fmt: skip


def _last(seen: Evidence, path: Path, count: float) -> tuple[str, str]:
    """Return the last interface of a path that counted so many packets, and a sentence about it; two empty ones if the
    check of the other machine has it."""
    last, name = None, "forward" if path is seen.forward else "back"
    for step in path.steps:
        place, _direction = step
        if not seen.counted(step, count):
            if last is None and not seen.sends(path):
                return "", ""
            return str(last or place), f"they are lost between {last or path.start.name} and {place}"
        last = place
    if path.exit is not None:
        where = "" if seen.beyond.get(name) else BETWEEN
        return where, f"they leave by {last} and do not enter the other machine"
    return str(last or path.start.name), f"the last interface that counted them is {last or 'none'}"


def _unusual(seen: Evidence) -> str:
    """Return the sysctls of the path that differ from those of a new namespace, in words."""
    [(fd, kernel)] = netlink.new_namespaces(1)
    try:
        usual = machine.namespace_files(fd)
    finally:
        kernel.close()
        os.close(fd)
    differing = [
        f"{space.name} has {name.removeprefix('sysctl ')}={value}"
        for space in seen.spaces
        for name, value in space.files.items()
        if not _NORMAL.search(name) and usual.get(_OF_INTERFACE.sub(r".default.\1", name), value) != value
    ]
    return f"; unlike a new namespace, {units.shortened(differing, MAX_SHOWN)}" if differing else ""
