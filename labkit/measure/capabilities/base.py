"""A capability of a kernel or machine, found out by trying it."""

import errno
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from labkit.system import machine
from labkit.system.qemu.kernels import ARCHITECTURE

AS_ROOT = "run as root"
LOAD = "as root: modprobe "  # the beginning of a remedy
UNKNOWN = "this kernel does not support it"
DEBIAN_KERNEL = f"linux-image-{ARCHITECTURE}"  # the package of the full kernel


class Capability(msgspec.Struct, frozen=True):
    """The result of trying a capability.

    `available` is None if it was not tried. If it is missing, `lost` and `remedy` are one sentence each.
    """

    group: str
    name: str
    available: bool | None
    detail: str | None = None
    lost: str | None = None
    remedy: str | None = None


class NotTried(Exception):
    """Raised when a probe cannot decide. It has the reason, and how to find out."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


Probe = Callable[[], str | None]
Remedy = str | Callable[[int], str]  # for an error number
DENIED = (errno.EACCES, errno.EPERM)


def attempt(group: str, name: str, probe: Probe, lost: str, remedy: Remedy) -> Capability:
    """Run a probe. Its return value is the detail; an OSError means that the capability is missing, and selects the
    remedy."""
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


def refused(number: int, text: str | None = None) -> OSError:
    """Return an error of the kernel for a probe to raise; `text` replaces the text of its number."""
    return OSError(number, text or os.strerror(number))


def kernel_with(option: str, alias: str | None = None) -> str:
    """Return the remedy for a kernel without CONFIG_`option`; `alias` is a module alias of the feature."""
    module = unloaded_module(alias) if alias else None
    if module:
        return f"{LOAD}{module}"
    state = _config().get(option)
    if state == "m":
        return f"install the modules of this kernel: it was built with CONFIG_{option}=m, but the module is missing"
    if state == "y":
        other = f"boot another kernel, such as Debian's {DEBIAN_KERNEL}"
        return f"{other}: this one has CONFIG_{option} but refuses"
    return f"boot a kernel with CONFIG_{option}; Debian's {DEBIAN_KERNEL} has it"


def remedy_for(option: str, alias: str | None = None, as_root: str = AS_ROOT) -> Callable[[int], str]:
    """Return the function that chooses between more rights (`as_root`) and `kernel_with`, by the error's number."""
    return lambda number: as_root if number in DENIED else kernel_with(option, alias)


def unloaded_module(
    alias: str, folder: Path | None = None, loaded: Path = Path("/proc/modules")
) -> str | None:
    """Return the module of an alias if it is installed for this kernel but not loaded, else None."""
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
