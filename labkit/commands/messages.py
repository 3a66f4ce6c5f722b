"""Messages on standard error, and results as JSON."""

import contextlib
import os
import sys
from typing import Any

import msgspec

from labkit.common.printable import printable, printable_json, shortened


def note(text: str) -> None:
    """Write a message. A value of hundreds of characters that it quotes is cut."""
    try:
        print(f"labkit: {printable(shortened(text))}", file=sys.stderr)
    except OSError:  # standard error is full: the exit code still tells
        drop_output(2)


def json_text(content: Any) -> str:
    """Return indented JSON, safe for a terminal."""
    return printable_json(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())


def agrees() -> bool:
    """Ask whether to go on, and return the answer; no answer (Ctrl-D) is a no."""
    try:
        return input("labkit: go on? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def print_error(text: str) -> int:
    """Write the message of an error, and return the exit code 2."""
    note(text)
    return 2


def drop_output(stream: int = 1) -> None:
    """Send the rest of standard output (or error: 2) to /dev/null."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
