"""The errors that labkit raises on purpose. A message is one sentence: what is wrong, and what to do."""

import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MAX_CHARACTERS = 2000  # limit for a message, because it may quote a file with any content


class LabkitError(Exception):
    """The base class of labkit's errors.

    Its text is written for people: the command line prints it without a traceback. Texts longer than MAX_CHARACTERS are
    cut.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} … (cut)")

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in a cell instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class BadInput(LabkitError):
    """The request is impossible: an unknown name, an invalid value, a missing file. Exit code 2."""


class Unsupported(LabkitError):
    """This kernel or machine lacks a feature: the text says what is missing and what to do. In a sweep it is a row."""


class Isolated(LabkitError):
    """The datapath isolates the two endpoints by design, which was verified. In a sweep it is a row."""


class Failed(LabkitError):
    """A program or a measurement failed. The text contains the program's own message."""


class NoEffect(Failed):
    """A change has no effect on its arm, which therefore equals the unchanged arm. In a sweep it is a row."""


MANY_NAMES = 20  # a message does not list more, if it can say which was meant


def choose(given: object, known: Iterable[object]) -> str:
    """Return `choose A, B, C`, the end of a message about an unknown name, with the name that was probably meant.

    Where such a name is found, more than MANY_NAMES are only counted.
    """
    names = [str(one) for one in known]
    meant = did_you_mean(given, names)
    choice = f"one of {len(names)}" if meant and len(names) > MANY_NAMES else ", ".join(names)
    return f"choose {choice}{meant}"


def did_you_mean(given: object, known: Iterable[str], count: int = 1, least: float = 0.6) -> str:
    """Return ` (did you mean A or B?)` with at most `count` known names that are close to the given one, or nothing.

    least: how close, of 1; with 0.85 the given name is most likely misspelt.
    """
    known = list(known)
    if str(given).isdecimal() or given in known:  # numbers with the same digits are not close
        return ""
    import difflib  # most processes never need it

    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(str(given).lower(), names, count, least)
    return f" (did you mean {' or '.join(names[one] for one in close)}?)" if close else ""


def error_by_name(kind: str, text: str) -> LabkitError:
    """Return the error that another labkit process reported by its class name; Failed for an unknown name."""
    known: dict[str, type[LabkitError]] = {
        error.__name__: error for error in (BadInput, Unsupported, Isolated, Failed, NoEffect)
    }
    return known.get(kind, Failed)(text)


# The exceptions that Python raises when a text or a file has an unexpected form.
FOREIGN = (
    ValueError,  # includes UnicodeError and the errors of json and msgspec
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
class ReadPosition:
    """The position of a reader, for its error message: `line` counts from 1, `byte` from 0."""

    line: int | None = None
    byte: int | None = None

    def text(self) -> str:
        """Return `, line 3`, or nothing."""
        for name in ("line", "byte"):
            if (number := getattr(self, name)) is not None:
                return f", {name} {number}"
        return ""


@contextmanager
def reading(source: str, kind: type[LabkitError] = Failed) -> Iterator[ReadPosition]:
    """Convert errors of parsers and of the system (FOREIGN) in the block to `kind`, with the source's name and the
    position.

    It is a context manager, and also a decorator for a function that reads.
    """
    position = ReadPosition()
    try:
        yield position
    except FOREIGN as error:
        what = " ".join(str(error).split())[:200]
        if isinstance(error, KeyError):
            what = f"it has no {what}"
        raise kind(f"{source}{position.text()} cannot be read: {what or type(error).__name__}") from None
