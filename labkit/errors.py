"""Every error that labkit raises on purpose. A message is one sentence: the fact, and the way out."""

from __future__ import annotations


class LabkitError(Exception):
    """The root of the tree. Its text is meant to be read by a person; the command line prints it without a
    traceback."""


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


def named(kind: str, text: str) -> LabkitError:
    """The error of this name, told by another labkit process; Failed where no such one is known here."""
    known: dict[str, type[LabkitError]] = {
        one.__name__: one for one in (BadInput, Unsupported, Isolated, Failed)
    }
    return known.get(kind, Failed)(text)
