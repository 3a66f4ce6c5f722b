"""Report what this kernel and machine can do (`labkit doctor`), as text.

It is made from the agent's answer, which has `machine` (machine.describe), `details` (machine.details) and
`capabilities`.
"""

import re
import sys
from collections.abc import Iterable
from itertools import groupby
from typing import Any, TextIO

import msgspec

from labkit.common import packages
from labkit.common.printable import printable
from labkit.measure.capabilities import Capability

MARKS = {True: "✓", False: "✗", None: "?"}
ASCII = str.maketrans({"✓": "+", "✗": "x", "—": "-", "’": "'", "…": "..."})
INSTALLED = re.compile(rf"({'|'.join(packages.MANAGERS.values())}) ([\w.+-]+)")
OTHER_KERNEL = re.compile(r"boot (a|another) kernel|labkit kernels get|in a lab VM")
NEWER_KERNEL = re.compile(r"use (Linux [\d.]+ or later), here or in a lab VM \((.+)\)")
DEBIAN = "another kernel (labkit kernels get, then where=vm:debian)"
RUNS_ON = {"none": "bare metal", "tcg": "an emulated CPU (tcg)", "uml": "User-mode Linux (uml)"}


def as_text(answer: dict[str, Any], stream: TextIO | None = None, every: bool = False) -> str:
    """Return the answer as at most five lines; with `every`, as one per capability, by group.

    The text is ASCII if the encoding of `stream` (default: standard output) has no check mark.
    """
    capabilities = msgspec.convert(answer["capabilities"], list[Capability])
    lines = [headline(answer["machine"], capabilities), *(_every if every else _summary)(capabilities)]
    text = "".join(f"{printable(line)}\n" for line in lines)
    encoding = (stream or sys.stdout).encoding or "ascii"
    try:
        "".join(MARKS.values()).encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(ASCII)
    return text.encode(encoding, errors="replace").decode(encoding)


def _summary(capabilities: list[Capability]) -> Iterable[str]:
    """What works, and what is missing, by the way in which a person gets it."""
    missing = [each for each in capabilities if not each.available]
    works = f"{len(capabilities) - len(missing)} of {len(capabilities)} capabilities work"
    counts = []
    for group, members in _by_group(capabilities):
        available = sum(bool(each.available) for each in members)
        counts.append(f"{group} {available}/{len(members)}")
    yield f"{MARKS[True]} {works} (labkit doctor --all shows each): {', '.join(counts)}"
    by_kernel = [each for each in missing if OTHER_KERNEL.search(each.remedy or "")]
    programs = [each for each in missing if INSTALLED.search(each.remedy or "")]
    other = [each for each in missing if each not in by_kernel and each not in programs]
    if by_kernel:
        ways: dict[str, list[Capability]] = {}
        for each in by_kernel:
            newer = NEWER_KERNEL.fullmatch(each.remedy or "")
            way = f"{newer[1]} ({newer[2]})" if newer else DEBIAN
            ways.setdefault(way, []).append(each)
        yield f"{MARKS[False]} with {'; with '.join(f'{way}: {_named(some)}' for way, some in ways.items())}"
    if other:
        yield f"{MARKS[False]} with other settings or hardware (--all says which): {_named(other)}"
    if programs:
        wanted: dict[str, dict[str, None]] = {}
        for manager, package in (
            found for each in programs for found in INSTALLED.findall(each.remedy or "")
        ):
            wanted.setdefault(manager, {})[package] = None
        commands = " or ".join(f"{manager} {' '.join(names)}" for manager, names in wanted.items())
        lost = "; ".join(f"{each.name} ({each.lost or each.detail})" for each in programs)
        yield f"{MARKS[False]} {commands}: {lost}"


def _by_group(capabilities: list[Capability]) -> list[tuple[str, list[Capability]]]:
    return [(group, list(members)) for group, members in groupby(capabilities, key=lambda each: each.group)]


def _named(capabilities: list[Capability]) -> str:
    """Return for example "tunnels geneve, gre (not tested); virtual machines lab VM"."""
    return "; ".join(
        f"{group} {', '.join(each.name + ' (not tested)' * (each.available is None) for each in members)}"
        for group, members in _by_group(capabilities)
    )


def _every(capabilities: list[Capability]) -> Iterable[str]:
    for group, members in _by_group(capabilities):
        width = max(len(each.name) for each in members)
        yield from ("", group, *(_line(each, width) for each in members))
    available, unknown = (sum(each.available is state for each in capabilities) for state in (True, None))
    rest = f"; {unknown} not tested" if unknown else ""
    yield from ("", f"{available} of {len(capabilities)} capabilities are available here{rest}")


def headline(machine: dict[str, Any], capabilities: list[Capability]) -> str:
    """Return one line about kernel, CPU, accelerator and privileges."""
    root = any(each.available for each in capabilities if (each.group, each.name) == ("privilege", "root"))
    runs_on = RUNS_ON.get(machine["accelerator"], f"a virtual machine ({machine['accelerator']})")
    cpus = "1 CPU" if machine["cpus_count"] == 1 else f"{machine['cpus_count']} CPUs"
    who = "as root" if root else "without root"
    return f"Linux {machine['kernel']}, {machine['cpu']}, {cpus}, {runs_on}, {who}"


def _line(capability: Capability, width: int) -> str:
    name = capability.name.ljust(width)
    line = f"  {MARKS[capability.available]} {name}  {capability.detail or ''}".rstrip()
    if capability.available:
        return line
    ways = (("without it", capability.lost), ("to get it", capability.remedy))
    return line + "".join(f" — {label}: {sentence}" for label, sentence in ways if sentence)
