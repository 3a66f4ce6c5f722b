"""What parameters may do to this machine, because they may come from somebody else."""

import os

ALLOW = "LABKIT_ALLOW"  # environment variable: names what is allowed, several behind commas
PROGRESS = "LABKIT_PROGRESS"  # environment variable: a file in which a sweep reads its notebook's progress


def is_allowed(flag: str) -> bool:
    """Return whether the user allows what `flag` names."""
    return flag in os.environ.get(ALLOW, "").split(",")


def allow(flag: str) -> None:
    """Allow something in this process and in those that it starts, because its user has agreed."""
    os.environ[ALLOW] = ",".join(filter(None, [os.environ.get(ALLOW, ""), flag]))


def is_of_a_sweep() -> bool:
    """Return whether a sweep executes this notebook, so that the parameters are those of a file."""
    return bool(os.environ.get(PROGRESS))
