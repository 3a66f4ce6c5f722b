"""What holds a lab VM: PID 1 of namespaces of its own, in which the machine's files are read-only. It starts virtiofsd
and QEMU, says which of them ended, and when it goes, they go.

Told one JSON line: programs (argv lists; the last is QEMU), sockets (a file that each program but the last makes),
group (QEMU's, which may use these sockets, or null), root (where the machine's files are bound read-only), folder (one
that may be written, and where that is bound; or null). Says {"event": "started"}, and at the end
{"event": "ended", "words": …}.
"""

from __future__ import annotations

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
    """Start all and wait for the first to end; returns its words."""
    bind_read_only(Path(report["root"]))
    if report["folder"]:  # under a name that means nothing to virtiofsd
        source, bound = report["folder"]
        process.output(["mount", "--bind", source, bound])
        process.output(["mount", "-o", "remount,bind,nodev,nosuid", bound])
    confined.forbid_setuid_files()
    with process.all_ended([]) as running:
        for argv, socket in zip(report["programs"], [*report["sockets"], None], strict=True):
            running.append(process.Running(argv, pass_fds=report["fds"] if socket is None else ()))
            deadline = time.monotonic() + SOCKET_S
            while socket is not None and not Path(socket).exists():
                if running[-1].poll() or time.monotonic() > deadline:
                    running[-1].kill()
                    return running[-1].ended().words()
                time.sleep(0.005)
            if socket is not None and report["group"] is not None:  # for QEMU, which is another user
                os.chown(socket, -1, report["group"])
                os.chmod(socket, 0o660)
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
