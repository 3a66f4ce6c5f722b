"""Boot QEMU machines: two attempts, the files from which a machine boots, and the wait until it answers.

Lab VMs (`measure.hosts.vm`) and guests (`measure.endpoints.guest.qemu_guest`) both boot this way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from labkit.common.errors import Failed
from labkit.system.qemu import command, confined, console, kvm
from labkit.system.qemu.confined import Confinement
from labkit.system.qemu.init_script import FIRST_WORDS
from labkit.system.qemu.kernels import Kernel
from labkit.system.qemu.vm_spec import Shape
from labkit.system.temporary_files import short_folder

USER_SPACE_S = 15.0  # a kernel under KVM is there within 2

Booted = TypeVar("Booted")


class BootTimeout(Failed):
    """A machine did not answer before its deadline."""


def boot_twice(
    attempt: Callable[[bool], Booted], final: type[Failed], say: Callable[[str], None] = lambda _text: None
) -> Booted:
    """Return what `attempt(accelerated)` returns; after a failure there is a second attempt, without KVM.

    KVM is used where it may work. If it fails but emulation works, that is remembered. Emulated boots sometimes fail,
    so they are tried twice. A failure of the kind `final` is not tried again. `say` gets a sentence before the second
    attempt. Raises Failed as the last attempt does.
    """
    accelerated = kvm.worth_trying()
    try:
        return attempt(accelerated)
    except final:
        raise
    except Failed as error:
        why = str(error)
    say(f"{why}; trying {'without KVM' if accelerated else 'once more'}")
    result = attempt(False)
    if accelerated:
        kvm.remember(why)
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
    prefix: str, top: Path | None, kernel: Kernel, accelerated: bool, devices: Sequence[Path] = ()
) -> Iterator[BootFolder]:
    """Create a folder from which QEMU boots this kernel, in `top` or the usual place, until the block ends.

    `devices` are those that QEMU opens in addition to KVM's.
    """
    confinement = confined.confinement([*[kvm.DEVICE] * accelerated, *devices])
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

    def last_words(self) -> str:
        """Return `; the console's last line: …`, or an empty string if the console is empty."""
        return console.last_words(self.console)

    def boot_failure(self, how: str) -> Failed:
        """Return the error of a boot that ended so, with the console's last words."""
        return Failed(f"{self.label} did not boot: {how}{self.last_words()}")

    def check_booting(self, deadline: float) -> None:
        """Raise Failed if QEMU has ended or the kernel has stopped, BootTimeout if the deadline has passed."""
        # Some kernels hang after a panic instead of rebooting.
        if how := self.ended() or console.stop_reason(self.console):
            raise self.boot_failure(how)
        if time.monotonic() > deadline:
            raise BootTimeout(f"{self.label} did not boot in time{self.last_words()}")

    def in_user_space(self) -> bool:
        """Return whether its kernel has started the init script."""
        return any(FIRST_WORDS in line for line in console.lines(self.console))

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
