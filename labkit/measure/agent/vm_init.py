"""PID 1 of a lab VM.

It imports everything that an experiment needs once. Each request then only forks a process, which is PID 1 of its own
namespaces, as on every host; it is reached through a virtio-serial port instead of standard input.

A host that connects receives {"event": "hello"}, sends its request, and receives the answers, a beat every second, and
finally {"event": "over", "text": how the process ended}. When the host disconnects, the process is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import stat
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import IO, Any

import msgspec

import labkit
from labkit.common.errors import LabkitError
from labkit.measure import experiments
from labkit.measure.agent import main as agent_main
from labkit.measure.endpoints import exec_server
from labkit.measure.endpoints.exec_server import ByteStream, ClientDisconnected
from labkit.system import machine, netlink, process
from labkit.system.qemu import command

BEAT_S = 1.0
CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x20000000, 0x40000000  # linux/sched.h
MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x4000, 1 << 18, 2, 4, 8  # linux/mount.h
_libc = ctypes.CDLL(None, use_errno=True)


def _call(function: str, *arguments: Any) -> None:
    if getattr(_libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def write_event(port: ByteStream, event: dict[str, Any]) -> None:
    """Write an event. Raises ClientDisconnected."""
    port.write(msgspec.json.encode(event) + b"\n")


class Child:
    """The process that answers one request. `stdin` and `stdout` are pipes to its standard streams."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.stderr: IO[bytes] = tempfile.TemporaryFile()
        reads, self.stdin = os.pipe()
        self.stdout, writes = os.pipe()
        home = os.open("/proc/self/ns/pid", os.O_RDONLY)
        _call("unshare", CLONE_NEWPID)  # applies to children; this process stays in its namespace
        self.pid = os.fork()
        if self.pid == 0:
            for number, fd in enumerate((reads, writes, self.stderr.fileno())):
                os.dup2(fd, number)
            for fd in (reads, writes, self.stdin, self.stdout, home):
                os.close(fd)
            _become_agent()
        _call("setns", home, CLONE_NEWPID)
        for fd in (reads, writes, home):
            os.close(fd)
        os.write(self.stdin, msgspec.json.encode(report) + b"\n")

    def end(self) -> str:
        """Kill it with everything that it started, and return how it ended, in words."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.stdin)
        os.close(self.stdout)
        self.stderr.seek(0)
        last = self.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
        self.stderr.close()
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        if code == -signal.SIGKILL and _out_of_memory():
            how += ", because the lab VM was out of memory (memory_mib gives it more)"
        return f"{how}{': ' if last else ''}{''.join(last)}"


def _become_agent() -> None:
    """In the child: create namespaces and mount /proc, then run labkit.measure.agent.main."""
    code = 1
    try:
        _call("unshare", CLONE_NEWNET | CLONE_NEWNS)
        _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        _call("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
        Path("/proc/self/oom_score_adj").write_text("0")
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        sys.argv = ["labkit.measure.agent.main"]
        agent_main.main()
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.buffer.flush()
        os._exit(code)


def _out_of_memory() -> bool:
    """Return whether the kernel's log reports a process killed for lack of memory."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        stack.callback(os.close, log)
        while True:
            if b"Out of memory: Killed process" in os.read(log, 8192):
                return True
    return False


def _converse(port: ByteStream, report: dict[str, Any]) -> None:
    """Serve one request, from its first line to the end of its process."""
    line = b""
    while not line.endswith(b"\n"):
        line += _read_input(port)
    first, _, rest = line.partition(b"\n")
    child = Child(report | msgspec.json.decode(first))
    how = ""
    try:
        _relay(port, child, rest)
    finally:
        how = child.end()
    write_event(port, {"event": "over", "text": how})


def _read_input(port: ByteStream) -> bytes:
    """Return the next input from the host. Raises ClientDisconnected."""
    while True:
        select.select([port.fd], [], [], BEAT_S)
        if data := port.read():
            return data


def _relay(port: ByteStream, child: Child, rest: bytes) -> None:
    """Pass lines on in both directions until the child closes its output. Raises ClientDisconnected."""
    if rest:
        os.write(child.stdin, rest)
    beaten, between_lines = time.monotonic(), True
    while True:
        ready, _, _ = select.select([port.fd, child.stdout], [], [], BEAT_S)
        if port.fd in ready:
            data = _read_input(port)
            with contextlib.suppress(BrokenPipeError):
                os.write(child.stdin, data)
        if child.stdout in ready:
            data = os.read(child.stdout, 65536)
            if not data:
                return
            port.write(data)
            between_lines = data.endswith(b"\n")
        if between_lines and time.monotonic() - beaten > BEAT_S:
            beaten = time.monotonic()
            write_event(port, {"event": "beat"})


def _prepare_kernel() -> dict[str, Any]:
    """Load modules and start lo; return what every request receives, with `problem` if that failed."""
    problem = None
    with contextlib.suppress(OSError):  # udev does this elsewhere: opening the file loads the module tun
        Path("/dev/net").mkdir(exist_ok=True)
        os.mknod("/dev/net/tun", stat.S_IFCHR | 0o666, os.makedev(10, 200))
    socket = netlink.Netlink()
    try:
        socket.do(netlink.set_link(1))
        if names := os.environ.get("LABKIT_MODULES", "").split():
            process.output([machine.program("modprobe"), "-a", *names], timeout_s=60)
    except LabkitError as error:
        problem = str(error)
    socket.close()
    for path in Path("/sys/devices/system/cpu").glob(
        "cpu[0-9]*/online"
    ):  # it booted on one CPU (qemu/command.py)
        with contextlib.suppress(OSError):
            path.write_text("1")
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-1000")
        # above the experiment, which runs with priority over its load: beats must get through
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
    fd = os.open("/proc/self/ns/net", os.O_RDONLY)
    report = {"machine": machine.describe(), "details": machine.details(), "machine_netns": fd}
    return {"problem": problem, "report": report}


def main() -> None:
    """Serve requests until the lab VM is turned off."""
    result = _prepare_kernel()
    if not (ports := exec_server.ports(command.CHANNEL, 1)):
        sys.exit("labkit: the lab VM has no port to its host")
    [port] = ports
    for name in experiments.OWN:
        experiments.find(name)  # import it before any request
    gc.freeze()  # children share these pages
    while True:
        exec_server.reap()
        if not port.connected():
            time.sleep(0.02)
            continue
        with contextlib.suppress(ClientDisconnected):
            while port.read():  # discard input that was meant for an earlier process
                pass
            write_event(port, {"event": "hello", "labkit": labkit.__version__, "problem": result["problem"]})
            _converse(port, result["report"])
            while port.connected():  # let the host read the end first
                time.sleep(0.01)


if __name__ == "__main__":
    main()
