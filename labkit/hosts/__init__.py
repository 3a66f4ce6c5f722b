"""Kernels that an experiment can be sent to. A host is a prefix for one labkit process."""

from labkit.errors import BadInput
from labkit.hosts import here


def prefix(where: str) -> list[str]:
    """The words that start a labkit process on the kernel `where`. Raises BadInput with the list of what
    there is."""
    if where != "here":
        raise BadInput(f"where={where}: there is only 'here', the running kernel")
    return here.prefix()


__all__ = ["here", "prefix"]
