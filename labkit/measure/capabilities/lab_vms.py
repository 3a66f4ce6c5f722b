"""Whether everything to boot a lab VM is installed, and what a guest can see. No lab VM is booted for this."""

from __future__ import annotations

import os
import shutil

from labkit.common import packages
from labkit.measure.capabilities.base import Capability
from labkit.system import machine
from labkit.system.qemu import kernels

SEES = "a guest sees the files that this user may read, read-only; it can write into the run's folder only"
_FETCH = "`labkit kernels get`"


def lab_vm() -> Capability:
    """Return whether the programs and a readable kernel exist."""
    needed = ("qemu-system-x86_64", "virtiofsd", "modprobe")
    missing = [name for name in needed if shutil.which(machine.program(name)) is None]
    if not (shutil.which("busybox-static") or shutil.which("busybox")):
        missing.append("busybox")
    there = [each.release for each in kernels.installed() if os.access(each.image, os.R_OK)]
    if there and not missing:
        booted = f"boots Linux {', '.join(there)}"
        return Capability("virtual machines", "lab VM", True, f"{booted}; {SEES}")
    lacks = [*missing, *([] if there else ["a kernel to boot"])]
    remedies = [packages.install(*missing)] if missing else []
    remedies += [] if there else [_FETCH]
    lost = "experiments and notebooks run on this kernel only (no where=vm:KERNEL)"
    return Capability(
        "virtual machines", "lab VM", False, f"missing: {', '.join(lacks)}", lost, " and ".join(remedies)
    )
