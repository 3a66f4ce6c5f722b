"""Report what this kernel and machine can do (`labkit doctor`), as text or as JSON.

Both are made from the agent's answer, which has `machine` (machine.describe), `details` (machine.details) and
`capabilities`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from itertools import groupby
from typing import Any, TextIO

import msgspec
from rich.console import Console
from rich.text import Text

from labkit.common.printable import printable, printable_json
from labkit.measure.capabilities import Capability

MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("?", "yellow")}
ASCII = str.maketrans({"✓": "+", "✗": "x", "—": "-", "’": "'", "…": "..."})
RUNS_ON = {"none": "bare metal", "tcg": "an emulated CPU (tcg)", "uml": "User-mode Linux (uml)"}


def as_json(answer: dict[str, Any]) -> str:
    """Return the answer as one indented JSON object."""
    return printable_json(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()) + "\n"


def as_text(answer: dict[str, Any], stream: TextIO | None = None) -> str:
    """Return the answer as text: a headline, and for each group one unwrapped line per capability.

    The text is coloured if `stream` (default: standard output) is a terminal. It is ASCII if the stream's encoding has
    no check mark.
    """
    stream = stream or sys.stdout
    target, buffer = Console(file=stream), io.StringIO()
    console = Console(
        file=buffer,
        force_terminal=target.is_terminal,
        color_system="standard" if target.color_system else None,
        no_color=target.no_color,
    )
    capabilities = msgspec.convert(answer["capabilities"], list[Capability])
    for line in _lines(answer["machine"], capabilities):
        console.print(line, soft_wrap=True)
    return _written(buffer.getvalue(), stream.encoding or "ascii")


def _written(text: str, encoding: str) -> str:
    """Return the text, reduced to the characters of the encoding."""
    try:
        "".join(mark for mark, _ in MARKS.values()).encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(ASCII)
    return text.encode(encoding, errors="replace").decode(encoding)


def _lines(machine: dict[str, Any], capabilities: list[Capability]) -> Iterable[Text]:
    yield Text(printable(headline(machine, capabilities)), style="bold")
    for group, group_members in groupby(capabilities, key=lambda capability: capability.group):
        members = list(group_members)
        width = max(len(each.name) for each in members)
        yield Text()
        yield Text(printable(group), style="bold")
        yield from (_line(each, width) for each in members)
    yield Text()
    available, unknown = (
        [each for each in capabilities if each.available is state] for state in (True, None)
    )
    rest = f"; {len(unknown)} not tested" if unknown else ""
    yield Text(f"{len(available)} of {len(capabilities)} capabilities are available here{rest}")


def headline(machine: dict[str, Any], capabilities: list[Capability]) -> str:
    """Return one line about kernel, CPU, accelerator and privileges."""
    root = any(each.available for each in capabilities if (each.group, each.name) == ("privilege", "root"))
    runs_on = RUNS_ON.get(machine["accelerator"], f"a virtual machine ({machine['accelerator']})")
    cpus = "1 CPU" if machine["cpus_count"] == 1 else f"{machine['cpus_count']} CPUs"
    who = "as root" if root else "without root"
    return f"Linux {machine['kernel']}, {machine['cpu']}, {cpus}, {runs_on}, {who}"


def _line(capability: Capability, width: int) -> Text:
    mark, style = MARKS[capability.available]
    line = Text("  ").append(mark, style=style).append(" ")
    name, detail = printable(capability.name), printable(capability.detail or "")
    if capability.available:
        return line.append(f"{name.ljust(width)}  {detail}" if detail else name)
    line.append(name.ljust(width), style="bold")
    line.append(f"  {detail}" if detail else "")
    for label, sentence in (("without it", capability.lost), ("to get it", capability.remedy)):
        if sentence:
            line.append(f" — {label}: ", style="dim").append(printable(sentence))
    return line
