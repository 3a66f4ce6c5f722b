"""Another machine through ssh(1), with the user's own configuration and keys.

labkit copies itself to that machine and brings back the files that the experiment writes there. The remote Python first
runs hosts/ssh_bootstrap.py, which labkit sends to it, then labkit.measure.agent.ssh_entry.
"""

import base64
import contextlib
import functools
import hashlib
import io
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec

import labkit
from labkit.common import extensions, packages, run_folder
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.system import machine, process

FORM = "ssh:NAME, where NAME is a Host of your ssh configuration, a machine's name, or user@machine"
BEAT_S, SILENCE_S = 5, 25  # both ends send a beat every BEAT_S, and give up after SILENCE_S without one
START_S = 60  # for a shell and a Python to start, and packages to be unpacked
MAX_BYTES = 4 << 30  # of files that come back from one run
COPIED = re.compile(r"environment\.json|artefacts(/[^/\0]+)+")

# ServerAliveCountMax: ssh notices a broken connection within 20 s. ControlMaster: an existing shared connection may be
# used, but none is left open. ClearAllForwardings: another session may already use a forwarded port of the user's
# configuration.
OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ControlMaster=no",
    "ClearAllForwardings=yes",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
)
# The dependencies of the measuring wing with their version bounds (minimum, below), as in pyproject.toml; a test
# compares both.
NEEDS = {"msgspec": ((0, 20), (1,)), "pyroute2": ((0, 9, 4), (0, 10))}
SUFFIXES = (".py", ".j2", ".css", ".js", ".json", ".toml")
# Files of the installation, not of the package.
INSTALLATION_FILES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
Message = TypeVar("Message")
GREETING = b"labkit-python"
# One line without characters that a login shell could interpret. It prints the version before it uses anything that an
# old Python lacks, and does not import modules from the home folder.
FIRST = (
    "import sys; sys.path = [p for p in sys.path if p];"
    f' print("{GREETING.decode()}", sys.version_info[0], sys.version_info[1], flush=True);'
    " sys.version_info >= (3, 11) or sys.exit();"
    " import json; exec(json.loads(sys.stdin.buffer.readline()))"
)


def check(where: str) -> None:
    """Raise BadInput unless `where` has the form ssh:NAME."""
    name = where.removeprefix("ssh:")
    if not re.fullmatch(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}@)?[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}", name):
        raise BadInput(f"where={where}: a machine has the form {FORM}")


@contextmanager
def conversation(
    where: str, request: dict[str, Any], say: Callable[[str], None]
) -> Iterator[process.Conversing]:
    """Start a labkit process on that machine and send it the request; it ends with the block.

    Raises Failed with ssh's error message if there is no connection. Raises Unsupported if the remote Python is too old
    or lacks a package that labkit cannot copy to it.
    """
    with ExitStack() as stack:
        far = SshConversation(
            where.removeprefix("ssh:"), Path(request["folder"]) if "folder" in request else None
        )
        stack.callback(far.end)
        far.greet(say)
        far.send(msgspec.json.encode(_remote_request(request)))
        yield far


def _remote_request(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request for the remote side: only the folder's name, with the rows that it holds."""
    if request["do"] == "serve":
        return request | {"git_revision": machine.git_revision()}
    if "folder" not in request:
        return request
    folder = Path(request["folder"])
    finished = {path.stem: path.read_text() for path in sorted((folder / "rows").glob("*.jsonl"))}
    own = {"folder": folder.absolute().name, "finished": finished, "git_revision": machine.git_revision()}
    return request | own


class BootstrapReport(msgspec.Struct):
    """What hosts/ssh_bootstrap.py reports: package versions, packages already copied, and its Python."""

    versions: dict[str, str | None]
    there: list[str]
    python: str
    platform: tuple[str | None, str]


class Hello(msgspec.Struct):
    """The first event of labkit.measure.agent.ssh_entry, with its version."""

    labkit: str


class CopiedFile(msgspec.Struct):
    """A file that the remote side sends back, with its path in the run folder."""

    path: str
    content: bytes


@dataclass(frozen=True)
class Package:
    """A Python package to copy to another machine: its files by their names in the archive.

    If it is not `pure`, parts of it are compiled for one Python version and platform.
    """

    name: str
    version: str
    pure: bool
    files: dict[str, bytes]

    @functools.cached_property
    def digest(self) -> str:
        """Return 16 hexadecimal digits that identify these files."""
        whole = hashlib.sha256()
        for name in sorted(self.files):
            whole.update(f"{name} {hashlib.sha256(self.files[name]).hexdigest()}\n".encode())
        return whole.hexdigest()[:16]

    def content(self) -> bytes:
        """Return a zip archive of its files."""
        import zipfile  # imported here, because every experiment would pay for it at its start

        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(self.files.items()):
                archive.writestr(name, content)
        return target.getvalue()


@functools.cache
def own_package() -> Package:
    """Return the running labkit, with the packages that its own distribution adds."""
    root = Path(labkit.__file__).parents[1]
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for package in ("labkit", *extensions.own_packages())
        for path in sorted((root / package).rglob("*"))
        if path.suffix in SUFFIXES and path.is_file()
    }
    about = f"Metadata-Version: 2.1\nName: labkit\nVersion: {labkit.__version__}\n"
    folder = f"labkit-{labkit.__version__}.dist-info"
    files[f"{folder}/METADATA"] = about.encode()
    files[f"{folder}/entry_points.txt"] = extensions.entry_points_text().encode()
    return Package("labkit", labkit.__version__, True, files)


@functools.cache
def installed_package(name: str) -> Package:
    """Return an installed package. Raises Failed if its installer did not record its files."""
    import importlib.metadata  # takes 30 ms and is for ssh hosts only

    result = importlib.metadata.distribution(name)
    files = {
        path.as_posix(): path.read_binary()
        for path in result.files or ()
        if ".." not in path.parts and "__pycache__" not in path.parts and path.name not in INSTALLATION_FILES
    }
    about = result.read_text("WHEEL")
    if not files or about is None:
        raise Failed(
            f"this Python's {name} cannot be copied, because it has no list of its files:"
            f" install {name}{bounds(name)} on the other machine"
        )
    return Package(result.name, result.version, "Root-Is-Purelib: true" in about, files)


def platform() -> tuple[str | None, str]:
    """Return what compiled parts of this Python are made for, in the form that hosts/ssh_bootstrap.py reports."""
    import sysconfig

    return sysconfig.get_config_var("SOABI"), sysconfig.get_platform()


def bounds(name: str) -> str:
    """Return the version bounds, for example `>=0.20,<1`."""
    least, below = (".".join(map(str, version)) for version in NEEDS[name])
    return f">={least},<{below}"


def fits(name: str, version: str | None) -> bool:
    """Return whether this version of a package is within the bounds."""
    if version is None:
        return False
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    least, below = NEEDS[name]
    return least <= numbers < below


class SshConversation:
    """A conversation through ssh (a process.Conversing). It writes received files into `folder`."""

    def __init__(self, name: str, folder: Path | None) -> None:
        if shutil.which("ssh") is None:
            raise Unsupported(packages.missing("ssh"))
        self._name, self._folder = name, folder
        self._left_bytes = MAX_BYTES
        self._ended: str | None = None
        options = [word for option in OPTIONS for word in ("-o", option)]
        command = f"exec python3 -c {shlex.quote(FIRST)}"
        source = Path(__file__).with_name("ssh_bootstrap.py").read_text()
        argv = ["ssh", "-T", *options, "--", name, command]
        self._conversation = process.Conversation(argv, msgspec.json.encode(source))
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)

    def greet(self, say: Callable[[str], None]) -> None:
        """Start the remote labkit, copying missing packages first; `say` gets a sentence about the copies."""
        self._python()
        wanted = {"labkit": own_package()} | {name: installed_package(name) for name in NEEDS}
        self.send(msgspec.json.encode({name: one.digest for name, one in wanted.items()}))
        result = self._receive(BootstrapReport)
        use = {name: one for name, one in wanted.items() if name == "labkit" or self._must_copy(one, result)}
        contents = {name: one.content() for name, one in use.items() if name not in result.there}
        if contents:
            size = sum(map(len, contents.values()))
            say(f"copying {', '.join(contents)} to {self._name} ({size / 1e6:.1f} MB)")
        encoded = {name: base64.b64encode(content).decode() for name, content in contents.items()}
        compiled = [name for name, one in use.items() if not one.pure]
        self.send(msgspec.json.encode({"use": list(use), "try": compiled, "contents": encoded}))
        version = self._receive(Hello).labkit
        if version != labkit.__version__:
            raise Failed(
                f"on {self._name} labkit {version[:30]} answers, but this is {labkit.__version__}: remove"
                f" ~/.cache/labkit/{wanted['labkit'].digest} there; labkit then copies the right one"
            )
        self._beats.start()

    def _python(self) -> None:
        """Wait for the remote Python; output of the login shell before it is ignored."""
        for line in self._conversation.lines(START_S):
            if line.startswith(GREETING):
                version = tuple(map(int, line.split()[1:3]))
                if version < (3, 11):
                    raise Unsupported(
                        f"Python on {self._name} is {version[0]}.{version[1]}, and labkit needs 3.11 or newer:"
                        " make it the python3 that `ssh` finds there"
                    )
                return
        words = self._last_words()
        if words.startswith("ended with 127"):
            raise Unsupported(f"there is no python3 on {self._name} ({words}): install 3.11 or newer there")
        raise Failed(
            f"ssh to {self._name} {words}; `ssh {self._name} true` must work without a prompt:"
            " connect once by hand"
        )

    def _must_copy(self, one: Package, result: BootstrapReport) -> bool:
        """Return whether a package must be copied. Raises Unsupported if it is needed but cannot work there."""
        if fits(one.name, result.versions.get(one.name)):
            return False
        own = platform()
        if not one.pure and result.platform != own:
            raise Unsupported(
                f"on {self._name} Python {result.python} ({result.platform[0]}) has no {one.name}, and the one from"
                f' here is for {own[0]}: install it there (python3 -m pip install "{one.name}{bounds(one.name)}")'
            )
        return True

    def _receive(self, kind: type[Message]) -> Message:
        """Return the next event. Raises Failed if the remote side failed, ended, or sent an invalid line."""
        line = next(self._conversation.lines(START_S), None)
        if line is None:
            raise Failed(f"the connection to {self._name} broke at the start: ssh {self._last_words()}")
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
            if event.get("event") == "error":
                raise Failed(f"on {self._name}: {event.get('text')}")
            return msgspec.convert(event, kind)
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise Failed(
                f"{self._name} answered {line[:200]!r} instead of labkit: does a start-up file of the shell"
                " there print that?"
            ) from None

    def _last_words(self) -> str:
        return self._conversation.end_reason().rstrip(".\r ")

    def _beat(self) -> None:
        """Send an empty line regularly; without it the remote side ends, because the connection may be broken."""
        while not self._over.wait(BEAT_S):
            with contextlib.suppress(ValueError):  # the connection was closed meanwhile
                self._conversation.send(b"")

    def send(self, line: bytes) -> None:
        self._conversation.send(line)

    def lines(self) -> Iterator[bytes]:
        """Yield the answers until the remote process ends, and write received files.

        Raises Failed for a file outside the run folder.
        """
        for line in self._conversation.lines(SILENCE_S):
            try:
                event = msgspec.json.decode(line, type=dict[str, Any])
            except (msgspec.DecodeError, msgspec.ValidationError):
                yield line  # the caller decides what an invalid line means
                continue
            kind = event.get("event")
            if kind == "file":
                self._keep(line)
            elif kind == "ended":
                self._ended = event["text"]
                return
            elif kind in ("log", "error"):
                yield msgspec.json.encode(event | {"text": f"on {self._name}: {event.get('text')}"})
            else:
                yield line

    def _keep(self, line: bytes) -> None:
        try:
            file = msgspec.json.decode(line, type=CopiedFile)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Failed(f"{self._name} sent an invalid file event: {error}") from None
        self._left_bytes -= len(file.content)
        inside = COPIED.fullmatch(file.path) and ".." not in PurePosixPath(file.path).parts
        if self._folder is None or not inside or self._left_bytes < 0:
            size = len(file.content)
            raise Failed(
                f"{self._name} sent a file that labkit does not accept: {file.path[:200]!r}, {size} bytes"
            )
        run_folder.write(self._folder / file.path, file.content)

    def end_reason(self) -> str:
        """Return how the process ended without an answer: remotely, or because the connection broke."""
        if self._ended is not None:
            return f"on {self._name} {self._ended}"
        return f"lost its connection to {self._name}: ssh {self._last_words()}"

    def end(self) -> None:
        """Close the connection, which ends the remote process."""
        self._over.set()
        self._conversation.end()
        if self._beats.is_alive():
            self._beats.join()
