"""PID 1 of a lab VM.

It imports everything that an experiment needs once. Each request then only forks a process, which is PID 1 of its own
namespaces, as on every host; it is reached through a virtio-serial port instead of standard input.

A host that connects receives {"event": "hello"}, sends its request, and receives the answers, a beat (an empty line)
every second, and finally {"event": "ended", "text": how the process ended}. When the host disconnects, the process is
killed.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

import labkit
from labkit.common.errors import Failed, LabkitError
from labkit.common.safe_files import closed
from labkit.measure import experiments
from labkit.measure.agent import main as agent_main
from labkit.measure.endpoints import exec_server
from labkit.measure.endpoints.exec_server import ByteStream, ClientDisconnected
from labkit.measure.experiments.change_kinds.registry import KINDS
from labkit.measure.observers.registry import TABLE as OBSERVERS
from labkit.measure.traffic.registry import GENERATORS
from labkit.system import libc, machine, netlink, process
from labkit.system.qemu import command

BEAT_S = 1.0
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8  # linux/mount.h


def write_event(port: ByteStream, event: dict[str, Any]) -> None:
    """Write an event. Raises ClientDisconnected."""
    port.write(msgspec.json.encode(event) + b"\n")


class Child(process.Forked):
    """The process that answers one request; its standard input and output are its end of the connection."""

    def __init__(self, report: dict[str, Any]) -> None:
        home = os.open("/proc/self/ns/pid", os.O_RDONLY)
        libc.call("unshare", libc.CLONE_NEWPID)  # applies to children; this process stays in its namespace
        self._words = tempfile.TemporaryFile()
        super().__init__(_become_agent, [report["machine_netns"]], self._words)
        libc.call("setns", home, libc.CLONE_NEWPID)
        os.close(home)

    def end(self) -> str:
        """Kill it with everything that it started, and return how it ended, in words."""
        self.kill()
        how = self.poll()
        assert how is not None
        self._words.close()
        if how.startswith(process.how_ended(-signal.SIGKILL)) and _out_of_memory():
            how += ", because the lab VM was out of memory (memory_mib gives it more)"
        return how


def _become_agent(connection: socket.socket) -> None:
    """In the child: create namespaces and mount /proc, then run labkit.measure.agent.main."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (0, 1):
        os.dup2(connection.fileno(), number)
    connection.close()
    libc.call("unshare", libc.CLONE_NEWNET | libc.CLONE_NEWNS)
    libc.call("mount", b"none", b"/", None, libc.MS_REC | libc.MS_PRIVATE, None)
    libc.call("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
    Path("/proc/self/oom_score_adj").write_text("0")
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    sys.argv = ["labkit.measure.agent.main"]
    agent_main.main()


def _out_of_memory() -> bool:
    """Return whether the kernel's log reports a process killed for lack of memory."""
    with contextlib.suppress(OSError), closed(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)) as log:
        while True:
            if b"Out of memory: Killed process" in os.read(log, 8192):
                return True
    return False


def _converse(port: ByteStream, report: dict[str, Any]) -> None:
    """Serve one request, from its first line to the end of its process."""
    requests = process.LineBuffer()
    while (first := requests.take()) is None:
        requests.add(_read_input(port))
    child = Child(report)
    try:
        with contextlib.suppress(Failed):  # it has ended already; `_relay` reads how
            child.send(msgspec.json.encode(report | msgspec.json.decode(first)))
        _relay(port, child, bytes(requests.rest))
    finally:
        how = child.end()
    write_event(port, {"event": "ended", "text": how})


def _read_input(port: ByteStream) -> bytes:
    """Return the next input from the host. Raises ClientDisconnected."""
    while True:
        select.select([port.fd], [], [], BEAT_S)
        if data := port.read():
            return data


def _relay(port: ByteStream, child: Child, given: bytes) -> None:
    """Pass lines on in both directions until the child closes its output, with a beat every BEAT_S to the host. Raises
    ClientDisconnected."""
    beaten = time.monotonic()
    while True:
        with contextlib.suppress(OSError):  # it has ended; its last answers are still to come
            os.write(child.fileno(), given)
        ready, _, _ = select.select([port.fd, child.fileno()], [], [], BEAT_S)
        given = _read_input(port) if port.fd in ready else b""
        if child.fileno() in ready:
            if not child.answers.read():
                return
            while (line := child.answers.take()) is not None:
                port.write(line + b"\n")
        if time.monotonic() - beaten > BEAT_S:
            beaten = time.monotonic()
            port.write(b"\n")


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
    # it booted on one CPU (qemu/command.py)
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/online"):
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
        found = experiments.find(name)  # import it before any request, and all that only some requests need
        found.planned_s(found.parameters())  # an estimate imports the loop that measures
    for table in (GENERATORS, OBSERVERS, KINDS):
        list(table.values())
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
