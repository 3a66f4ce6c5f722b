"""What every kind of change has in common: its options, the place it is applied at, and its effect on the kernel."""

from __future__ import annotations

import errno
import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from labkit.common import safe_files
from labkit.common.errors import BadInput, Failed, LabkitError, Unsupported, did_you_mean
from labkit.measure.endpoints import Kernel
from labkit.system import process

LARGEST_FILE = 4 << 20
# Textual forms of options: the values in order, or names with them
VALUES, NAMES, ASSIGNMENT = "VALUE …", "NAME VALUE …", "NAME=VALUE"
State = dict[str, str]  # settings of a place by name, as the kernel reports them
FORBIDDEN = ("operation not permitted", "permission denied")
LACKING = (
    "operation not supported", "protocol not supported", "not supported by device", "unknown qdisc", "unknown filter",
    "kind is unknown", "no such device or address",
)  # fmt: skip


def output_or_raise(ended: process.Ended, what: str, lacking: Sequence[str] = ()) -> str:
    """Return the output of a program. Raises Unsupported if its message says that the kernel lacks something, else
    Failed."""
    if ended.returncode == 0:
        return ended.stdout
    text = ended.message()
    if any(one in text.lower() for one in FORBIDDEN):
        raise Unsupported(f"{what} needs root, also outside of a user namespace ({text})")
    if any(one in text.lower() for one in (*LACKING, *lacking)):
        raise Unsupported(f"this kernel or interface lacks {what} ({text})")
    raise Failed(f"{what} was refused: {text}")


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def refused(error: OSError, what: str) -> LabkitError:
    """Return the error to raise when the kernel refuses to write a setting."""
    if error.errno in (errno.EPERM, errno.EACCES):
        return Unsupported(f"{what} needs root, also outside of a user namespace ({error.strerror})")
    return Failed(f"the kernel refuses {what} ({error.strerror})")


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

    def run(self, what: str, *argv: str, lacking: Sequence[str] = ()) -> str:
        """Run a program there and return its output. Raises as `output_or_raise`."""
        return output_or_raise(self.kernel.run(*argv), what, lacking)

    def link(self, what: str) -> dict[str, Any]:
        """Return the interface as ip-link(8) shows it. Raises as `run`."""
        links: list[dict[str, Any]] = json.loads(
            self.run(what, "ip", "-j", "-d", "link", "show", "dev", self.interface)
        )
        return links[0]


class Files:
    """The files that changes may name: those in and below `folder`; with None, every readable file."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """Return the path of a file. Raises BadInput for a path outside the folder."""
        try:
            path = ((self._folder or Path()) / Path(name).expanduser()).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a null, a loop of links, an unknown ~user
            raise BadInput(f"{name!r} cannot be the path of a file: {error}") from None
        if self._folder is not None and not path.is_relative_to(self._folder.resolve()):
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


class Kind:
    """A kind of change.

    `placed`: it is applied at a place of the topology. `per_interface`: at each interface of the place, else once in
    its namespace. `example` shows its textual form; `form` is VALUES, NAMES or ASSIGNMENT. `takes`: the regular
    expressions of the names of its options, each with that of the value, or its range; in the order of the textual
    form. `needs`: options that must be there; without any, one must.
    """

    placed = True
    per_interface = True
    example = ""
    form = VALUES
    takes: ClassVar[Mapping[str, str | range]] = {}
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name, with which the example begins."""
        return self.example.partition(" ")[0]

    @property
    def meaning(self) -> str:
        """The first paragraph of the kind's docstring."""
        return " ".join((inspect.getdoc(type(self)) or "").partition("\n\n")[0].split())

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        """Parse options from a text of this kind's form. Raises BadInput."""
        if self.form == ASSIGNMENT:
            name, equals, value = text.partition("=")
            if not equals:
                raise BadInput(f"{self.name} {text!r}: write {ASSIGNMENT}")
            return {name.strip(): value.strip()}
        if self.form == NAMES:
            words = text.split()
            if not words or len(words) % 2:
                raise BadInput(f"{self.name} {text!r}: write names, each followed by its value")
            return dict(zip(words[::2], words[1::2], strict=True))
        values = dict(zip(self.takes, text.split(None, len(self.takes) - 1), strict=False))
        return {
            name: int(value) if isinstance(self.takes[name], range) and value.isdecimal() else value
            for name, value in values.items()
        }

    def parse_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        """Parse options from a mapping of a YAML file, in which a text may be a number. Raises BadInput."""
        return {
            name: str(value) if isinstance(value, int) and isinstance(self._allowed(name), str) else value
            for name, value in given.items()
        }

    def _allowed(self, name: str) -> str | range | None:
        """Return what the value of an option may be; None if there is no such option."""
        return next((values for names, values in self.takes.items() if re.fullmatch(names, name)), None)

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise BadInput for invalid options, from whatever source.

        Nothing that a program would take for an option, a path or a command passes; what a value means, the kernel and
        its programs say.
        """
        if not options or not {*self.needs} <= options.keys():
            lacks = ", ".join({*self.needs} - options.keys()) or "a value"
            raise BadInput(f"{self.name} lacks {lacks}: {self._way_out()}")
        for name, value in options.items():
            allowed = self._allowed(name)
            if allowed is None:
                near = did_you_mean(name, "|".join(self.takes).split("|"))
                raise BadInput(f"{self.name} {name!r} is not valid: {self._way_out(*self.takes)}{near}")
            if isinstance(allowed, range):
                number = int(value) if re.fullmatch(r"\d{1,12}", str(value)) else -1
                if number not in allowed:
                    bounds = f"{allowed.start} to {allowed.stop - 1}"
                    raise BadInput(f"{self.name}={value} is not a whole number from {bounds}")
            elif not isinstance(value, str) or not re.fullmatch(allowed, value):
                raise BadInput(f"{self.name} {name} {value!r:.80} is not valid: {self._way_out(allowed)}")

    def _way_out(self, *forms: str) -> str:
        """Return what to write: one of the words that the forms list, or as in the example."""
        words = [word for form in forms for word in form.split("|")]
        listed = len(words) > 1 and all(re.fullmatch("[a-z-]+", word) for word in words)
        return f"choose {', '.join(words)}" if listed else f"write for example `{self.example}`"

    def setting(self, option: str) -> str:
        """Return the name that `state` has for what an option changes."""
        return option

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        """Return the settings that this kind changes, as the kernel reports them; a kind without a place has none.

        Raises Unsupported if the kernel lacks them.
        """
        if self.placed:
            raise NotImplementedError(f"{self.name} has no state")
        return {}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        """Apply the change. Raises Unsupported if the kernel lacks the feature, Failed if it refuses the change."""
        if self.placed:
            raise NotImplementedError(f"{self.name} cannot be applied")

    def verify(self, after: State, options: Mapping[str, Any], place: Place) -> None:
        """Raise Failed if the kernel reports another setting than the requested one."""
