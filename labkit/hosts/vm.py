"""A lab VM: another kernel over this machine's own files, read-only for it but for one folder.

It is booted for one conversation, or lent to many (a sweep's notebooks) by whoever booted it. It ends with the process
that booted it, in whatever way that ends.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import labkit
from labkit import machine, process
from labkit.errors import BadInput, Failed
from labkit.hosts import boot, console, here, initramfs, kernels, kvm, qemu, shape
from labkit.hosts.shape import Shape

Say = Callable[[str], None]
BOOT_S = 120.0  # a quiet machine needs 5 under emulation
SILENCE_S = 30.0  # the guest beats every second
LENT = "LABKIT_LAB_VM"  # in the environment: the lab VM that a sweep lends to its notebooks


@dataclass(frozen=True)
class Wire:
    """A lab VM's NIC: further words of QEMU's, and the descriptors that they name."""

    words: tuple[str, ...] = ()
    fds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Guest:
    """A lab VM that runs: the folder of its sockets and console; and what holds it, in the process that booted it."""

    where: str
    scratch: Path
    folder: Path | None
    holder: process.Conversation | None = None

    def ended(self) -> str:
        """How it ended, with the last words of its console."""
        words = "has ended"
        for line in self.holder.lines() if self.holder else ():
            event = msgspec.json.decode(line)
            words = event.get("words", words)
        return f"{words}{console.last_words(self.scratch / 'console')}"

    def reaches(self, folder: str | None) -> bool:
        """Whether it can write into the folder."""
        if folder is None or self.folder is None:
            return folder is None
        return Path(folder).absolute().is_relative_to(self.folder)


class Talk:
    """A conversation with one process in a lab VM (see process.Talk). Raises Failed when the lab VM is not there."""

    def __init__(self, guest: Guest, deadline: float) -> None:
        self._guest = guest
        self._rest = b""
        self._how = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(deadline)
            self._check(self._hello(deadline))
        except BaseException:
            self._socket.close()
            raise

    def _check(self, hello: dict[str, Any]) -> None:
        if hello["labkit"] != labkit.__version__:
            raise Failed(
                f"the lab VM runs labkit {hello['labkit']}, and this is {labkit.__version__}: boot it anew"
            )
        if hello["problem"]:
            raise BadInput(f"the lab VM cannot be made ready: {hello['problem']}")

    def _connect(self, deadline: float) -> None:
        while True:
            try:
                return self._socket.connect(str(self._guest.scratch / "channel"))
            except OSError as error:  # QEMU has not made it yet, or has ended
                self._still(deadline, str(error.strerror))
                time.sleep(0.01)

    def _still(self, deadline: float, words: str) -> None:
        """Raises Failed when the lab VM has ended or it is too late."""
        if self._guest.holder is not None and select.select([self._guest.holder], [], [], 0)[0]:
            raise Failed(f"the lab VM did not boot: {self._guest.ended()}")
        if time.monotonic() > deadline:
            last = console.last_words(self._guest.scratch / "console")
            raise Failed(f"the lab VM did not answer in time ({words}){last}")

    def _hello(self, deadline: float) -> dict[str, Any]:
        self._socket.settimeout(0.1)
        while True:
            with suppress(TimeoutError):
                data = self._socket.recv(65536)
                self._rest += data
                if not data:
                    raise Failed(f"the lab VM did not boot: {self._guest.ended()}")
            self._still(deadline, "it is silent")
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                # What is left of somebody else's conversation comes before the greeting.
                if line.startswith(b'{"event":"hello"'):
                    greeting: dict[str, Any] = msgspec.json.decode(line)
                    self._socket.settimeout(SILENCE_S)
                    return greeting

    def tell(self, line: str) -> None:
        """Tell it one more line."""
        with suppress(OSError):
            self._socket.sendall(line.encode() + b"\n")

    def lines(self) -> Iterator[bytes]:
        """Its answers as they come."""
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                if line.startswith(b'{"event":"over"'):
                    self._how = msgspec.json.decode(line)["words"]
                    return
                if not line.startswith(b'{"event":"beat"'):
                    yield line
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                last = console.last_words(self._guest.scratch / "console")
                return self._suspect(f"was not heard of for {SILENCE_S:.0f} s: its lab VM hangs{last}")
            except OSError:
                data = b""
            if not data:
                return self._suspect(f"went with its lab VM, of which {self._guest.ended()}")
            self._rest += data

    def _suspect(self, how: str) -> None:
        self._how = how
        with suppress(OSError):
            (self._guest.scratch / "suspect").touch()

    def words(self) -> str:
        """How it ended."""
        return self._how or "has not ended"

    def end(self) -> None:
        """Let go of it: the guest ends the process."""
        self._socket.close()


@contextmanager
def conversation(
    where: str, request: dict[str, Any], say: Say, wire: Wire | None = None
) -> Iterator[process.Talk]:
    """A labkit process in the lab VM `where`: in one that is lent, else in one that is booted for it.

    Raises BadInput for what cannot be booted, Unsupported where QEMU or the like is missing, Failed with the console's
    last words when it does not boot (tried twice: emulated boots fail now and then).
    """
    folder = request.get("folder")
    with ExitStack() as stack:
        guest = _lent(where, folder) if wire is None else None
        if guest is None:
            guest, talk = _booted(stack, where, Path(folder) if folder else None, say, wire)
        else:
            talk = Talk(guest, time.monotonic() + SILENCE_S)
        stack.callback(talk.end)
        talk.tell(msgspec.json.encode(request).decode())
        yield talk


def _booted(
    stack: ExitStack, where: str, folder: Path | None, say: Say, wire: Wire | None
) -> tuple[Guest, Talk]:
    """A guest that has greeted; both end with the stack."""
    asked = shape.parse(where)
    kernel = kernels.find(asked.kernel)
    accelerated = kvm.worth_trying()
    for last_try in (False, True):
        with ExitStack() as attempt:
            how = "" if accelerated else " (emulated)"
            say(f"booting Linux {kernel.release} in a lab VM{how}")
            guest = attempt.enter_context(started(where, asked, kernel, folder, wire, accelerated))
            try:
                if accelerated and not kvm.runs(guest.scratch / "console"):
                    accelerated = False
                    continue
                talk = Talk(guest, time.monotonic() + BOOT_S)
            except Failed as error:
                if last_try:
                    raise
                say(f"{error}; trying once more")
                continue
            stack.push(attempt.pop_all())
            return guest, talk
    return _booted(stack, where, folder, say, wire)  # KVM took a try, and is known not to work now


@contextmanager
def started(
    where: str,
    asked: Shape,
    kernel: kernels.Kernel,
    folder: Path | None,
    wire: Wire | None,
    accelerated: bool,
) -> Iterator[Guest]:
    """QEMU and virtiofsd, held by a process that dies with us."""
    wire = wire or Wire()
    with _scratch() as scratch:
        if folder is not None:
            folder = folder.absolute()
            with _told(folder):
                folder.mkdir(parents=True, exist_ok=True)
        (scratch / "root.bound").mkdir()
        shares = [qemu.Share("root", scratch / "root.bound", True)]
        shares += [qemu.Share("folder", folder, False)] if folder else []
        argv = [sys.executable, "-m", "labkit.guest"]
        (scratch / "initramfs").write_bytes(
            initramfs.initramfs(kernel, folder, _environment(asked, folder), argv)
        )
        programs = [qemu.virtiofsd(share, scratch / share.tag) for share in shares]
        programs.append(qemu.command(asked, kernel.image, scratch, shares, kvm=accelerated, more=wire.words))
        told = {
            "programs": programs,
            "sockets": [str(scratch / share.tag) for share in shares],
            "root": str(scratch / "root.bound"),
            "fds": wire.fds,
        }
        words = [*here.prefix(), sys.executable, "-m", boot.__name__]
        holder = process.Conversation(words, json.dumps(told), wire.fds)
        try:
            _has_started(holder)
            yield Guest(where, scratch, folder, holder)
        finally:
            holder.end()


def _has_started(holder: process.Conversation) -> None:
    """Wait until QEMU runs. Raises Failed with the words of what ended before."""
    event = msgspec.json.decode(next(holder.lines(), b'{"event":"ended","words":""}'))
    if event["event"] != "started":
        raise Failed(f"the lab VM did not start: {event['words'] or holder.words()}")


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failed(f"cannot make {folder}: {error.strerror}") from None


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for sockets, whose paths must be short; those of owners that were killed are removed."""
    top = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
    for left in top.glob("labkit-vm-*"):
        if not Path("/proc", left.name.split("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"labkit-vm-{os.getpid()}-", dir=top) as scratch:
        yield Path(scratch)


def _environment(asked: Shape, folder: Path | None) -> dict[str, str]:
    """Of PID 1 in the guest: what finds the same programs and packages there as here."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TZ")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    place = str(Path(labkit.__file__).parents[1])
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [place, found.get("PYTHONPATH", "")]))
    found["LABKIT_MODULES"] = " ".join(asked.modules)
    found["LABKIT_GIT_REVISION"] = machine.git_revision() or ""
    return found


def _lent(where: str, folder: str | None) -> Guest | None:
    """The lab VM that is lent to this process, if it is the one that is asked for."""
    told = json.loads(os.environ.get(LENT) or "{}")
    if told.get("where") != where or not Path(told["scratch"], "channel").exists():
        return None
    guest = Guest(where, Path(told["scratch"]), Path(told["folder"]))
    return guest if guest.reaches(folder) else None


@contextmanager
def lending(folder: Path, say: Say) -> Iterator[Callable[[str], None]]:
    """A function that has the lab VM of a `where` ready for the processes that are started next; all of them may write
    into `folder`. One boot serves all that ask for the same; it is booted anew when an experiment left it suspect, and
    not lent when it is asked for `fresh`."""
    with ExitStack() as stack:
        held: list[Guest] = []

        def lend(where: str) -> None:
            if held and (held[0].where != where or (held[0].scratch / "suspect").exists()):
                held.clear()
                stack.close()
            os.environ.pop(LENT, None)
            if not where.startswith("vm:") or shape.parse(where).fresh:
                return
            if not held:
                with here.measuring_lock(say):  # a boot would disturb another's measuring
                    guest, talk = _booted(stack, where, folder, say, None)
                talk.end()
                held.append(guest)
            told = {"where": where, "scratch": str(held[0].scratch), "folder": str(held[0].folder)}
            os.environ[LENT] = json.dumps(told)

        try:
            yield lend
        finally:
            os.environ.pop(LENT, None)
