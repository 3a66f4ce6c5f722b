"""`labkit doctor`: what this kernel and machine can do, to be read by people or programs.

Both take the agent's answer: `machine` (machine.describe), `details` (machine.details), and `capabilities`.
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
    """The answer as one JSON object, laid out to be read."""
    return printable_json(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()) + "\n"


def as_text(answer: dict[str, Any], stream: TextIO | None = None) -> str:
    """A headline, and under each group a line for each capability, never folded.

    Coloured when `stream` (by default standard output) is a terminal; in ASCII when its encoding has no check mark.
    """
    stream = stream or sys.stdout
    target, buffer = Console(file=stream), io.StringIO()
    console = Console(
        file=buffer,
        force_terminal=target.is_terminal,
        color_system="standard" if target.color_system else None,
        no_color=target.no_color,
    )
    result = msgspec.convert(answer["capabilities"], list[Capability])
    for line in _lines(answer["machine"], result):
        console.print(line, soft_wrap=True)
    return _written(buffer.getvalue(), stream.encoding or "ascii")


def _written(text: str, encoding: str) -> str:
    """The text, in characters that the encoding has."""
    try:
        "".join(mark for mark, _ in MARKS.values()).encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(ASCII)
    return text.encode(encoding, errors="replace").decode(encoding)


def _lines(machine: dict[str, Any], result: list[Capability]) -> Iterable[Text]:
    yield Text(printable(headline(machine, result)), style="bold")
    for group, members in groupby(result, key=lambda one: one.group):
        some = list(members)
        width = max(len(one.name) for one in some)
        yield Text()
        yield Text(printable(group), style="bold")
        yield from (_line(one, width) for one in some)
    yield Text()
    able, unknown = ([one for one in result if one.available is kind] for kind in (True, None))
    rest = f"; {len(unknown)} not tried" if unknown else ""
    yield Text(f"{len(able)} of {len(result)} can be done here{rest}")


def headline(machine: dict[str, Any], result: list[Capability]) -> str:
    """Kernel, CPU, accelerator, privilege."""
    root = any(one.available for one in result if (one.group, one.name) == ("privilege", "root"))
    runs_on = RUNS_ON.get(machine["accelerator"], f"a virtual machine ({machine['accelerator']})")
    cpus = "1 CPU" if machine["cpus_count"] == 1 else f"{machine['cpus_count']} CPUs"
    who = "as root" if root else "without root"
    return f"Linux {machine['kernel']}, {machine['cpu']}, {cpus}, {runs_on}, {who}"


def _line(one: Capability, width: int) -> Text:
    mark, style = MARKS[one.available]
    line = Text("  ").append(mark, style=style).append(" ")
    name, detail = printable(one.name), printable(one.detail or "")
    if one.available:
        return line.append(f"{name.ljust(width)}  {detail}" if detail else name)
    line.append(name.ljust(width), style="bold")
    line.append(f"  {detail}" if detail else "")
    for word, sentence in (("lost", one.lost), ("do", one.remedy)):
        if sentence:
            line.append(f" — {word}: ", style="dim").append(printable(sentence))
    return line
