"""Messages on standard error."""

from __future__ import annotations

import sys

from labkit.common.printable import printable


def note(text: str) -> None:
    """Write a message."""
    print(f"labkit: {printable(text)}", file=sys.stderr)


def print_error(text: str) -> int:
    """Write the message of an error, and return the exit code 2."""
    note(text)
    return 2
