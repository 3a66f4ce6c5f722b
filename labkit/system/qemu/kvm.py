"""Check whether KVM works. An accessible /dev/kvm does not prove it, because nested KVM may hang.

KVM is tried once with a deadline. A failure is remembered for this machine and kernel.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from labkit.common import safe_files
from labkit.system import machine

DEVICE = Path("/dev/kvm")


def remembered() -> Path:
    """Return the file whose existence means that KVM does not work with this kernel on this machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "labkit" / f"no-kvm-{os.uname().release}-{machine.provenance.machine_id()}"


def worth_trying() -> bool:
    """Return whether /dev/kvm can be opened and KVM has not failed before."""
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return False
    with suppress(OSError):
        return not remembered().exists()
    return True


def remember(why: str) -> None:
    """Remember that KVM does not work on this machine with this kernel; the doctor shows `why`."""
    with suppress(OSError), safe_files.replacing(remembered()) as file:
        file.write(f"{' '.join(why.split())[:300]}\n".encode())


def reason() -> str | None:
    """Return why KVM is not tried, None if it has not failed."""
    try:
        return remembered().read_text(errors="replace").strip() or "a test kernel hung"
    except OSError:
        return None
