"""`labkit check`: which known causes of a slow or broken path are present between two existing ends."""

import argparse
import json
import sys
from typing import Any

from labkit.commands import arguments, existing_ends
from labkit.commands.messages import agrees, note
from labkit.common import existing_names, units
from labkit.common.errors import BadInput
from labkit.common.limits import Within
from labkit.common.printable import printable, printable_json
from labkit.measure.existing.checks import drops, load
from labkit.measure.hosts import local

NOTES = """\
The ends are containers, namespaces or processes: container:NAME, netns:NAME, pid:N, host. Of another
machine, ssh:MACHINE/ stands before the name, and labkit runs there; the ends may be on two machines.
Nothing of a machine is changed. labkit reads the configuration of both ends and of every namespace
between them, and sends small packets of its own from one end to the other: for each of at most 3
pairs of addresses at most 1,000 in each direction, and 256 KiB by TCP. With --load it also sends a
bounded load, whose plan it shows first.

    labkit check container:web container:cli
    labkit check netns:blue netns:red --load --seconds 3 --yes
    labkit check container:web host --json
    labkit check ssh:node1/container:web ssh:node2/container:cli
    labkit check container:web container:cli --port 8080

--port: a port at which a program of the second end listens. If both ends are on one machine, it may
also be a port that this machine publishes for the second end. Without --port, labkit connects to
ports of the second end's programs if that end refuses labkit's own connections and is not host.
Where a program copies what arrives at a published port, labkit only connects.

The first line is the answer. Findings are ordered by how certain they are, then by how much they can
cost.
"""

JSON = {
    "client": "one end",
    "server": "the other end",
    "findings": "a list: `cause`, `what`, `where`, `certainty` (seen, present, possible), `weight` (0 to 1), `cost`,"
    " `undo` (a command), `change` (for change= on a copy)",
    "paths": "for each pair of addresses: `client`, `server`, `interfaces` from one to the other; for both directions"
    " (`forward`, `back`) packets of `icmp` and `udp` that arrived of those sent, and the largest packet that passes"
    " (`mtu_bytes`); `tcp`: whether labkit's own connection comes about; `ports`: the"
    " ports of the server's programs that were tried; `round_trip_ms`: the median",
    "loads": "for each part of the load: `protocol`, `received_bps`, `again_count` (sent again, or lost), `sent_count`,"
    " `said` (why it failed)",
    "drops": "packets that the kernel dropped on the whole machine meanwhile, by reason and function (skb:kfree_skb),"
    " and of those on the path the interface",
    "not_seen": "what this user or machine cannot see",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in ("client", "server"):
        text = f"the {name}'s end: {existing_ends.FORMS}"
        parser.add_argument(name, metavar=name.upper(), help=text)
    parser.add_argument(
        "--load", action="store_true", help="also send a bounded load, after its plan is shown"
    )
    parser.add_argument(
        "--seconds",
        type=int,
        metavar="S",
        help=f"of TCP and of UDP each, with --load (default {load.SECONDS})",
    )
    parser.add_argument("--port", type=int, metavar="N", help="a port of the server's programs")
    existing_ends.add_choice(parser)
    parser.add_argument("--yes", action="store_true", help="with --load: do not ask")
    arguments.add_json(parser)


def run(given: argparse.Namespace) -> int:
    if not given.load:
        arguments.refuse(given, ("seconds", "yes"), "without --load")
    Within(1, load.MAX_SECONDS).check("--seconds", given.seconds)
    Within(1, 65535).check("--port", given.port)
    seconds = (given.seconds or load.SECONDS) if given.load else None

    def agreed(plan: str) -> bool:
        note(f"the load: {plan}")
        if given.yes:
            return True
        if not sys.stdin.isatty():
            raise BadInput("--load sends traffic: add --yes to agree to this plan")
        return agrees()

    asked: dict[str, Any] = {"load_s": seconds, "port": given.port, **existing_ends.choice(given)}
    places = {where for where, _name in existing_names.machines(given.client, given.server)}
    if len(places) > 1 or "here" in places:
        asked["agreed"] = agreed
    if places == {"here"}:
        asked["locked"] = lambda: local.measuring_lock(note)
    elif len(places) == 1 and given.load and not given.yes:
        raise BadInput("--load through ssh does not ask: add --yes to agree to a plan that is shown first")
    report = existing_ends.ask("check", given.client, given.server, **asked)
    if given.json:
        print(printable_json(json.dumps(report, indent=2, ensure_ascii=False)))
    else:
        print(printable("\n".join(_lines(report))))
    return 0


def _lines(report: dict[str, Any]) -> list[str]:
    """Return the report for people: the answer first."""
    findings, lines = report["findings"], []
    if not findings:
        lines.append("nothing known slows or breaks this path")
    for number, one in enumerate(findings, 1):
        head = f"{number}. " if number > 1 else ""
        lines += [f"{head}{one['cause']}: {one['what']}", f"   where: {one['where']} ({one['certainty']})"]
        lines += [f"   {name}: {one[name]}" for name in ("cost", "undo") if one[name]]
        if one["change"]:
            lines.append(f"   try it on a copy: change='{one['change']}'")
    lines.append("")
    for path in report["paths"]:
        lines.append(f"{path['client']} to {path['server']}: {' > '.join(path['interfaces']) or 'no path'}")
        lines += [
            f"   {name}: {path[name]['icmp']} of ICMP and {path[name]['udp']} of UDP arrived,"
            f" up to {path[name]['mtu_bytes'] or 'no'} bytes"
            for name in ("forward", "back")
        ]
        lines += [f"   port {port}: {said}" for port, said in path["ports"].items()]
    for one in report["loads"]:
        text = (
            f"{units.si(one['received_bps'], 'bit/s')} arrived"
            if not one["said"]
            else f"failed: {one['said']}"
        )
        lines.append(f"load: {one['protocol']}, {text}")
    everyday = tuple(f"{reason} " for reason in drops.EVERYDAY)
    told = [f"{count} for {name}" for name, count in report["drops"].items() if not name.startswith(everyday)]
    if told:
        lines.append(f"packets that the kernel dropped on the whole machine meanwhile: {'; '.join(told[:5])}")
    return lines + [f"not seen: {one}" for one in report["not_seen"]]
