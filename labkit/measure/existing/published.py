"""Published ports and replaced addresses of an existing network: by rules of the kernel, or by programs that copy."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from labkit.common.errors import LabkitError
from labkit.measure.endpoints import Namespace
from labkit.system import machine, process

COUNTER = re.compile(r" ?counter packets \d+ bytes \d+")
DNAT = re.compile(r"dnat (?:ip6? )?to \[?([0-9a-fA-F:.]+?)\]?(?::\d+)?(?: |$)")
SOURCE = re.compile(r"\b(masquerade|snat)\b")
LEGACY = re.compile(r"--to-destination \[?([0-9a-fA-F:.]+?)\]?(?::\d+)?(?: |$)")
MOST = 8  # lines of one namespace


def by_rules(space: Namespace, rules: Mapping[str, str], addresses: Collection[str]) -> list[str]:
    """Return the rules of a namespace that publish ports of these addresses, or replace addresses of senders.

    `rules`: its chains and tables; without any, no program is started.
    """
    lines: list[str] = []
    if any(name.startswith("nftables") for name in rules):
        for line in _output(space, "nft", "list", "ruleset"):
            found = DNAT.search(line)
            if SOURCE.search(line) or (found and found[1] in addresses):
                lines.append(f"nftables: {line}")
    if "iptables nat" in rules:
        for line in _output(space, "iptables-legacy-save", "-t", "nat"):
            found = LEGACY.search(line)
            if line.startswith("-A") and ("MASQUERADE" in line or (found and found[1] in addresses)):
                lines.append(f"iptables: {line}")
    return list(dict.fromkeys(lines))[:MOST]


def _output(space: Namespace, name: str, *words: str) -> list[str]:
    try:
        text = process.output([*space.prefix, machine.program(name), *words])
    except LabkitError:  # the program is missing
        return []
    return [" ".join(COUNTER.sub("", line).split()) for line in text.splitlines()]


def by_programs(addresses: Collection[str]) -> Iterator[str]:
    """Yield a sentence about each docker-proxy that copies data to one of these addresses."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            program, *words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            given = dict(zip(words[::2], words[1::2], strict=False))
            if program.endswith("docker-proxy") and given.get("-container-ip") in addresses:
                what = f"{given.get('-proto')} {given.get('-host-ip')}:{given.get('-host-port')}"
                to = f"{given.get('-container-ip')}:{given.get('-container-port')}"
                yield f"docker-proxy, process {folder.name}, copies {what} to {to} in user space"
