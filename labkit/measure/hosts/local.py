"""The host `here`: a process that is PID 1 of its own namespaces on the running kernel, and the measuring lock."""

import errno
import math
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from labkit.common import existing_names, privileges, safe_files
from labkit.common.errors import Failed
from labkit.system import machine, process
from labkit.system.machine.locked_file import open_locked

SHARED_VM = "LABKIT_LAB_VM"  # environment variable: the lab VM that a sweep shares with its notebooks
LOCK = b"\0labkit-measuring"
RUN = Path("/run")
# a lock that was just released, or whose queue is full for a moment, is free or answers before
UNSEEN_S = 1.0


def privileged() -> bool:
    """Return whether this process can make namespaces without a user namespace (CAP_SYS_ADMIN)."""
    return privileges.is_effective(privileges.CAP_SYS_ADMIN)


def limits() -> str | None:
    """Return one sentence about what does not work without privilege, or None with it."""
    if privileged():
        return None
    return (
        "not root, so everything runs in a user namespace: no NIC of this machine can be a parent, and with dozens of"
        " pairs the slices are less exact, because the experiment cannot run ahead of its load"
    )


def prefix(*, net: bool = True) -> list[str]:
    """Return the unshare(1) command line that starts a process as PID 1 of its own namespaces. `net`: also a network.

    When the process ends, the kernel removes everything that it made. Without privilege this includes a user namespace.
    """
    user = [] if privileged() else ["--user", "--map-root-user"]
    own = ["--net"] if net else []
    return ["unshare", *user, "--fork", "--pid", "--kill-child", "--mount-proc", *own, "--mount", "--"]


def handed(request: dict[str, Any], stack: ExitStack) -> tuple[dict[str, Any], list[int]]:
    """Return what a process needs for the existing networks of its request (`handing.hand_over`)."""
    names = request.get("parameters", {}).get("topology", ())
    if not any(isinstance(one, str) and existing_names.is_network(one) for one in names):
        return {}, []
    from labkit.measure.existing import handing  # what only an existing network needs

    return handing.hand_over(request, stack)


@contextmanager
def conversation(request: dict[str, Any], machine_netns: int | None = None) -> Iterator[process.Conversation]:
    """Start a labkit process as PID 1 of its own namespaces, and send it the request.

    The request also has what the process cannot see from its namespaces: many sysctls of the machine (net.core.*), and
    a file descriptor of the machine's network namespace (None without privilege), through which it reaches NICs of the
    machine; `machine_netns` takes its place for one of two nodes on this machine. A process that traces gets a guard.
    One whose request names a generator's companion gets that: a program that outlives it (`Generator.companion`).
    """
    with ExitStack() as stack:
        report: dict[str, Any] = {}
        outliving: list[process.Companion] = []
        pass_fds: list[int] = []
        if privileged():
            if machine_netns is None:
                machine_netns = os.open("/proc/self/ns/net", os.O_RDONLY)
                stack.callback(os.close, machine_netns)
            pass_fds.append(machine_netns)
            report["machine_netns"] = machine_netns
        more, fds = handed(request, stack)
        report |= more
        pass_fds += fds
        if request.get("traces") or request.get("changes_machine"):
            from labkit.system.machine import tracing_guard  # what only such a request needs

            outliving.append(stack.enter_context(tracing_guard.start_guard()))
        if request.get("companion"):
            from labkit.measure.traffic import registry as generators

            outliving.append(
                stack.enter_context(generators.GENERATORS.find(request["companion"]).companion())
            )
            report["companion_fd"] = outliving[-1].fileno()
        pass_fds += [one.fileno() for one in outliving]
        argv = [*prefix(), *process.python("-m", "labkit.measure.agent.main")]
        opened = process.Conversation(argv, None, pass_fds)
        stack.callback(opened.end)
        for one in outliving:
            one.release()
        # While the process starts, collect the versions of programs.
        report |= {"machine": machine.describe(), "details": machine.details()}
        opened.send(msgspec.json.encode(report | request))
        yield opened


@contextmanager
def measuring_lock(
    say: Callable[[str], None],
    command: str | None = None,
    patience_s: float = math.inf,
    still_waits: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Hold the lock that allows one measurement at a time on this machine.

    If another process holds it, `say` gets a sentence with its name, and this function waits. Raises Failed after
    `patience_s` seconds. `still_waits` is called about twice a second meanwhile, and may raise. `command` identifies a
    command with two hosts: if both are the same machine, the second host shares the lock of the first.

    The lock is an abstract unix socket (unix(7)). It leaves no file, and the kernel frees it however its holder ends. A
    waiter's connection shows who holds it (SO_PEERCRED) and breaks when the lock is free. Any user can bind that name,
    so root waits for root alone: the lock of root's runs is a file that only root can open. Others wait for whoever
    holds it, and the sentence says whose process that is.
    """
    report: dict[str, None] = {}
    begun = time.monotonic()
    deadline = begun + patience_s
    with ExitStack() as stack:
        if command is not None:
            # The second host shares the lock: a socket named after the command exists beside the lock.
            mark = _bound(LOCK + b"-" + command.encode())
            if mark is None:
                yield
                return
            stack.enter_context(mark)
        while not _take(stack, say, report):
            if time.monotonic() >= deadline:
                raise Failed(
                    f"another measurement is using this machine ({next(reversed(report), 'holder unknown')}), and the"
                    f" other host waits for at most {patience_s:.0f} s: repeat the"
                    " command when that has ended"
                )
            if not report and time.monotonic() > begun + UNSEEN_S:  # it does not even accept connections
                _announce("a process that cannot be seen from here", say, report)
            if still_waits is not None:
                still_waits()
        yield


def _take(stack: ExitStack, say: Callable[[str], None], announced: dict[str, None]) -> bool:
    """Take the lock until the stack closes. If another process holds it, wait up to half a second, and return False."""
    own: int | None = None
    if privileged():
        path = RUN / f"labkit-measuring-{os.stat('/proc/self/ns/net').st_ino}"
        try:
            own = open_locked(path)
        except BlockingIOError:
            with suppress(OSError, ValueError):
                _announce(_command_line(int(path.read_text())), say, announced)
            time.sleep(0.1)
            return False
        except OSError:
            pass  # /run cannot be written, so the socket alone has to do
    lock = _bound(LOCK)
    if lock is not None:
        stack.enter_context(lock)
    elif own is None:
        _wait(say, announced)
        return False
    elif (held_by := _holder()) is not None:
        holder, user = held_by
        if user == os.geteuid():  # root with another /run, for example in a container
            os.close(own)
            _wait(say, announced)
            return False
        say(f"another user measures on this machine, too ({holder}): a run of root does not wait for it")
    if own is not None:
        os.ftruncate(own, 0)
        os.write(own, str(os.getpid()).encode())
        stack.callback(_remove, own)
    return True


def _remove(descriptor: int) -> None:
    """Remove the file of the lock, and free it."""
    with suppress(OSError):
        os.unlink(os.readlink(f"/proc/self/fd/{descriptor}"))
    os.close(descriptor)


def _announce(holder: str, say: Callable[[str], None], announced: dict[str, None]) -> None:
    if holder not in announced:
        announced[holder] = None
        say(f"another measurement is using this machine ({holder}); waiting for its end")


def _holder() -> tuple[str, int] | None:
    """Return the process that holds the socket, and its user; None if none does any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.settimeout(0.5)
            asking.connect(LOCK)
        except OSError:
            return None
        return _peer(asking)


def _peer(connected: socket.socket) -> tuple[str, int]:
    """Return the process at the other end of a unix socket, and its user."""
    size = struct.calcsize("3i")
    pid, user, _group = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return _command_line(pid), user


def _bound(name: bytes) -> socket.socket | None:
    """Bind a socket to this abstract name; return None if another socket has it."""
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


def _wait(say: Callable[[str], None], announced: dict[str, None]) -> None:
    """Say once who holds the lock, and wait until the holder releases it or half a second has passed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiter:
        waiter.setblocking(False)
        try:
            waiter.connect(LOCK)
        except OSError:
            time.sleep(0.1)  # the lock was just released, or many processes wait
            return
        holder, user = _peer(waiter)
        if user not in (0, os.geteuid()):
            holder += f", which only {safe_files.user_name(user)} or root can end"
        _announce(holder, say, announced)
        select.select([waiter], [], [], 0.5)


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().replace(bytes(1), b" ").decode(errors="replace").split()
            return f"process {pid}: {' '.join(words)[:120]}"
    except OSError:
        return "a process that cannot be seen from here"
