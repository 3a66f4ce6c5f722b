"""What every kind of change has in common: its options, the place it is applied at, and its effect on the kernel."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.common import safe_files
from labkit.common.errors import BadInput
from labkit.measure.endpoints import Kernel

LARGEST_FILE = 4 << 20
State = dict[str, str]  # settings of a place by name, as the kernel reports them


@dataclass(frozen=True)
class Place:
    """A kernel as a network namespace or a guest sees it, or an interface there.

    `role`: client, server or between. `at_end`: what has to be undone before the topology is removed.
    """

    role: str
    kernel: Kernel
    interface: str
    at_end: ExitStack = field(default_factory=ExitStack, compare=False)

    def __str__(self) -> str:
        return f"{self.kernel.name}:{self.interface}"


class Files:
    """The files that changes may name: those in and below `folder`; with None, every readable file."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """Return the path of a file. Raises BadInput for a path outside the folder."""
        try:
            path = ((self._folder or Path()) / Path(name).expanduser()).resolve()
        except (
            OSError,
            ValueError,
            RuntimeError,
        ) as error:  # a null character, a loop of links, an unknown ~user
            raise BadInput(f"{name!r} cannot be the path of a file: {error}") from None
        if self._folder is None:
            return path
        if not path.is_relative_to(self._folder.resolve()):
            raise BadInput(
                f"{name} is outside of the folder {self._folder}: a file that a parameter names must lie in the folder"
                " of the file with the parameters, or below"
            )
        return path

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises BadInput if it is unreadable, not a regular file, or too large."""
        return safe_files.read_regular(self.path(name), LARGEST_FILE)

    def beside(self, name: str) -> Files:
        """Return the files that the file `name` may name: those in and below its folder."""
        return Files(self.path(name).parent)


class Kind(abc.ABC):
    """A kind of change.

    `placed`: it is applied at a place of the topology. `per_interface`: at each interface of the place, else once in
    its namespace. `example` shows its textual form.
    """

    placed = True
    per_interface = True
    example = ""

    @property
    def meaning(self) -> str:
        """The first paragraph of the kind's docstring."""
        return " ".join((inspect.getdoc(type(self)) or "").partition("\n\n")[0].split())

    @abc.abstractmethod
    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        """Parse options from a text. Raises BadInput."""

    def parse_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        """Parse options from a mapping of a YAML file. Raises BadInput."""
        return dict(given)

    @abc.abstractmethod
    def check(self, options: Mapping[str, Any]) -> None:
        """Raise BadInput for invalid options, from whatever source."""

    def setting(self, option: str) -> str:
        """Return the name that `state` has for what an option changes."""
        return option

    @abc.abstractmethod
    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        """Return the settings that this kind changes, as the kernel reports them.

        Raises Unsupported if the kernel lacks them.
        """

    @abc.abstractmethod
    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        """Apply the change. Raises Unsupported if the kernel lacks the feature, Failed if it refuses the change."""

    def verify(  # noqa: B027  (most kinds have nothing to add to the difference of states)
        self, after: State, options: Mapping[str, Any], place: Place
    ) -> None:
        """Raise Failed if the kernel reports another setting than the requested one."""
