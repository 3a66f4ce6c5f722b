"""The holder of a lab VM: PID 1 of namespaces in which the machine's files are read-only.

It starts virtiofsd and QEMU, reports which of them ended, and kills them when it ends. It reads one JSON line:
programs (argv lists; the last is QEMU), sockets (the file that each other program creates), group (QEMU's group, which
may use these sockets, or null), root (mount point for the machine's files, read-only), folder (a writable folder and
its mount point, or null). It writes {"event": "started"} and finally {"event": "ended", "text": how}.
"""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from labkit.common.errors import LabkitError
from labkit.system import process
from labkit.system.qemu import confined
from labkit.system.temporary_files import bind_read_only

SOCKET_S = 30.0
GRACE_S = 1.0


def _say(event: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, msgspec.json.encode(event) + b"\n")


def _hold(report: dict[str, Any]) -> str:
    """Start all programs and wait until the first ends; return how it ended."""
    bind_read_only(Path(report["root"]))
    if report["folder"]:  # mounted under a neutral name for virtiofsd
        source, bound = report["folder"]
        process.output(["mount", "--bind", source, bound])
        process.output(["mount", "-o", "remount,bind,nodev,nosuid", bound])
    confined.forbid_setuid_files()
    with process.all_ended([]) as running:
        for argv, socket in zip(report["programs"], [*report["sockets"], None], strict=True):
            running.append(process.Running(argv, pass_fds=report["fds"] if socket is None else ()))
            if socket is None:
                continue
            if not running[-1].ready(Path(socket).exists, time.monotonic() + SOCKET_S, 0.005):
                running[-1].kill()
                return running[-1].ended().message()
            if report["group"] is not None:  # QEMU runs as another user
                os.chown(socket, -1, report["group"])
                os.chmod(socket, 0o660)
        _say({"event": "started"})
        first = process.wait_for_any(running)
        process.wait(running, time.monotonic() + GRACE_S)
        # virtiofsd ends when QEMU ends, so QEMU's message explains why.
        return (running[-1] if running[-1].poll() else first).ended().message()


def main() -> None:
    """Hold one lab VM."""
    try:
        how = _hold(msgspec.json.decode(sys.stdin.buffer.readline()))
    except LabkitError as error:
        how = str(error)
    _say({"event": "ended", "text": how})


if __name__ == "__main__":
    main()
