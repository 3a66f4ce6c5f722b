"""What holds a lab VM: PID 1 of namespaces of its own, in which the machine's files are read-only. It starts virtiofsd
and QEMU, says which of them ended, and when it goes, they go.

Told one JSON line: programs (argv lists; the last is QEMU), sockets (a file that each program but the last makes),
root (where the machine's files are bound read-only), folder (one that may be written, and where that is bound; or
null). Says {"event": "started"}, and at the end
{"event": "ended", "words": …}.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from labkit import process
from labkit.errors import Failed, LabkitError

# linux/mount.h, linux/fcntl.h; mount_setattr(2) is Linux 5.12's, and glibc 2.36 has no wrapper for it
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
SOCKET_S = 30.0
GRACE_S = 1.0


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


def bind_read_only(root: Path) -> None:
    """All of the machine's files once more at `root`, read-only with all that is mounted below; in this mount namespace
    alone. Raises Failed where the kernel cannot (Linux before 5.12)."""
    process.output(["mount", "--make-rprivate", "/"])
    process.output(["mount", "--rbind", "/", str(root)])
    asked = _Attributes(MOUNT_ATTR_RDONLY, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    flags = AT_RECURSIVE
    path = os.fsencode(root)
    if libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path, flags, ctypes.byref(asked), ctypes.sizeof(asked)) != 0:
        words = os.strerror(ctypes.get_errno())
        raise Failed(f"the machine's files cannot be shown read-only to a lab VM (mount_setattr: {words})")


def _say(event: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, msgspec.json.encode(event) + b"\n")


def _hold(told: dict[str, Any]) -> str:
    """Start all and wait for the first to end; returns its words."""
    bind_read_only(Path(told["root"]))
    if told["folder"]:  # under a name that means nothing to virtiofsd
        process.output(["mount", "--bind", *told["folder"]])
    with process.all_ended([]) as running:
        for argv, socket in zip(told["programs"], [*told["sockets"], None], strict=True):
            running.append(process.Running(argv, pass_fds=told["fds"] if socket is None else ()))
            deadline = time.monotonic() + SOCKET_S
            while socket is not None and not Path(socket).exists():
                if running[-1].poll() or time.monotonic() > deadline:
                    running[-1].kill()
                    return running[-1].ended().words()
                time.sleep(0.005)
        _say({"event": "started"})
        first = process.first(running)
        process.wait(running, time.monotonic() + GRACE_S)
        # virtiofsd ends when QEMU does: then QEMU's words are those that tell why.
        return (running[-1] if running[-1].poll() else first).ended().words()


def main() -> None:
    """Hold one lab VM."""
    try:
        words = _hold(msgspec.json.decode(sys.stdin.buffer.readline()))
    except LabkitError as error:
        words = str(error)
    _say({"event": "ended", "words": words})


if __name__ == "__main__":
    main()
