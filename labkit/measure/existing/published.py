"""Published ports and replaced addresses of an existing network: by rules of the kernel, or by programs that copy."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path as Folder

from labkit.common.errors import LabkitError
from labkit.measure.existing import iptables
from labkit.measure.existing.checks.rules import ANY, ANY_PORT, Met, destinations, source_translation
from labkit.measure.existing.path import Path, PublishedPort, followed, source_for
from labkit.measure.existing.spaces import Place, Space, Spaces
from labkit.measure.topologies.state.packet_path import IN, OUT
from labkit.system import machine, process
from labkit.system.netlink import taps

COUNTER = re.compile(r" ?counter packets \d+ bytes \d+")
TARGET = re.compile(r"(?:dnat (?:ip6? )?to|--to-destination) \[?([0-9a-fA-F:.]+?)\]?(?::\d+)?(?: |$)")
SOURCE = re.compile(r"\b(masquerade|snat)\b", re.IGNORECASE)
# Programs that hold the published ports of a child of theirs, and copy what arrives unless a rule takes it before.
PARENTS = ("conmon", "rootlessport", "containers-rootlessport")


def by_rules(space: Space, addresses: Collection[str]) -> list[str]:
    """Return the rules of a namespace, as they are printed, that publish ports of these addresses or replace addresses
    of senders."""
    lines = []
    if any(name.startswith("nftables") for name in space.chains):
        lines += [f"nftables: {line}" for line in _output(space, "nft", "list", "ruleset")]
    for program in (one for one in iptables.PROGRAMS if f"{one} nat" in space.chains):
        saved = _output(space, f"{program}-legacy-save", "-t", "nat")
        lines += [f"{program}: {line}" for line in saved if line.startswith("-A")]
    of_ends = [
        line for line in lines if SOURCE.search(line) or ((to := TARGET.search(line)) and to[1] in addresses)
    ]
    return list(dict.fromkeys(of_ends))


def _output(space: Space, name: str, *words: str) -> list[str]:
    try:
        text = process.output([*space.namespace.prefix, machine.program(name), *words])
    except LabkitError:  # the program is missing
        return []
    return [" ".join(COUNTER.sub("", line).split()) for line in text.splitlines()]


def ports(at: Space, server: Space) -> list[PublishedPort]:
    """Return the ports of a namespace that publish those of an end: of rules first, then of programs."""
    if at is server:
        return []
    found: dict[tuple[str, str, str], Met] = {}
    for one in destinations(at.ruleset):
        to, sent = (one.given or {}).get("addr"), one.packet
        if isinstance(to, str) and (":" in to) == (":" in sent["saddr"]) and sent["dport"] != ANY_PORT:
            found.setdefault((sent["dport"], sent["daddr"], to), one)
    result = []
    for (number, address, to), one in found.items():
        if to not in server.addresses:
            continue
        sent, listens, what = one.packet, None if address in ANY else address, ""
        alike = (each for port, own, each in found if (port, own) == (number, address) and each != to)
        others = tuple(alike) if "random" in sent else ()
        if "through" in sent:
            chains = f" through {sent['through']}" if sent["through"] else ""
            also = f"; or, chosen at random, to {', '.join(others)}" if others else ""
            what = f"nftables: a map leads port {number} of {listens or at.name}{chains} to {to}{also}"
        program, legacy, _words = one.rule.get("undo", "").partition("-legacy ")
        name = f"{program if legacy else 'nftables'} dnat {number} to {to}"
        given = (to, listens, sent.get("not_from"))
        result.append(
            PublishedPort(at, int(number), name, what, *given, others=others, protocol=sent["protocol"])
        )
    ruled = {one.port for one in result}  # podman's conmon only holds such a port
    return [*result, *(one for one in _by_programs(at, server) if one.port not in ruled or one.address)]


def _by_programs(at: Space, server: Space) -> Iterator[PublishedPort]:
    own, others = os.fstat(at.fd).st_ino, os.fstat(server.fd).st_ino
    tuns = [Place(server, link.index) for link in server.links.values() if link.kind == "tun"]
    holders = {pid: tun for tun in tuns for pid, _name in taps.holders(server.fd, tun.name)}
    listening = {one.inode: one for one in at.namespace.listening()}
    for folder in Folder("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if os.stat(folder / "ns/net").st_ino != own:
                continue
            argv = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            pid = int(folder.name)
            name = os.path.basename(argv[0])
            children = (folder / f"task/{pid}/children").read_text().split() if name in PARENTS else ()
            program = f"{name} (pid {pid})"
            if name == "docker-proxy":
                given = dict(zip(argv[1::2], argv[2::2], strict=False))
                if (address := given.get("-container-ip", "")) not in server.addresses:
                    continue
                to = f"{address}:{given.get('-container-port')}"
            elif pid in holders or others in (os.stat(f"/proc/{one}/ns/net").st_ino for one in children):
                address, to = "", server.name
            else:
                continue
            inodes = {os.readlink(file) for file in (folder / "fd").iterdir()}
            for inode, one in listening.items():
                if f"socket:[{inode}]" in inodes:
                    arrives = f"arrives at port {one.port} of {at.name}"
                    what = f"{program} copies what {arrives} to {to} in user space"
                    listens = None if one.address in ("0.0.0.0", "::") else one.address
                    yield PublishedPort(
                        at, one.port, program, what, address, listens, copies=True, enters=holders.get(pid)
                    )


@dataclass(frozen=True)
class Through:
    """How a client reaches an end by a published port.

    address: where the client sends to. forward, back: all that packets and data pass. legs: the parts between which
    packets travel, forward and back: one through a rule; two with a program between them, if both are networks.
    """

    port: PublishedPort
    address: str
    forward: Path
    back: Path
    legs: list[tuple[Path, Path]]


def through(spaces: Spaces, number: int | None = None, family: int | None = None) -> Through | None:
    """Return how the client reaches a port of this machine (None: any) that publishes one of the server; None if there
    is none."""
    at = spaces.host
    for port in ports(at, spaces.server):
        if number is None and port.protocol != "tcp":
            continue
        addresses = sorted(at.usable(), key=lambda one: not spaces.client.is_beside(one)) or at.addresses
        for address in [port.listens] if port.listens else addresses:
            asked = number in (None, port.port) and family in (None, ip_address(address).version)
            found = _through(spaces, port, address) if asked else None
            if found is not None:
                return found
    return None


def _given(at: Space, sent: dict[str, str], to: str, arrived: Place | None, onwards: Path) -> str:
    """Return the address that rules put in the place of the sender's before a packet leaves a namespace for an end;
    "" if none does, or if that is unknown."""
    if arrived is None or not onwards.places:
        return ""
    address, is_sure = source_translation(at, sent, to, arrived.name, onwards.places[0].name)
    return address if address and is_sure else ""


def _through(spaces: Spaces, port: PublishedPort, address: str) -> Through | None:
    """Return how the client reaches a published port at an address; None if it does not."""
    at, client, server = port.space, spaces.client, spaces.server
    forward = back = Path(at, address, address, complete=True)  # from the machine itself
    if client is not at:
        if not (source := source_for(client, address, client.usable())):
            return None
        forward = followed(spaces, Path(client, source, address, at, translated=True))
        back = followed(spaces, Path(at, address, source, client))
    arrived = forward.arrivals[-1] if forward.arrivals else None
    alike = [one for one in server.usable() if (":" in one) == (":" in address)]
    to = port.address or next(iter(alike), "")
    if not forward.complete or not to or (arrived and arrived.name == port.not_from):
        return None
    if not port.copies and (":" in to) != (":" in address):  # a rule takes packets of its own family only
        return None
    if not port.copies:
        if not (source := forward.source if arrived else source_for(at, to, at.usable())):
            return None
        onwards = followed(spaces, Path(at, source, to, server), arrived)
        sent = {"saddr": source, "daddr": address, "protocol": "tcp", "dport": str(port.port)}
        if given := _given(at, sent, to, arrived, onwards):  # answers come back to this machine's own address
            port = replace(port, name=f"{port.name}, from {given}")
            back = followed(spaces, Path(server, to, given, at, translated=True))
            last = back.arrivals[-1:]
            back = back.then(port, followed(spaces, Path(at, to, source, client), last[0])) if last else back
        else:
            back = followed(spaces, Path(server, to, source, client)).past(port)
        whole = replace(forward, source=source).then(port, onwards), back
        return Through(port, address, *whole, [whole])
    source = source_for(at, to, at.usable())
    ways = Path(at, source, to, server), Path(server, to, source, at)
    second = followed(spaces, ways[0]), followed(spaces, ways[1])
    is_network = bool(source) and second[0].whole
    legs = [(forward.then(port), back)] if client is not at or not is_network else []
    if is_network:
        legs.append(second)
    else:  # the program has a tap of the end, or sockets in its namespace
        places = [port.enters] if port.enters else []
        second = (
            Path(at, source, to, places=places, steps=[(one, IN) for one in places], complete=True),
            Path(server, to, source, places=places, steps=[(one, OUT) for one in places], complete=True),
        )
    return Through(port, address, forward.then(port, second[0]), second[1].then(port, back), legs)
