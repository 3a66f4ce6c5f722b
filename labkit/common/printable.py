"""Text for a terminal. Texts of rows, tools and other machines may contain control characters."""

import re
import sys
from collections.abc import Iterable, Sequence

# Control characters (ECMA-48) except tab and newline, marks that change the writing direction, lone surrogates.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return the text with every control character escaped, as `\\x1b`, and bytes that Python took for no character."""
    escaped = _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return re.sub(r"\\udc([89a-f][0-9a-f])", r"\\x\1", escaped)


def say(text: str) -> None:
    """Write a message to standard error."""
    print(f"labkit: {printable(text)}", file=sys.stderr)


def shortened(text: str) -> str:
    """Return the text with every word that is too long for a name of a file (255 bytes) cut after 60 characters."""
    return re.sub(r"([^\s/]{60})[^\s/]{196,}", r"\1…", text)


def printable_json(text: str) -> str:
    """Return equivalent JSON with every control character escaped."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown, in which a cell may have any character; a line break becomes a space."""
    rows = [head, ["---"] * len(head), *lines]
    texts = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in texts)
