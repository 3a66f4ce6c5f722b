"""Find what installed packages add to labkit: topologies, generators, observers, experiments, findings, figures, and
columns of rows.

A package names each of them as an entry point (packaging.python.org, "Entry points specification"): the group says what
it is, the name is what users write, and the value is the module and its object.

    [project.entry-points."labkit.topologies"]
    two_bridges = "labkit_toys.toy_topology:TWO_BRIDGES"

labkit's own distribution does the same for what answers a single question. Only packages that are installed in this
Python's own folders are read, and the distribution that labkit itself was loaded from; never the current folder, a
notebook's folder or PYTHONPATH. So a file that a user downloads cannot add code to labkit.
"""

import functools
import importlib
import os
import site
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from labkit.common.errors import BadInput, Failed, choose

PREFIX = "labkit."  # of the groups
DISTRIBUTION = "labkit"
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class EntryPoint:
    """What a package adds: `value` is `module:object`, `package` and `version` are those of the distribution."""

    group: str
    name: str
    value: str
    package: str
    version: str

    def load(self) -> object:
        """Import the module, and return the object."""
        module, _, attributes = self.value.partition(":")
        made: object = importlib.import_module(module)
        for attribute in filter(None, attributes.split(".")):
            made = getattr(made, attribute)
        return made


def names(group: str, own: Collection[str]) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, without importing them.

    `own`: the names that labkit itself has. Raises Failed for one of them, and for a name that two packages have.
    """
    result: dict[str, EntryPoint] = {}
    for entry in _entry_points():
        if entry.group != group:
            continue
        if entry.name in own:
            raise Failed(f"{_described(entry)} has a name that labkit itself uses: rename it")
        if entry.name in result:
            both = f"{_described(entry)} and {_described(result[entry.name])}"
            raise Failed(f"{both} are both installed: remove one")
        result[entry.name] = entry
    return result


def load(entry: EntryPoint, kind: type[Kind]) -> Kind:
    """Import and return the object of an entry point. Raises Failed if that fails or the object is not a `kind`."""
    try:
        made = entry.load()
    except Exception as error:  # code of another package can fail in any way
        what = f"{_described(entry)} cannot be imported ({type(error).__name__}: {error})"
        raise Failed(f"{what}: repair or remove the package") from error
    if not isinstance(made, kind):
        raise Failed(f"{_described(entry)} is of type {type(made).__name__}: labkit needs a {kind.__name__}")
    return made


def load_all(group: str, kind: type[Kind], own: Collection[str]) -> dict[str, Kind]:
    """Import and return all objects of a group, by name. Raises the same errors as `names` and `load`."""
    return {name: load(entry, kind) for name, entry in names(group, own).items()}


def on_call(place: str) -> Callable[..., Any]:
    """Return a function that calls that of `place` (`module:function`), and only then imports it."""
    entry = EntryPoint("", "", place, DISTRIBUTION, "")

    def call(*arguments: Any) -> Any:
        function: Any = entry.load()
        return function(*arguments)

    return call


class Registry(Mapping[str, Kind]):
    """What labkit has under names, and what other packages add to it; only the use of a name imports its object.

    `own`: for each name of labkit, the module and its object, as in an entry point. `unknown`: the refusal of a name
    that is not there, for example `{} is not an experiment`. `others`: the names that packages add. `loaded`: the
    objects of names that were used.
    """

    def __init__(self, group: str, kind: type[Kind], own: Mapping[str, str], unknown: str) -> None:
        self._kind, self._unknown, self.loaded = kind, unknown, dict[str, Kind]()
        others = names(group, own)
        self.others = tuple(others)
        self._entries = {name: EntryPoint(group, name, own[name], DISTRIBUTION, "") for name in own} | others

    def __getitem__(self, name: str) -> Kind:
        if name not in self.loaded:
            self.loaded[name] = load(self._entries[name], self._kind)
        return self.loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def find(self, name: str) -> Kind:
        """Return the object of a name. Raises BadInput with the known names if there is none."""
        if name not in self:
            raise BadInput(f"{self._unknown.format(name)}: {choose(name, self)}")
        return self[name]


def packages() -> dict[str, str]:
    """Return the other packages that extend labkit, with their versions."""
    return {entry.package: entry.version for entry in _entry_points() if entry.package != DISTRIBUTION}


def own_packages() -> list[str]:
    """Return the top-level packages that labkit's own distribution adds to `labkit`, for copies to other machines."""
    modules = (entry.value for entry in _entry_points() if entry.package == DISTRIBUTION)
    return sorted({value.partition(":")[0].partition(".")[0] for value in modules})


def entry_points_text() -> str:
    """Return what labkit's own distribution adds, in the form of entry_points.txt."""
    own = [entry for entry in _entry_points() if entry.package == DISTRIBUTION]
    groups = dict.fromkeys(entry.group for entry in own)
    return "".join(
        f"[{group}]\n" + "".join(f"{entry.name} = {entry.value}\n" for entry in own if entry.group == group)
        for group in groups
    )


def _described(entry: EntryPoint) -> str:
    return f"{entry.name} ({entry.group}) of the package {entry.package}"


@functools.cache
def _entry_points() -> tuple[EntryPoint, ...]:
    """Return all entry points for labkit, those of a distribution that is found twice once.

    The files are read here, because importing `importlib.metadata` takes as long as all else that a run imports.
    """
    result: dict[str, list[EntryPoint]] = {}
    for folder, text in _files():
        lines = [line.strip() for line in text.splitlines()]
        if not any(line.startswith(f"[{PREFIX}") for line in lines):
            continue
        package, version = _distribution(folder)
        if package in result:
            continue
        result[package] = []
        group = ""
        for line in lines:
            if line.startswith("["):
                group = line.strip("[] ")
            elif group.startswith(PREFIX) and "=" in line and not line.startswith(("#", ";")):
                name, _, value = line.partition("=")
                value = value.partition("[")[0].replace(" ", "")  # without extras
                result[package].append(EntryPoint(group, name.strip(), value, package, version))
    return tuple(entry for entries in result.values() for entry in entries)


def _files() -> Iterator[tuple[Path, str]]:
    """Yield each installed distribution that has entry points: its folder, and the text of entry_points.txt."""
    beside = str(Path(__file__).resolve().parents[2])  # a copy of labkit need not be in this Python's folders
    for folder, start in ((beside, f"{DISTRIBUTION}-"), *((one, "") for one in _folders())):
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in entries:
            if name.endswith(".dist-info") and name.startswith(start):
                try:
                    yield Path(folder, name), Path(folder, name, "entry_points.txt").read_text("utf-8")
                except (OSError, UnicodeDecodeError):
                    continue


def _distribution(folder: Path) -> tuple[str, str]:
    """Return the name and the version of a distribution, by METADATA or else by its folder's name."""
    name, _, version = folder.name.removesuffix(".dist-info").partition("-")
    try:
        head = (folder / "METADATA").read_text("utf-8", "replace").partition("\n\n")[0]
    except OSError:
        return name, version
    fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    return fields.get("Name", name), fields.get("Version", version)


def _folders() -> list[str]:
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*site.getsitepackages(), *user]
