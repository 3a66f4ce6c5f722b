"""Remove privileges from QEMU and from the daemons that serve a guest's folders."""

import ctypes
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.common.errors import Failed
from labkit.system import libc

NOBODY = 65534
WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs")
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2  # linux/prctl.h, linux/seccomp.h
# linux/bpf_common.h and linux/seccomp.h: load a word of seccomp_data, compare it, return an action
LOAD, IF_EQUAL, IF_ANY_BIT, ANSWER = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1  # EPERM
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
X86_64 = 0xC000003E
# System calls of x86-64 that set permissions, with the index of their mode argument: open, creat, chmod, fchmod,
# mknod, openat, mknodat, fchmodat, fchmodat2
PERMISSIONS = {2: 2, 85: 1, 90: 1, 91: 1, 133: 1, 257: 3, 259: 2, 268: 2, 452: 2}


@dataclass(frozen=True)
class Confinement:
    """How QEMU is confined: the command prefix, and the group that may use its folder (None: QEMU keeps its user)."""

    prefix: tuple[str, ...]
    group: int | None

    def open_folder(self, folder: Path) -> None:
        """Allow QEMU to create files in the folder and to use files named to it, but not to replace existing files."""
        if self.group is not None:
            os.chown(folder, -1, self.group)
            folder.chmod(0o1730)


def confinement(devices: Sequence[Path] = ()) -> Confinement:
    """Return a confinement without capabilities; if root starts QEMU, also as the user nobody.

    QEMU keeps its user if only root can open one of the devices.
    """
    groups = set()
    changes = os.geteuid() == 0 and _is_mapped("uid_map") and _is_mapped("gid_map")
    for device in devices:
        state = device.stat()
        if state.st_mode & 0o006 == 0o006:
            continue
        changes = changes and state.st_mode & 0o060 == 0o060
        groups.add(str(state.st_gid))
    if not changes:
        return Confinement((*WITHOUT_CAPABILITIES, "--"), None)
    more = ("--groups", ",".join(sorted(groups))) if groups else ("--clear-groups",)
    user = ("--reuid", str(NOBODY), "--regid", str(NOBODY), *more)
    return Confinement((*WITHOUT_CAPABILITIES, *user, "--"), NOBODY)


def _is_mapped(name: str) -> bool:
    """Return whether the id of nobody is mapped in this user namespace (user_namespaces(7))."""
    lines = Path("/proc/self", name).read_text().splitlines()
    return any(int(first) <= NOBODY < int(first) + int(count) for first, _, count in map(str.split, lines))


def forbid_setuid_files() -> None:
    """Forbid this process and its children to create setuid or setgid files (seccomp(2)).

    Raises Failed if the kernel does not support it.
    """
    program = b"".join(struct.pack("=HBBI", *step) for step in _steps())
    code = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(code))  # struct sock_fprog
    try:
        libc.call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_)
    except OSError as error:
        raise Failed(f"labkit cannot keep a guest from creating setuid files ({error.strerror})") from None


def _steps() -> list[tuple[int, int, int, int]]:
    """Return the filter: (operation, steps to skip if true, steps to skip if false, number)."""
    bits = stat.S_ISUID | stat.S_ISGID
    steps = [(LOAD, 0, 0, ARCHITECTURE_AT), (IF_EQUAL, 1, 0, X86_64), (ANSWER, 0, 0, REFUSE)]
    for number, argument in PERMISSIONS.items():
        steps += [
            (LOAD, 0, 0, NUMBER_AT),
            (IF_EQUAL, 0, 4, number),
            (LOAD, 0, 0, ARGUMENTS_AT + 8 * argument),
            (IF_ANY_BIT, 0, 1, bits),
            (ANSWER, 0, 0, REFUSE),
            (ANSWER, 0, 0, ALLOW),
        ]
    return [*steps, (ANSWER, 0, 0, ALLOW)]
