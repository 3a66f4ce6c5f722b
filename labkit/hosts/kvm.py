"""Whether KVM works here: /dev/kvm that can be opened is no proof (nested, it may hang), so it is tried once, with a
deadline, and the outcome is remembered for this machine and its kernel."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from labkit import machine
from labkit.errors import Failed
from labkit.hosts import initramfs
from labkit.hosts.channel import Guest

DEVICE = Path("/dev/kvm")
FIRST_WORDS_S = 15.0  # a kernel under KVM is there within 2


def remembered() -> Path:
    """The file whose presence says that KVM does not work with this kernel on this machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "labkit" / f"no-kvm-{os.uname().release}-{machine.provenance.machine_id()}"


def worth_trying() -> bool:
    """Whether the device can be opened and has not failed before."""
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return False
    with suppress(OSError):
        return not remembered().exists()
    return True


class Silent(Failed):
    """QEMU runs, and nothing comes of it."""


def check(guest: Guest) -> None:
    """Wait for the first words of a guest that has just been started with KVM. Raises Silent if they are late, Failed
    with QEMU's words if it has ended."""
    deadline = time.monotonic() + FIRST_WORDS_S
    words = initramfs.FIRST_WORDS.encode()
    while time.monotonic() < deadline:
        with suppress(OSError):
            if words in (guest.scratch / "console").read_bytes():
                return
        if guest.gone():
            raise Failed(f"the lab VM did not boot: {guest.ended()}")
        time.sleep(0.05)
    raise Silent(f"KVM does not work here: a kernel was not up after {FIRST_WORDS_S:g} s")


def remember() -> None:
    """From now on KVM is not tried on this machine with this kernel."""
    with suppress(OSError):
        remembered().parent.mkdir(parents=True, exist_ok=True)
        remembered().touch()
