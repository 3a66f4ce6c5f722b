"""Boot QEMU machines: whether with KVM, two attempts, the files from which one boots, its console, and the wait until
it answers.

Lab VMs (`measure.hosts.vm`) and guests (`measure.endpoints.guest.qemu_guest`) both boot this way. An accessible
/dev/kvm does not prove that KVM works, because nested KVM may hang. So KVM is tried once with a deadline, and a failure
is remembered for this machine and kernel.
"""

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from labkit.common import safe_files
from labkit.common.errors import Failed
from labkit.system import machine
from labkit.system.qemu import command, confined
from labkit.system.qemu.confined import Confinement
from labkit.system.qemu.initramfs import FIRST_WORDS
from labkit.system.qemu.kernels import BootableKernel
from labkit.system.qemu.vm_spec import Shape
from labkit.system.temporary_files import short_folder

KVM = Path("/dev/kvm")
USER_SPACE_S = 15.0  # a kernel under KVM is there within 2

# The lines that explain best why a kernel stopped; the first match counts.
_TELLING = (
    "Kernel panic - not syncing",
    "Out of memory",
    "BUG:",
    "Oops",
    "No working init",
    "Attempted to kill",
)
_NOISE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1bc|^\[ *\d+\.\d+\] ?(\[ *T\d+\] ?)?")
# What linux/arch/x86/boot/compressed/error.c prints below its message, before it halts the CPU.
UNPACKING_STOPPED = "-- System halted"
TAIL_BYTES = 65536

Booted = TypeVar("Booted")


class BootTimeout(Failed):
    """A machine did not answer before its deadline."""


def kvm_failure_file() -> Path:
    """Return the file whose existence means that KVM does not work with this kernel on this machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "labkit" / f"no-kvm-{os.uname().release}-{machine.provenance.machine_id()}"


def kvm_worth_trying() -> bool:
    """Return whether /dev/kvm can be opened and KVM has not failed before."""
    if not os.access(KVM, os.R_OK | os.W_OK):
        return False
    with suppress(OSError):
        return not kvm_failure_file().exists()
    return True


def remember_kvm_failure(why: str) -> None:
    """Remember that KVM does not work on this machine with this kernel; the doctor shows `why`."""
    with suppress(OSError), safe_files.replacing(kvm_failure_file()) as file:
        file.write(f"{' '.join(why.split())[:300]}\n".encode())


def kvm_failure() -> str | None:
    """Return why KVM is not tried, None if it has not failed."""
    try:
        return kvm_failure_file().read_text(errors="replace").strip() or "a test kernel hung"
    except OSError:
        return None


def boot_twice(
    stack: ExitStack,
    boot: Callable[[bool], AbstractContextManager[Booted]],
    final: type[Failed],
    say: Callable[[str], None] = lambda _text: None,
) -> Booted:
    """Return what `boot(accelerated)` yields; after a failure there is a second attempt, without KVM. What was booted
    ends with the stack.

    KVM is used where it may work. If it fails but emulation works, that is remembered. Emulated boots sometimes fail,
    so they are tried twice. A failure of the kind `final` is not tried again. `say` gets a sentence before the second
    attempt. Raises Failed as the last attempt does.
    """
    accelerated = kvm_worth_trying()
    try:
        return stack.enter_context(boot(accelerated))
    except final:
        raise
    except Failed as error:
        why = str(error)
    say(f"{why}; trying {'without KVM' if accelerated else 'once more'}")
    result = stack.enter_context(boot(False))
    if accelerated:
        remember_kvm_failure(why)
    return result


@dataclass(frozen=True)
class BootFolder:
    """A folder from which QEMU boots machines. It has a copy of the kernel, because the store may be root's alone."""

    path: Path
    accelerated: bool
    confinement: Confinement

    def command(
        self,
        scratch: Path,
        shape: Shape,
        initramfs: bytes,
        *,
        shares: Sequence[command.Share] = (),
        more: Sequence[str] = (),
        ports: Mapping[str, str] = command.PORTS,
    ) -> list[str]:
        """Write a machine's initramfs into `scratch`, and return its QEMU command (`command.argv`), confined."""
        self.confinement.open_folder(scratch)
        (scratch / "initramfs").write_bytes(initramfs)
        image = self.path / "kernel"
        words = command.argv(shape, image, scratch, shares, kvm=self.accelerated, more=more, ports=ports)
        return [*self.confinement.prefix, *words]


@contextmanager
def boot_folder(
    prefix: str, top: Path | None, kernel: BootableKernel, accelerated: bool, devices: Sequence[Path] = ()
) -> Iterator[BootFolder]:
    """Create a folder from which QEMU boots this kernel, in `top` or the usual place, until the block ends.

    `devices` are those that QEMU opens in addition to KVM's.
    """
    confinement = confined.confinement([*[KVM] * accelerated, *devices])
    if top is None and confinement.group is not None:
        top = Path("/tmp")  # other users cannot enter root's runtime folder
    with short_folder(prefix, top) as path:
        confinement.open_folder(path)
        (path / "kernel").write_bytes(kernel.image.read_bytes())
        yield BootFolder(path, accelerated, confinement)


class Machine:
    """A QEMU machine: its sockets, console and initramfs are files in `scratch`; `label` names it in messages."""

    def __init__(self, label: str, scratch: Path) -> None:
        self.label, self.scratch = label, scratch

    def ended(self) -> str | None:
        """Return how QEMU ended; None while it runs, as far as this process can know."""
        raise NotImplementedError

    @property
    def console(self) -> Path:
        """The file with the output of its console."""
        return self.scratch / "console"

    def console_lines(self) -> list[str]:
        """Return the last lines of its console without timestamps and colours; empty if there is no console."""
        try:
            with self.console.open("rb") as file:
                file.seek(max(0, self.console.stat().st_size - TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        cleaned = (_NOISE.sub("", line.strip()).strip() for line in text.splitlines())
        return [line for line in cleaned if line]

    def stop_reason(self) -> str | None:
        """Return the message with which the kernel, or the code that unpacks it, has stopped for good; else None."""
        before = ""
        for line in self.console_lines():
            if "Kernel panic - not syncing" in line:
                return line
            if line == UNPACKING_STOPPED:
                return f"its image cannot be unpacked: {before}"
            before = line
        return None

    def last_words(self) -> str:
        """Return `; the console's last line: …`, or an empty string if the console is empty."""
        result = self.console_lines()
        telling = next((line for words in _TELLING for line in result if words in line), None)
        line = telling or (result[-1] if result else "")
        before = result[: result.index(line)] if telling else []
        if "Attempted to kill init" in line:
            reason = before[-1:]  # the last words of PID 1
        else:
            reason = [one for one in before if one.startswith("RIP: ")][:1]  # where it faulted
        line = "; ".join([*reason, line])
        return f"; the console's last line: {line[:200]}" if line else ""

    def boot_failure(self, how: str) -> Failed:
        """Return the error of a boot that ended so, with the console's last words."""
        return Failed(f"{self.label} did not boot: {how}{self.last_words()}")

    def check_booting(self, deadline: float) -> None:
        """Raise Failed if QEMU has ended or the kernel has stopped, BootTimeout if the deadline has passed."""
        # Some kernels hang after a panic instead of rebooting.
        if how := self.ended() or self.stop_reason():
            raise self.boot_failure(how)
        if time.monotonic() > deadline:
            raise BootTimeout(f"{self.label} did not boot in time{self.last_words()}")

    def in_user_space(self) -> bool:
        """Return whether its kernel has started the init script."""
        return any(FIRST_WORDS in line for line in self.console_lines())

    def check_kvm(self) -> None:
        """Wait until a machine that was just started with KVM, which may hang, is in user space.

        Raises Failed if it is late or QEMU has ended.
        """
        deadline = time.monotonic() + USER_SPACE_S
        while not self.in_user_space():
            self.check_booting(math.inf)
            if time.monotonic() > deadline:
                raise Failed(f"KVM does not work here: a kernel did not start within {USER_SPACE_S:g} s")
            time.sleep(0.05)
