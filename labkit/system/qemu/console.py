"""The last words of a guest's console."""

from __future__ import annotations

import re
from pathlib import Path

# The line that says most about why a kernel went, the first that is found.
_TELLING = (
    "Kernel panic - not syncing",
    "Out of memory",
    "BUG:",
    "Oops",
    "No working init",
    "Attempted to kill",
)
_NOISE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1bc|^\[ *\d+\.\d+\] ?(\[ *T\d+\] ?)?")
TAIL_BYTES = 65536


def lines(path: Path) -> list[str]:
    """The last lines of a console, without times and colours; none where there is no console."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    cleaned = (_NOISE.sub("", line.strip()).strip() for line in text.splitlines())
    return [line for line in cleaned if line]


def panic(path: Path) -> str | None:
    """What a kernel says when it gives up, or None."""
    return next((line for line in lines(path) if "Kernel panic - not syncing" in line), None)


def last_words(path: Path) -> str:
    """`; the console's last words: …`, or nothing where it was silent."""
    result = lines(path)
    telling = next((line for words in _TELLING for line in result if words in line), None)
    line = telling or (result[-1] if result else "")
    before = result[: result.index(line)][-1:] if "Attempted to kill init" in line else []
    line = "; ".join([*before, line])  # why PID 1 went is what it said before
    return f"; the console's last words: {line[:200]}" if line else ""
