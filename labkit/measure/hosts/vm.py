"""A lab VM: another kernel that sees this machine's files, read-only except for one folder.

It is booted for one conversation, or shared by the notebooks of a sweep. It ends with the process that booted it. The
channel to it is a unix socket of QEMU, whose other end is the guest's virtio-serial port (agent.vm_init).
"""

import compileall
import functools
import json
import os
import select
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import labkit
from labkit.common import extensions, safe_files
from labkit.common.errors import BadInput, Failed
from labkit.measure.hosts import local, vm_holder
from labkit.system import machine, process
from labkit.system.qemu import boot, command, initramfs, kernels, vm_spec
from labkit.system.qemu.vm_spec import Shape

Say = Callable[[str], None]
BOOT_S = 120.0  # a quiet machine needs 5 under emulation
KVM_S = 30.0
NOT_MEASURING = ("doctor", "draw", "live")  # requests that do not measure
SILENCE_S = 30.0  # the guest sends a beat every second
# A guest that got no CPU time between one client's end and the next one's start noticed neither: the port only shows
# whether a host is connected. Therefore a client without a hello disconnects for a moment. Both times grow with each
# attempt, up to LONGER times.
GREETING_S, AWAY_S, LONGER = 0.5, 0.1, 16
REPORT_S = 15.0  # between two messages about a boot; an emulated one takes 5 s on a quiet machine
# Modules for the file systems and the channel; all others are loaded from the root.
MODULES = ("virtio_pci", "virtiofs", "overlay", "virtio_console")


@dataclass(frozen=True)
class VmNic:
    """A lab VM's NIC: QEMU arguments, and the file descriptors that they name.

    `outside`: QEMU runs in this machine's network namespace, where forwarded ports are reachable; else in its own.
    """

    arguments: tuple[str, ...] = ()
    fds: tuple[int, ...] = ()
    outside: bool = False


@dataclass(eq=False)
class LabVm(boot.Machine):
    """A running lab VM: the folder of its sockets and console, and its holder if this process booted it."""

    where: str
    scratch: Path
    folder: Path | None
    holder: process.Conversation | None = None
    label = "the lab VM"

    def ended(self) -> str | None:
        if self.holder is None or not select.select([self.holder], [], [], 0)[0]:
            return None
        return self.wait_for_end()

    def wait_for_end(self) -> str:
        """Return how it ended, when it has ended."""
        how = "it has ended"
        for line in self.holder.lines() if self.holder else ():
            event = msgspec.json.decode(line)
            how = event.get("text", how)
        return how

    def suspect(self) -> bool:
        """Return whether it has ended or a failure made it unfit for further use."""
        return self.ended() is not None or (self.scratch / "suspect").exists()

    def reaches(self, folder: str | None) -> bool:
        """Return whether it can write into the folder."""
        if folder is None or self.folder is None:
            return folder is None
        return Path(folder).resolve().is_relative_to(self.folder)


class VmConversation:
    """A conversation with one process in a lab VM (a process.Conversing). Raises Failed if the lab VM has ended.

    `say` gets a sentence every REPORT_S seconds while the lab VM boots.
    """

    def __init__(
        self, guest: LabVm, deadline: float, say: Callable[[str], None] = lambda _text: None
    ) -> None:
        self._guest, self._say = guest, say
        self._begun, self._reports = time.monotonic(), 0
        self._how = ""
        try:
            hello = self._greeting(deadline)
            if hello["labkit"] != labkit.__version__:
                theirs = f"the lab VM runs labkit {hello['labkit']}"
                raise Failed(f"{theirs}, but this is {labkit.__version__}: boot it again")
            if hello["problem"]:
                raise BadInput(f"the lab VM cannot be prepared: {hello['problem']}")
        except BaseException:
            self._socket.close()
            self._suspect("did not greet")
            raise

    def _greeting(self, deadline: float) -> dict[str, Any]:
        longer = 1
        self._connect(deadline)
        while (hello := self._hello(deadline, longer * GREETING_S)) is None:
            self._socket.close()
            time.sleep(longer * AWAY_S)
            longer = min(2 * longer, LONGER)
            self._connect(deadline)
        return hello

    def _connect(self, deadline: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(SILENCE_S)
        self._lines = process.Lines(self._socket)
        while True:
            try:
                return self._socket.connect(str(self._guest.scratch / "channel"))
            except OSError:  # QEMU has not created it yet, or has ended
                self._check_booting(deadline)
                time.sleep(0.01)

    def _check_booting(self, deadline: float) -> None:
        """Check the boot (Machine.check_booting), and tell every REPORT_S seconds how far it has come."""
        self._guest.check_booting(deadline)
        waited_s = time.monotonic() - self._begun
        if waited_s > (self._reports + 1) * REPORT_S:
            self._reports += 1
            line = self._guest.console_lines()[-1:]
            how = f"the last line of its console: {line[0][:100]}" if line else "its console is still empty"
            self._say(f"the lab VM has been booting for {waited_s:.0f} s; {how}")

    def _hello(self, deadline: float, patience_s: float) -> dict[str, Any] | None:
        """Return the hello event, None if it does not arrive within `patience_s`."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            with suppress(TimeoutError):
                if not self._lines.read(0.1):
                    raise self._guest.boot_failure(self._guest.wait_for_end())
            self._check_booting(deadline)
            while (line := self._lines.take()) is not None:
                # Leftovers of an earlier conversation come before the hello.
                if line.startswith(b'{"event":"hello"'):
                    greeting: dict[str, Any] = msgspec.json.decode(line)
                    return greeting
        return None

    def send(self, line: bytes) -> None:
        with suppress(OSError):
            self._socket.sendall(line + b"\n")

    def lines(self) -> Iterator[bytes]:
        """Yield the answers as they arrive."""
        try:
            for line in self._lines.until_end(SILENCE_S):
                if line.startswith(b'{"event":"ended"'):
                    self._how = msgspec.json.decode(line)["text"]
                    return
                yield line
        except TimeoutError:
            last = self._guest.last_words()
            return self._suspect(f"was silent for {SILENCE_S:.0f} s: its lab VM hangs{last}")
        how = f"{self._guest.wait_for_end()}{self._guest.last_words()}"
        self._suspect(f"ended together with its lab VM: {how}")

    def _suspect(self, how: str) -> None:
        self._how = how
        with suppress(OSError):
            (self._guest.scratch / "suspect").touch()

    def end_reason(self) -> str:
        """Return how the process ended."""
        return self._how or "has not ended"

    def end(self) -> None:
        """Disconnect; the guest then kills the process."""
        self._socket.close()


class NotStarted(Failed):
    """QEMU or virtiofsd did not start; another attempt would fail too."""


@contextmanager
def conversation(
    where: str, request: dict[str, Any], say: Say, nic: VmNic | None = None
) -> Iterator[process.Conversing]:
    """Start a labkit process in the lab VM `where`: in a shared one, else in one booted for this conversation.

    Raises BadInput for a lab VM that cannot be booted, Unsupported if QEMU or a similar program is missing, Failed
    with the console's last words if it does not boot. Boots are tried twice, because emulated boots sometimes fail.
    """
    folder = request.get("folder")
    with ExitStack() as stack:
        guest = _find_lease(where, folder) if nic is None else None
        if guest is None:
            # A boot would disturb another measurement. A measuring caller already holds the lock.
            not_measuring = request.get("do") in NOT_MEASURING
            with local.measuring_lock(say) if not_measuring else nullcontext():
                guest, opened = booted(stack, where, Path(folder) if folder else None, say, nic)
        else:
            opened = VmConversation(guest, time.monotonic() + SILENCE_S)
        stack.callback(opened.end)
        opened.send(msgspec.json.encode(request))
        yield opened


@contextmanager
def leasing(folder: Path, say: Say) -> Iterator[Callable[[str], bool]]:
    """Yield a function that prepares the lab VM of a `where` for the processes that are started next.

    They may all write into `folder`. One boot serves all requests for the same `where`. It is booted again if an
    experiment left it suspect, and not shared if `where` says `fresh`. The function returns whether it booted a
    replacement.
    """
    with ExitStack() as stack:
        held: list[LabVm] = []

        def lease(where: str) -> bool:
            replaced = bool(held) and held[0].where == where and held[0].suspect()
            if held and (held[0].where != where or held[0].suspect()):
                held.clear()
                stack.close()
            os.environ.pop(local.SHARED_VM, None)
            if not where.startswith("vm:") or vm_spec.parse(where).fresh:
                return False
            if not held:
                with local.measuring_lock(say):  # a boot would disturb another measurement
                    guest, opened = booted(stack, where, folder, say, None)
                opened.end()
                held.append(guest)
            shared = {"where": where, "scratch": str(held[0].scratch), "folder": str(held[0].folder)}
            os.environ[local.SHARED_VM] = json.dumps(shared)
            return replaced

        try:
            yield lease
        finally:
            os.environ.pop(local.SHARED_VM, None)


def booted(
    stack: ExitStack, where: str, folder: Path | None, say: Say, nic: VmNic | None
) -> tuple[LabVm, VmConversation]:
    """Boot a lab VM and wait for its hello; both end with the stack."""
    return boot.boot_twice(stack, functools.partial(_boot, where, folder, say, nic), NotStarted, say)


@contextmanager
def _boot(
    where: str, folder: Path | None, say: Say, nic: VmNic | None, accelerated: bool
) -> Iterator[tuple[LabVm, VmConversation]]:
    parameters = vm_spec.parse(where)
    kernel = kernels.find(parameters.kernel)
    say(f"booting Linux {kernel.release} in a lab VM{'' if accelerated else ' (emulated)'}")
    with started(where, parameters, kernel, folder, nic, accelerated) as guest:
        if accelerated:
            guest.check_kvm()
        yield guest, VmConversation(guest, time.monotonic() + (KVM_S if accelerated else BOOT_S), say)


@contextmanager
def started(
    where: str,
    shape: Shape,
    kernel: kernels.BootableKernel,
    folder: Path | None,
    nic: VmNic | None,
    accelerated: bool,
    program: Sequence[str] = (sys.executable, "-P", "-m", "labkit.measure.agent.vm_init"),
) -> Iterator[LabVm]:
    """Start QEMU and virtiofsd through a holder process that dies with this one; `program` becomes PID 1 of the
    guest."""
    nic = nic or VmNic()
    with boot.boot_folder("labkit-vm-", None, kernel, accelerated) as boots:
        scratch = boots.path
        if folder is not None:
            try:
                folder = safe_files.make_folder(folder)  # the guest cannot follow links in its path
            except OSError as error:
                raise Failed(f"cannot create {folder}: {error.strerror}") from None
        shares = [command.Share("root", scratch / "root.bound", True)]
        shares += [command.Share("folder", scratch / "folder.bound", False)] if folder else []
        for share in shares:
            share.source.mkdir()
        programs = [command.virtiofsd(share, scratch / share.tag) for share in shares]
        content = packed(kernel, folder, _environment(shape), program)
        programs.append(boots.command(scratch, shape, content, shares=shares, more=nic.arguments))
        report = {
            "programs": programs,
            "sockets": [str(scratch / share.tag) for share in shares],
            "root": str(scratch / "root.bound"),
            "folder": [str(folder), str(scratch / "folder.bound")] if folder else None,
            "group": boots.confinement.group,
            "fds": nic.fds,
        }
        words = [*local.prefix(net=not nic.outside), *process.python("-m", vm_holder.__name__)]
        holder = process.Conversation(words, msgspec.json.encode(report), nic.fds)
        try:
            _wait_for_start(holder)
            yield LabVm(where, scratch, folder, holder)
        finally:
            holder.end()


def _wait_for_start(holder: process.Conversation) -> None:
    """Wait until QEMU runs. Raises NotStarted with the message of the program that ended."""
    event = msgspec.json.decode(next(holder.lines(), b'{"event":"ended","text":""}'))
    if event["event"] != "started":
        raise NotStarted(f"the lab VM did not start: {event['text'] or holder.end_reason()}")


def _environment(shape: Shape) -> dict[str, str]:
    """Return the environment of PID 1 in the guest, in which it finds the same programs and packages as here."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TZ")
    result = {name: os.environ[name] for name in kept if name in os.environ}
    place = Path(labkit.__file__).parents[1]
    result["PYTHONPATH"] = os.pathsep.join(filter(None, [str(place), result.get("PYTHONPATH", "")]))
    # An emulated CPU would compile labkit for 10 s at each boot.
    for package in ("labkit", *extensions.own_packages()):
        compileall.compile_dir(place / package, quiet=2)
    result["LABKIT_MODULES"] = " ".join(shape.modules)
    result["LABKIT_GIT_REVISION"] = machine.git_revision() or ""
    return result


def packed(
    kernel: kernels.BootableKernel, folder: Path | None, environment: Mapping[str, str], argv: Sequence[str]
) -> bytes:
    """Return the initramfs of a lab VM.

    Its script mounts the root (read-only, below an overlay in memory), `folder` (writable), and the kernel's own
    modules and configuration at their usual places, then executes `argv` with `environment`. Raises Unsupported
    without a static busybox.
    """
    modules = initramfs.modules(kernel, MODULES)
    entries = dict.fromkeys(("bin", "modules", "lower", "over", "new"), (0o040755, b""))
    entries |= {"bin/busybox": initramfs.busybox(), **modules}
    lines = initramfs.first_lines()
    commands = ("mount", "mkdir", "touch", "insmod", "switch_root")
    lines += [f'{name}() {{ /bin/busybox {name} "$@"; }}' for name in commands]
    lines += [f"insmod /modules/{Path(name).name}" for name in modules]
    lines += [
        "mount -t virtiofs -o ro root /lower",
        "mount -t tmpfs -o size=50% over /over",
        "mkdir /over/upper /over/work",
        "mount -t overlay -o lowerdir=/lower,upperdir=/over/upper,workdir=/over/work over /new",
    ]
    if folder is not None:
        inside = shlex.quote(f"/new{folder}")
        lines += [f"mkdir -p {inside}", f"mount -t virtiofs -o nodev,nosuid folder {inside}"]
    # the kernel's own files that are not at their usual place
    config = kernel.image.with_name(f"config-{kernel.release}")
    usual = {Path("/lib/modules", kernel.release): kernel.modules, Path("/boot", config.name): config}
    for place, there in usual.items():
        if there is not None and there.exists() and there != place:
            make = "touch" if there.is_file() else "mkdir -p"
            lines += [f"{make} /new{place}", f"mount -o bind {shlex.quote(f'/new{there}')} /new{place}"]
    lines += ["set +e", *initramfs.mounts("/new")]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines.append(f"exec /bin/busybox switch_root /new {shlex.join(argv)} </dev/console >/dev/console 2>&1")
    entries["init"] = (0o100755, ("\n".join(lines) + "\n").encode())
    return initramfs.archive(entries)


def _find_lease(where: str, folder: str | None) -> LabVm | None:
    """Return the lab VM that is shared with this process, if it is the requested one."""
    report = json.loads(os.environ.get(local.SHARED_VM) or "{}")
    if report.get("where") != where or not Path(report["scratch"], "channel").exists():
        return None
    guest = LabVm(where, Path(report["scratch"]), Path(report["folder"]))
    return guest if guest.reaches(folder) else None
