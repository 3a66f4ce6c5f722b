"""Whether KVM works here: /dev/kvm that can be opened is no proof (nested, it may hang), so it is tried once, with a
deadline, and the outcome is remembered for this machine and its kernel."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from labkit.common.errors import Failed
from labkit.system import machine

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


def check(console: Path, first_words: str, ended: Callable[[], str | None]) -> None:
    """Wait for the first words on the console of what has just been started with KVM. Raises Silent if they are late,
    Failed with what `ended` tells if it tells that QEMU has ended."""
    deadline = time.monotonic() + FIRST_WORDS_S
    while time.monotonic() < deadline:
        with suppress(OSError):
            if first_words.encode() in console.read_bytes():
                return
        if words := ended():
            raise Failed(words)
        time.sleep(0.05)
    raise Silent(f"KVM does not work here: a kernel was not up after {FIRST_WORDS_S:g} s")


def remember(why: str) -> None:
    """From now on KVM is not tried on this machine with this kernel; `why` is for the doctor."""
    with suppress(OSError):
        remembered().parent.mkdir(parents=True, exist_ok=True)
        remembered().write_text(" ".join(why.split())[:300] + "\n")


def reason() -> str | None:
    """Why KVM is not tried; None where it has not failed."""
    try:
        return remembered().read_text(errors="replace").strip() or "a kernel was tried and hung in it"
    except OSError:
        return None
