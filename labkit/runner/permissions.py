"""What parameters may do to this machine, because they may come from somebody else."""

import os
from collections.abc import Iterable

ALLOW = "LABKIT_ALLOW"  # environment variable: names what is allowed, several behind commas
PROGRESS = "LABKIT_PROGRESS"  # environment variable: a file in which a sweep reads its notebook's progress

_agreed: set[tuple[str, str]] = set()


def is_allowed(flag: str, of: Iterable[str] = ()) -> bool:
    """Return whether the user allows what `flag` names: always, or (`allow`) for each of `of`."""
    asked = {(flag, one) for one in of}
    return flag in os.environ.get(ALLOW, "").split(",") or bool(asked and asked <= _agreed)


def allow(flag: str, of: Iterable[str]) -> None:
    """Allow something for these in this process, because its user has agreed."""
    _agreed.update((flag, one) for one in of)


def is_of_a_sweep() -> bool:
    """Return whether a sweep executes this notebook, so that the parameters are those of a file."""
    return bool(os.environ.get(PROGRESS))
