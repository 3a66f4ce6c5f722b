"""Every error that labkit raises on purpose. A message is one sentence: the fact, and the way out."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MOST_LETTERS = 2000  # of one sentence: a file may hold anything


class LabkitError(Exception):
    """The root of the tree. Its text is meant to be read by a person; the command line prints it without a
    traceback. One that is longer than a person reads is cut."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} … (cut)")


class BadInput(LabkitError):
    """What was asked for cannot be: an unknown name, an impossible value, a file that is not there. Exit code
    2."""


class Unsupported(LabkitError):
    """This kernel or machine cannot do it: what is missing, what is lost, what to do. In a sweep it is a
    row."""


class Isolated(LabkitError):
    """The two ends cannot talk by design of the datapath; that was tried and is so. In a sweep it is a
    row."""


class Failed(LabkitError):
    """A program or a measurement failed. The text carries the program's own words."""


def error_by_name(kind: str, text: str) -> LabkitError:
    """The error of this name, told by another labkit process; Failed where no such one is known here."""
    known: dict[str, type[LabkitError]] = {
        one.__name__: one for one in (BadInput, Unsupported, Isolated, Failed)
    }
    return known.get(kind, Failed)(text)


# What Python raises over a text or a file that is not what its reader takes it for.
FOREIGN = (
    ValueError,  # UnicodeError, JSON and msgspec's among them
    LookupError,
    TypeError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    EOFError,
    struct.error,
    zlib.error,
)


@dataclass
class Place:
    """Where a reader is, for the sentence about what is wrong there: `line` counts from 1, `byte` from 0."""

    line: int | None = None
    byte: int | None = None

    def words(self) -> str:
        """`, line 3`, or nothing."""
        for name in ("line", "byte"):
            if (number := getattr(self, name)) is not None:
                return f", {name} {number}"
        return ""


@contextmanager
def reading(source: str, kind: type[LabkitError] = Failed) -> Iterator[Place]:
    """The boundary of a reader: whatever foreign error a text of another form makes it raise leaves as `kind`, with the
    source's name and the place. It is a context manager, and a decorator for a function that reads."""
    place = Place()
    try:
        yield place
    except FOREIGN as error:
        what = " ".join(str(error).split())[:200]
        if isinstance(error, KeyError):
            what = f"it has no {what}"
        raise kind(f"{source}{place.words()} cannot be read: {what or type(error).__name__}") from None
