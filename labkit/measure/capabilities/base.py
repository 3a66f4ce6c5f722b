"""One thing that a kernel or machine can or cannot do, and how it was found out: by doing it."""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from labkit.system import machine

AS_ROOT = "run as root"


class Capability(msgspec.Struct, frozen=True):
    """What was tried. `available` is None where it was not; where it is missing, one sentence each: lost, remedy."""

    group: str
    name: str
    available: bool | None
    detail: str | None = None
    lost: str | None = None
    remedy: str | None = None


class NotTried(Exception):
    """A probe cannot say yes or no: why, and what to do to know."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


Probe = Callable[[], str | None]
Remedy = str | Callable[[int], str]


def attempt(group: str, name: str, probe: Probe, lost: str, remedy: Remedy) -> Capability:
    """Do it. What the probe returns is the detail; its OSError tells that it cannot be done, and picks the remedy."""
    try:
        return Capability(group, name, True, probe())
    except NotTried as reason:
        return Capability(group, name, None, str(reason), None, reason.remedy)
    except OSError as error:
        number = error.errno or 0
        words = error.strerror or str(error)
        detail = f"{error.filename}: {words}" if error.filename else words[:1].lower() + words[1:]
        return Capability(
            group, name, False, detail, lost, remedy if isinstance(remedy, str) else remedy(number)
        )


def refused(errno: int, words: str | None = None) -> OSError:
    """An error of the kernel's, to be raised by a probe; `words` in the place of the number's own."""
    return OSError(errno, words or os.strerror(errno))


def kernel_with(option: str, alias: str | None = None) -> str:
    """What to do about a kernel that lacks what CONFIG_`option` builds; `alias` is one that its module has."""
    module = unloaded_module(alias) if alias else None
    if module:
        return f"as root: modprobe {module}"
    state = _config().get(option)
    if state == "m":
        return f"install the modules of this kernel: it was built with CONFIG_{option}=m, and none is found"
    if state == "y":
        other = f"boot another kernel, such as Debian's {debian_kernel()}"
        return f"{other}: this one has CONFIG_{option} and refuses all the same"
    return f"boot a kernel with CONFIG_{option}; Debian's {debian_kernel()} has it"


def debian_kernel() -> str:
    """Debian's package of a kernel with everything."""
    return (
        f"linux-image-{ {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }"
    )


def unloaded_module(
    alias: str, folder: Path | None = None, loaded: Path = Path("/proc/modules")
) -> str | None:
    """The module of an alias, when it is installed for this kernel and not loaded."""
    folder = folder or Path("/lib/modules", os.uname().release)
    try:
        lines = (folder / "modules.alias").read_text().splitlines()
        names = {line.split()[0] for line in loaded.read_text().splitlines()}
    except OSError:
        return None
    result = [line.split()[2] for line in lines if line.startswith(f"alias {alias} ")]
    return result[0] if result and names.isdisjoint(result) else None


@functools.cache
def _config() -> dict[str, str]:
    return dict(re.findall(r"^CONFIG_(\w+)=(.*)$", machine.kernel_config() or "", re.MULTILINE))
