"""The running kernel: the prefix that makes a process PID 1 of its own namespaces, and the machine's
measuring lock."""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from labkit.common.errors import Failed
from labkit.system import machine, process
from labkit.system.machine import tracing_guard

CAP_SYS_ADMIN = 21
LOCK = b"\0labkit-measuring"


def privileged() -> bool:
    """Whether namespaces can be made without a user namespace (CAP_SYS_ADMIN)."""
    with open("/proc/self/status") as file:
        effective = next(line for line in file if line.startswith("CapEff"))
    return bool(int(effective.split()[1], 16) >> CAP_SYS_ADMIN & 1)


def limits() -> str | None:
    """What cannot work without privilege, in one sentence; None with it."""
    if privileged():
        return None
    return (
        "not root, so everything lives in a user namespace: no NIC of this machine can be a parent, and with dozens of"
        " pairs the slices are less exact, because the experiment cannot run ahead of its load"
    )


def prefix() -> list[str]:
    """unshare(1) with everything that makes the kernel collect what the process leaves; a user namespace when
    not privileged."""
    user = [] if privileged() else ["--user", "--map-root-user"]
    return ["unshare", *user, "--fork", "--pid", "--kill-child", "--mount-proc", "--net", "--mount", "--"]


@contextmanager
def conversation(request: dict[str, Any]) -> Iterator[process.Conversation]:
    """A labkit process, PID 1 of its own namespaces, that was told the request and what it cannot see from in there.

    Many sysctls of the machine (net.core.*) cannot be read from a network namespace of its own; a NIC of the machine
    is reached by a descriptor of the machine's network namespace (None without privilege). One that traces gets a
    guard.
    """
    with ExitStack() as stack:
        report: dict[str, Any] = {}
        watcher: process.Outliving | None = None
        pass_fds: list[int] = []
        if privileged():
            pass_fds.append(os.open("/proc/self/ns/net", os.O_RDONLY))
            stack.callback(os.close, pass_fds[0])
            report["machine_netns"] = pass_fds[0]
        if request.get("traces") or request.get("changes_machine"):
            watcher = stack.enter_context(tracing_guard.start_guard())
            pass_fds.append(watcher.fileno())
        argv = [*prefix(), *process.python("-m", "labkit.measure.agent.main")]
        talk = process.Conversation(argv, None, pass_fds)
        stack.callback(talk.end)
        if watcher:
            watcher.release()
        # While the process starts: programs are asked for their versions.
        report |= {"machine": machine.describe(), "details": machine.details()}
        talk.tell(msgspec.json.encode(report | request).decode())
        yield talk


@contextmanager
def measuring_lock(
    say: Callable[[str], None], command: str | None = None, patience_s: float = math.inf
) -> Iterator[None]:
    """One measurement at a time on this machine; a second one waits, after it has said for whom. Raises Failed when it
    has waited for `patience_s`.

    `command` tells a command with two hosts from all others: where both are one machine, the second has the lock of the
    first. The lock is an abstract unix socket (unix(7)): it leaves no file, the kernel frees it with its holder
    however that ends, and a waiter's connection tells who holds it (SO_PEERCRED) and breaks when it is free.
    """
    report: dict[str, None] = {}
    deadline = time.monotonic() + patience_s
    with ExitStack() as stack:
        if command is not None:
            # A name of its own beside the lock, seen from where the lock is seen, under whatever name of the machine.
            mark = _bound(LOCK + b"-" + command.encode())
            if mark is None:
                yield
                return
            stack.enter_context(mark)
        while (lock := _bound(LOCK)) is None:
            if time.monotonic() >= deadline:
                raise Failed(
                    f"another measurement has this machine ({next(reversed(report), 'it has just changed')}), and the"
                    f" other of the two hosts is not kept waiting for more than {patience_s:.0f} s: give the same"
                    " command again when that has ended"
                )
            _wait(say, report)
        stack.enter_context(lock)
        yield


def _bound(name: bytes) -> socket.socket | None:
    """A socket that has this name; None when another one has it."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(name)
        lock.listen(64)
    except OSError as error:
        lock.close()
        if error.errno != errno.EADDRINUSE:
            raise Failed(f"the measuring lock cannot be taken: {error.strerror}") from None
        return None
    return lock


def _wait(say: Callable[[str], None], report: dict[str, None]) -> None:
    """Say who holds the lock, once, and wait until that one lets go or half a second has passed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiter:
        waiter.setblocking(False)
        try:
            waiter.connect(LOCK)
        except OSError:
            time.sleep(0.1)  # it has just been let go, or a crowd waits
            return
        pid = struct.unpack(
            "3i", waiter.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )[0]
        holder = _words(pid)
        if holder not in report:
            report[holder] = None
            say(f"another measurement has this machine ({holder}); waiting for its end")
        select.select([waiter], [], [], 0.5)


def _words(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().replace(bytes(1), b" ").decode(errors="replace").split()
            return f"process {pid}: {' '.join(words)[:120]}"
    except OSError:
        return "a process that cannot be seen from here"
