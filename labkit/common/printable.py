"""Text for a terminal. Rows, tools and other machines bring text along, and a terminal obeys some characters."""

from __future__ import annotations

import re

# Control characters (ECMA-48) but for tab and newline, marks that turn the direction of writing, halves of a pair.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """The text with every character that a terminal would obey written out, as `\\x1b`."""
    return _CONTROLS.sub(lambda result: result[0].encode("unicode_escape").decode(), text)


def printable_json(text: str) -> str:
    """JSON with the same content, in which no character is one that a terminal would obey."""
    return _CONTROLS.sub(lambda result: f"\\u{ord(result[0]):04x}", text)
