"""What takes rights away from QEMU and from what serves a guest's folders, whoever started them."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.common.errors import Failed

NOBODY = 65534
WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs")
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2  # linux/prctl.h, linux/seccomp.h
# linux/bpf_common.h and linux/seccomp.h: load a word of seccomp_data, compare it, answer
LOAD, IF_EQUAL, IF_ANY_BIT, ANSWER = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1  # EPERM
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
X86_64 = 0xC000003E
# System calls of x86-64 that set permissions, with the number of the argument that has them:
# open, creat, chmod, fchmod, mknod, openat, mknodat, fchmodat, fchmodat2
PERMISSIONS = {2: 2, 85: 1, 90: 1, 91: 1, 133: 1, 257: 3, 259: 2, 268: 2, 452: 2}


@dataclass(frozen=True)
class Confinement:
    """How QEMU is started: the words in front, and the group that its folder is for (None: it keeps its user)."""

    words: tuple[str, ...]
    group: int | None

    def open_folder(self, folder: Path) -> None:
        """QEMU may make files in the folder and use those that are told to it, and may not replace what is there."""
        if self.group is not None:
            os.chown(folder, -1, self.group)
            folder.chmod(0o1730)


def confinement(devices: Sequence[Path] = ()) -> Confinement:
    """Without capabilities; and as the user nobody where root starts it, unless only root can open the devices."""
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
    """Whether nobody's number means somebody in this user namespace (user_namespaces(7))."""
    lines = Path("/proc/self", name).read_text().splitlines()
    return any(int(first) <= NOBODY < int(first) + int(count) for first, _, count in map(str.split, lines))


def forbid_setuid_files() -> None:
    """From now on this process and all that it starts can make no file that runs with its owner's or its group's
    rights (seccomp(2)). Raises Failed where the kernel cannot."""
    program = b"".join(struct.pack("=HBBI", *step) for step in _steps())
    code = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(code))  # struct sock_fprog
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_
    ):
        words = os.strerror(ctypes.get_errno())
        raise Failed(f"a guest cannot be kept from making setuid files (seccomp: {words})")


def _steps() -> list[tuple[int, int, int, int]]:
    """The filter: operation, how many steps to skip if so, if not, and a number."""
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
