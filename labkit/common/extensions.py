"""Find the topologies, generators, observers, experiments and findings of other installed packages.

A package names each of them as an entry point (packaging.python.org, "Entry points specification"): the group says what
it is, the name is what users write, and the value is the module and its object.

    [project.entry-points."labkit.topologies"]
    two_bridges = "labkit_toys.toy_topology:TWO_BRIDGES"

Only packages that are installed in this Python's own folders are read, never the current folder, a notebook's folder or
PYTHONPATH. So a file that a user downloads cannot add code to labkit.
"""

from __future__ import annotations

import functools
import os
import site
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from labkit.common.errors import Failed

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUPS = (
    "labkit.topologies",
    "labkit.generators",
    "labkit.observers",
    "labkit.experiments",
    "labkit.findings",
)
Kind = TypeVar("Kind")


def names(group: str, own: Collection[str]) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, without importing them.

    `own`: the names that labkit itself has. Raises Failed for one of them, and for a name that two packages have.
    """
    result: dict[str, EntryPoint] = {}
    for entry in _entry_points().get(group, ()):
        if entry.name in own:
            raise Failed(f"{_described(entry)} has a name that labkit itself uses: rename it")
        if entry.name in result:
            raise Failed(
                f"{_described(entry)} and {_described(result[entry.name])} are both installed: remove one"
            )
        result[entry.name] = entry
    return result


def load(entry: EntryPoint, kind: type[Kind]) -> Kind:
    """Import and return the object of an entry point. Raises Failed if that fails or the object is not a `kind`."""
    try:
        made = entry.load()
    except Exception as error:  # code of another package can fail in any way
        why = f"{type(error).__name__}: {error}"
        raise Failed(
            f"{_described(entry)} cannot be imported ({why}): repair or remove the package"
        ) from error
    if not isinstance(made, kind):
        raise Failed(f"{_described(entry)} is of type {type(made).__name__}: labkit needs a {kind.__name__}")
    return made


def load_all(group: str, kind: type[Kind], own: Collection[str]) -> dict[str, Kind]:
    """Import and return all objects of a group, by name. Raises the same errors as `names` and `load`."""
    return {name: load(entry, kind) for name, entry in names(group, own).items()}


def packages() -> dict[str, str]:
    """Return the packages that extend labkit, with their versions."""
    every = [entry for points in _entry_points().values() for entry in points if entry.dist is not None]
    return {entry.dist.name: entry.dist.version for entry in every if entry.dist is not None}


def _described(entry: EntryPoint) -> str:
    package = entry.dist.name if entry.dist is not None else "an unknown package"
    return f"{entry.name} ({entry.group}) of the package {package}"


@functools.cache
def _entry_points() -> dict[str, list[EntryPoint]]:
    if not any(b"[labkit." in text for text in _texts()):
        return {}
    import importlib.metadata  # takes as long as all other imports of the measuring wing together

    result: dict[str, list[EntryPoint]] = {}
    for distribution in importlib.metadata.distributions(path=_folders()):
        for entry in distribution.entry_points:
            if entry.group in GROUPS:
                result.setdefault(entry.group, []).append(entry)
    return result


def _texts() -> Iterator[bytes]:
    """Yield the file entry_points.txt of every installed package that has one."""
    for folder in _folders():
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in entries:
            if name.endswith(".dist-info"):
                try:
                    yield Path(folder, name, "entry_points.txt").read_bytes()
                except OSError:
                    continue


def _folders() -> list[str]:
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*site.getsitepackages(), *user]
