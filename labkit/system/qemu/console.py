"""The last lines of a guest's console."""

from __future__ import annotations

import re
from pathlib import Path

# The lines that explain best why a kernel stopped; the first match counts.
_TELLING = (
    "Kernel panic - not syncing",
    "Out of memory",
    "BUG:",
    "Oops",
    "No working init",
    "Attempted to kill",
)
_NOISE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1bc|^\[ *\d+\.\d+\] ?(\[ *T\d+\] ?)?")
# What linux/arch/x86/boot/compressed/error.c prints below its message, before it halts the CPU.
UNPACKING_STOPPED = "-- System halted"
TAIL_BYTES = 65536


def lines(path: Path) -> list[str]:
    """Return the last lines of a console without timestamps and colours; empty if there is no console."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    cleaned = (_NOISE.sub("", line.strip()).strip() for line in text.splitlines())
    return [line for line in cleaned if line]


def stop_reason(path: Path) -> str | None:
    """Return the message with which the kernel, or the code that unpacks it, has stopped for good; else None."""
    before = ""
    for line in lines(path):
        if "Kernel panic - not syncing" in line:
            return line
        if line == UNPACKING_STOPPED:
            return f"its image cannot be unpacked: {before}"
        before = line
    return None


def last_words(path: Path) -> str:
    """Return `; the console's last words: …`, or an empty string if the console is empty."""
    result = lines(path)
    telling = next((line for words in _TELLING for line in result if words in line), None)
    line = telling or (result[-1] if result else "")
    before = result[: result.index(line)][-1:] if "Attempted to kill init" in line else []
    line = "; ".join([*before, line])  # PID 1 explained its end in the line before
    return f"; the console's last line: {line[:200]}" if line else ""
