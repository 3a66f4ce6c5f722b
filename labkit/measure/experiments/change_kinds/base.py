"""What every kind of change has in common: its options, the place it is applied at, and its effect on the kernel."""

from __future__ import annotations

import abc
import inspect
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

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
    its namespace. `example` shows its textual form. `takes`: the regular expressions of the names of its options, each
    with that of the value, or its range; in the order of the textual form. `needs`: options that must be there; without
    any, one must.
    """

    placed = True
    per_interface = True
    example = ""
    takes: ClassVar[Mapping[str, str | range]] = {}
    needs: tuple[str, ...] = ()

    @property
    def meaning(self) -> str:
        """The first paragraph of the kind's docstring."""
        return " ".join((inspect.getdoc(type(self)) or "").partition("\n\n")[0].split())

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        """Parse options from a text: here their values, in order. Raises BadInput."""
        values = dict(zip(self.takes, text.split(None, len(self.takes) - 1), strict=False))
        return {
            name: int(value) if isinstance(self.takes[name], range) and value.isdecimal() else value
            for name, value in values.items()
        }

    def parse_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        """Parse options from a mapping of a YAML file. Raises BadInput."""
        return dict(given)

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise BadInput for invalid options, from whatever source.

        Nothing that a program would take for an option, a path or a command passes; what a value means, the kernel and
        its programs say.
        """
        kind = self.example.partition(" ")[0]
        if not options or not {*self.needs} <= options.keys():
            raise BadInput(
                f"{kind} lacks {', '.join({*self.needs} - options.keys()) or 'a value'}: {self._way_out()}"
            )
        for name, value in options.items():
            form = next((form for names, form in self.takes.items() if re.fullmatch(names, name)), None)
            if form is None:
                raise BadInput(f"{kind} {name!r} is not valid: {self._way_out(*self.takes)}")
            if isinstance(form, range):
                number = int(value) if re.fullmatch(r"\d{1,12}", str(value)) else -1
                if number not in form:
                    raise BadInput(
                        f"{kind}={value} is not a whole number from {form.start} to {form.stop - 1}"
                    )
            elif not isinstance(value, str) or not re.fullmatch(form, value):
                raise BadInput(f"{kind} {name} {value!r:.80} is not valid: {self._way_out(form)}")

    def _way_out(self, *forms: str) -> str:
        """Return what to write: one of the words that the forms list, or as in the example."""
        words = [word for form in forms for word in form.split("|")]
        listed = len(words) > 1 and all(re.fullmatch("[a-z-]+", word) for word in words)
        return f"choose {', '.join(words)}" if listed else f"write for example `{self.example}`"

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
