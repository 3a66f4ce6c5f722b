"""What every kind of change has in common: its options, the place it is applied at, and its effect on the kernel."""

from __future__ import annotations

import abc
import errno
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.common.errors import BadInput, Failed, LabkitError, Unsupported
from labkit.measure.endpoints import Namespace
from labkit.measure.endpoints.namespace import Kernel
from labkit.system import machine, process

LARGEST_FILE = 4 << 20
State = dict[str, str]  # settings of a place by name, as the kernel reports them


@dataclass(frozen=True)
class Place:
    """A namespace, or an interface in it.

    `role`: client, server or between. `kernel`: a guest's kernel, or None for this host's kernel.
    """

    role: str
    namespace: Namespace
    interface: str
    kernel: Kernel | None = None

    def program(
        self, name: str, *words: str, text: str | None = None, timeout_s: float = 20.0
    ) -> process.Ended:
        """Run a program in the namespace, with `text` as its standard input; `words` are arguments, never a shell's."""
        argv = [*self.namespace.prefix, machine.program(name), *words]
        if text is None:
            return process.run(argv, timeout_s)
        with tempfile.TemporaryFile() as file:
            file.write(text.encode())
            file.seek(0)
            return process.run(argv, timeout_s, stdin=file)

    def __str__(self) -> str:
        return f"{self.namespace.name}:{self.interface}"


class Files:
    """The files that changes may name: those in and below `folder`; with None, every readable file."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """Return the path of a file. Raises BadInput for a path outside the folder."""
        if self._folder is None:
            return Path(name).expanduser().resolve()
        path = (self._folder / name).resolve()
        if not path.is_relative_to(self._folder.resolve()):
            raise BadInput(
                f"{name} is outside of the folder {self._folder}: a file that a parameter names must lie in the folder"
                " of the file with the parameters, or below"
            )
        return path

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises BadInput if it is unreadable, not a regular file, or too large."""
        path = self.path(name)
        try:
            if not path.is_file():
                raise BadInput(f"{name} is not a file")
            if path.stat().st_size > LARGEST_FILE:
                raise BadInput(f"{name} has more than {LARGEST_FILE >> 20} MiB")
            return path.read_bytes()
        except OSError as error:
            raise BadInput(f"{name} cannot be read: {error.strerror}") from None

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

    @abc.abstractmethod
    def of_text(self, text: str, files: Files) -> dict[str, Any]:
        """Parse options from a text. Raises BadInput."""

    def of_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        """Parse options from a mapping of a YAML file. Raises BadInput."""
        return dict(given)

    @abc.abstractmethod
    def check(self, options: Mapping[str, Any]) -> None:
        """Raise BadInput for invalid options, from whatever source."""

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


FORBIDDEN = ("operation not permitted", "permission denied")
LACKING = (
    "operation not supported",
    "protocol not supported",
    "not supported by device",
    "unknown qdisc",
    "unknown filter",
    "kind is unknown",
    "no such device or address",
)


def output_or_raise(ended: process.Ended, what: str, lacking: Sequence[str] = ()) -> str:
    """Return the output of a program. Raises Unsupported if its message says that the kernel lacks something, else
    Failed."""
    if ended.returncode == 0:
        return ended.stdout
    words = ended.message()
    if any(one in words.lower() for one in FORBIDDEN):
        raise Unsupported(f"{what} needs root, also outside of a user namespace ({words})")
    if any(one in words.lower() for one in (*LACKING, *lacking)):
        raise Unsupported(f"this kernel or interface lacks {what} ({words})")
    raise Failed(f"{what} was refused: {words}")


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def refused(error: OSError, what: str) -> LabkitError:
    """Return the error to raise when the kernel refuses to write a setting."""
    if error.errno in (errno.EPERM, errno.EACCES):
        return Unsupported(f"{what} needs root, also outside of a user namespace ({error.strerror})")
    return Failed(f"the kernel refuses {what} ({error.strerror})")


def text_options(kind: str, options: Mapping[str, Any], *names: str) -> None:
    """Raise BadInput unless the options are exactly these, each a text."""
    if set(options) != set(names) or not all(isinstance(value, str) for value in options.values()):
        raise BadInput(
            f"{kind} takes {', '.join(names)}, each as a text; it was given {', '.join(options) or 'nothing'}"
        )


def no_guest(kind: str, place: Place) -> None:
    """Raise Unsupported for a place in the kernel of a guest."""
    if place.kernel is not None:
        raise Unsupported(
            f"{kind} cannot be changed inside a guest: use endpoint=namespace or container, or a sysctl"
        )


def pairs(kind: str, text: str) -> dict[str, Any]:
    """Parse `gro off tso off` into a mapping. Raises BadInput."""
    words = text.split()
    if not words or len(words) % 2:
        raise BadInput(f"{kind} {text!r}: write names, each followed by its value")
    return dict(zip(words[::2], words[1::2], strict=True))


def number(kind: str, value: Any, least: int, most: int) -> int:
    """Return a whole number within the bounds. Raises BadInput."""
    try:
        result = int(str(value))
    except ValueError:
        raise BadInput(f"{kind}={value}: a whole number is needed") from None
    if not least <= result <= most:
        raise BadInput(f"{kind}={value} is outside {least} to {most}")
    return result
