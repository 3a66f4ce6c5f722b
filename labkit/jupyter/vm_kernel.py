"""A notebook's kernel in a lab VM: the process that Jupyter takes for the kernel, and what the guest does for it.

The cells run in the guest, as root of it and in its own network namespace. Jupyter's five ports are forwarded from this
machine's loopback to them; nothing else of the network is there. The folder that the process was started in, the
notebook's, is writable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from labkit.common.errors import BadInput, Failed, LabkitError
from labkit.common.printable import printable
from labkit.system import machine, netlink, process

ADDRESS = ipaddress.IPv4Interface("10.0.2.15/24")  # of the guest in QEMU's user network
CONNECTION = Path("/run/labkit-notebook-kernel.json")  # in the guest, where /run is its own
PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
NIC_S, MONITOR_S, READY_S = 10.0, 30.0, 240.0  # a quiet machine needs 10 under emulation
# What would mislead in the guest: this machine's processes and folders.
_OF_THIS_MACHINE = ("JPY_PARENT_PID", "XDG_RUNTIME_DIR", "LABKIT_LAB_VM")


def forwards(connection: Mapping[str, Any]) -> list[str]:
    """QEMU's words for what is forwarded to the kernel: its ports, on loopback."""
    return [f"tcp:127.0.0.1:{connection[name]}-{ADDRESS.ip}:{connection[name]}" for name in PORTS]


class Monitor:
    """QEMU's monitor (QMP), by a pair of sockets; `words` make QEMU have it, and a network that reaches nothing.

    Ports are forwarded once the kernel listens: whoever connects sooner is refused and tries again, where QEMU would
    keep him waiting for a guest that is not there.
    """

    def __init__(self) -> None:
        self._ours, self.qemus = socket.socketpair()
        self._lines = self._ours.makefile("rb")
        self.words = (
            *(
                "-chardev",
                f"socket,id=monitor,fd={self.qemus.fileno()}",
                "-mon",
                "chardev=monitor,mode=control",
            ),
            *(
                "-netdev",
                "user,id=notebook,restrict=on,ipv6=off",
                "-device",
                "virtio-net-pci,netdev=notebook",
            ),
        )

    def close(self) -> None:
        """Let go of it."""
        for each in (self._lines, self._ours, self.qemus):
            each.close()

    def greeted(self) -> None:
        """Wait until QEMU runs."""
        self._lines.readline()

    def forward(self, rules: list[str]) -> None:
        """Raises Failed when a port is taken, or QEMU does not answer."""
        self._ours.settimeout(MONITOR_S)  # its end would not show: we have its side of the pair as well
        self._ask("qmp_capabilities")
        for rule in rules:
            words = f"hostfwd_add notebook {rule}"
            if lines := self._ask("human-monitor-command", **{"command-line": words}):
                raise Failed(f"the notebook's kernel cannot be reached: {lines.strip()} ({rule})")

    def _ask(self, command: str, **arguments: str) -> str:
        self._ours.sendall(msgspec.json.encode({"execute": command, "arguments": arguments}) + b"\n")
        while True:
            try:
                answer = msgspec.json.decode(self._lines.readline())
            except TimeoutError:
                raise Failed(f"QEMU's monitor has not answered for {MONITOR_S:.0f} s") from None
            if "event" not in answer and "QMP" not in answer:
                return str(answer.get("return") or answer.get("error") or "")


def kernel_request(
    connection: Mapping[str, Any], argv: list[str], folder: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """What the guest is told. Raises BadInput for a folder that cannot be the writable one."""
    if folder == Path("/"):
        raise BadInput("a notebook in / would write on all of this machine: move it into a folder of its own")
    kept = {name: value for name, value in environment.items() if name not in _OF_THIS_MACHINE}
    if not Path(kept.get("LABKIT_DATA", "/")).is_relative_to(folder):
        kept["LABKIT_DATA"] = str(folder / "data")  # runs stay when the lab VM goes
    there = {**connection, "ip": str(ADDRESS.ip)}
    return {
        "do": "notebook kernel",
        "folder": str(folder),
        "connection": there,
        "argv": argv,
        "environment": kept,
    }


def answer(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In the guest: run the kernel until it ends; says when it can be reached. Raises Failed with its last words."""
    os.environ.clear()
    os.environ.update(request["environment"])
    try:
        os.chdir(request["folder"])
    except OSError as error:
        raise Failed(f"the lab VM does not have the folder {request['folder']}: {error.strerror}") from None
    CONNECTION.touch(mode=0o600)
    CONNECTION.write_bytes(msgspec.json.encode(request["connection"]))
    with netlink.inside(request["machine_netns"]):
        _attach()
        # A session of its own: an interrupt is meant for the kernel and the programs of its cell.
        kernel = process.Running(["setsid", "--", *request["argv"]])
        with process.all_ended([kernel]):
            _reachable(kernel, request["connection"]["hb_port"])
            yield {"event": "ready"}
            process.wait([kernel], math.inf)
            if kernel.ended().returncode != 0:
                raise Failed(f"the notebook's kernel has ended: {_last_words(kernel)}")


def _attach() -> None:
    """Give the NIC its address."""
    if not Path("/sys/class/net/eth0").exists():
        process.output([machine.program("modprobe"), "virtio_net"])
    deadline = time.monotonic() + NIC_S
    while not Path("/sys/class/net/eth0").exists():
        if time.monotonic() > deadline:
            raise Failed("the lab VM has no NIC that Jupyter could reach it by")
        time.sleep(0.01)
    index = netlink.index_of("eth0")
    kernel = netlink.Netlink()
    with contextlib.closing(kernel):
        kernel.do(netlink.set_link(index), netlink.new_address(index, ADDRESS))


def _reachable(kernel: process.Running, port: int) -> None:
    """Wait until the kernel listens. Its heartbeat is the last port that it opens."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if not process.wait([kernel], time.monotonic() + 0.05):
            raise Failed(f"the notebook's kernel did not start: {_last_words(kernel)}")
        with contextlib.suppress(OSError):
            socket.create_connection((str(ADDRESS.ip), port), timeout=1).close()
            return
    raise Failed(f"the notebook's kernel did not listen within {READY_S:.0f} s")


# What a signal that ended the kernel usually means in a lab VM.
_MEANING = {
    signal.SIGILL: "a library uses an instruction that the lab VM's CPU does not have",
    signal.SIGSEGV: "a library has crashed",
    signal.SIGKILL: "the lab VM was probably out of memory; memory_mib=4096 gives it more",
}


def _last_words(kernel: process.Running) -> str:
    """How the kernel ended: the signal and what it usually means, or the last line, which is that of a traceback."""
    ended = kernel.ended()
    if ended.returncode < 0:
        number = signal.Signals(-ended.returncode)
        return dataclasses.replace(ended, stdout="", stderr=_MEANING.get(number, "")).words()
    return dataclasses.replace(ended, stderr="".join(ended.stderr.splitlines()[-1:])).words()


def _tell_when_started(monitor: Monitor) -> None:
    monitor.greeted()
    _say({"event": "started"})


def _say(event: dict[str, Any]) -> None:
    """Write an event for the provisioner that started this process."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, msgspec.json.encode(event) + b"\n")


def _note(text: str) -> None:
    print(f"labkit: {printable(text)}", file=sys.stderr, flush=True)


def hold(where: str, connection_file: Path, argv: list[str]) -> None:
    """Boot the lab VM, and hold it until the kernel in it ends. Raises as `vm.conversation`, and Failed."""
    from labkit.measure.hosts import vm  # what the guest, which imports this module, does not need

    connection = msgspec.json.decode(connection_file.read_bytes())
    if connection.get("transport", "tcp") != "tcp":
        raise BadInput(
            "a notebook's kernel in a lab VM is reached by TCP: set the kernel manager's transport to tcp"
        )
    there = [str(CONNECTION) if word == str(connection_file) else word for word in argv]
    request = kernel_request(connection, there, Path.cwd(), os.environ)
    with contextlib.ExitStack() as stack:
        monitor = Monitor()
        threading.Thread(target=_tell_when_started, args=(monitor,), daemon=True).start()
        wire = vm.Wire(monitor.words, (monitor.qemus.fileno(),), outside=True)
        talk = stack.enter_context(vm.conversation(where, request, _note, wire))
        for line in talk.lines():
            event = msgspec.json.decode(line)
            if event["event"] == "done":
                return
            if event["event"] == "error":
                raise Failed(event["text"])
            monitor.forward(forwards(connection))
            _say({"event": "ready"})
        raise Failed(f"the notebook's kernel {talk.words()}")


def main() -> int:
    """Hold one kernel. Arguments: where, the connection file, the kernel's command line.

    Standard output has an event a line: started (QEMU runs), ready (the kernel can be reached), error (the last one).
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # leaving takes the lab VM along
    where, connection_file, *argv = sys.argv[1:]
    try:
        hold(where, Path(connection_file), argv)
    except LabkitError as error:
        _say({"event": "error", "text": str(error)})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
