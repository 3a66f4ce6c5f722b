"""Run a notebook's kernel in a lab VM: the process that Jupyter takes for the kernel, and its request to the guest.

The cells run in the guest as root, in the guest's own network namespace. This machine's loopback forwards Jupyter's
five ports to them; they can reach nothing else of the network. The notebook's folder, in which the process was started,
is writable.
"""

import contextlib
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
from labkit.common.printable import say
from labkit.measure.agent.notebook_kernel import ADDRESS, CONNECTION

PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
MONITOR_S = 30.0
PROGRESS_S = 10.0  # between two messages about a booting kernel
# Variables about this machine's processes and folders, which would be wrong in the guest.
_HOST_VARIABLES = ("JPY_PARENT_PID", "XDG_RUNTIME_DIR", "LABKIT_LAB_VM")


def forwards(connection: Mapping[str, Any]) -> list[str]:
    """Return QEMU's arguments that forward the kernel's ports from loopback."""
    return [f"tcp:127.0.0.1:{connection[name]}-{ADDRESS.ip}:{connection[name]}" for name in PORTS]


class Monitor:
    """Controls QEMU's monitor (QMP) over a socket pair.

    `arguments` are those that give QEMU the monitor and an isolated network. Ports are forwarded once the kernel
    listens: earlier connections are refused and retried. Otherwise QEMU would accept them and keep them waiting for a
    guest that does not exist yet.
    """

    def __init__(self) -> None:
        self._ours, self.qemus = socket.socketpair()
        self._lines = self._ours.makefile("rb")
        self.arguments = (
            "-chardev", f"socket,id=monitor,fd={self.qemus.fileno()}", "-mon", "chardev=monitor,mode=control",
            "-netdev", "user,id=notebook,restrict=on,ipv6=off", "-device", "virtio-net-pci,netdev=notebook",
        )  # fmt: skip

    def close(self) -> None:
        for each in (self._lines, self._ours, self.qemus):
            each.close()

    def tell_when_started(self) -> None:
        """Write an event when QEMU runs, which then greets."""
        self._lines.readline()
        _say({"event": "started"})

    def forward(self, rules: list[str]) -> None:
        """Forward the kernel's ports. Raises Failed when a port is taken, or QEMU does not answer."""
        # We also hold QEMU's end of the pair, so its exit would go unnoticed.
        self._ours.settimeout(MONITOR_S)
        self._ask("qmp_capabilities")
        for rule in rules:
            text = f"hostfwd_add notebook {rule}"
            if lines := self._ask("human-monitor-command", **{"command-line": text}):
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
    """Return the request to the guest. Raises BadInput for a folder that cannot be the writable one."""
    if folder == Path("/"):
        raise BadInput("a notebook in / would write on all of this machine: move it into a folder of its own")
    kept = {name: value for name, value in environment.items() if name not in _HOST_VARIABLES}
    if not Path(kept.get("LABKIT_DATA", "/")).is_relative_to(folder):
        kept["LABKIT_DATA"] = str(folder / "data")  # runs survive the lab VM
    there = {**connection, "ip": str(ADDRESS.ip)}
    request = {"do": "notebook kernel", "folder": str(folder), "connection": there}
    return {**request, "argv": argv, "environment": kept}


def _say(event: dict[str, Any]) -> None:
    """Write an event for the provisioner that started this process."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, msgspec.json.encode(event) + b"\n")


@contextlib.contextmanager
def boot_progress(where: str) -> Iterator[threading.Event]:
    """Print a line at the start and every `PROGRESS_S` seconds until the event is set or the block ends. Standard error
    goes to Jupyter's log."""
    done, start = threading.Event(), time.monotonic()

    def print_progress() -> None:
        while not done.wait(PROGRESS_S):
            say(f"{where} is still booting ({time.monotonic() - start:.0f} s)")

    say(f"{where} boots for a notebook's kernel; emulated, that takes a minute")
    thread = threading.Thread(target=print_progress, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        done.set()
        thread.join()


def hold(where: str, connection_file: Path, argv: list[str]) -> None:
    """Boot the lab VM, and hold it until the kernel in it ends. Raises as `vm.conversation`, and Failed."""
    from labkit.measure.hosts import vm  # the guest imports this module without needing vm

    connection = msgspec.json.decode(connection_file.read_bytes())
    if connection.get("transport", "tcp") != "tcp":
        raise BadInput(
            "a notebook's kernel in a lab VM is reached by TCP: set the kernel manager's transport to tcp"
        )
    there = [str(CONNECTION) if word == str(connection_file) else word for word in argv]
    request = kernel_request(connection, there, Path.cwd(), os.environ)
    with contextlib.ExitStack() as stack:
        booted = stack.enter_context(boot_progress(where))
        monitor = Monitor()
        threading.Thread(target=monitor.tell_when_started, daemon=True).start()
        nic = vm.VmNic(monitor.arguments, (monitor.qemus.fileno(),), outside=True)
        conversation = stack.enter_context(vm.conversation(where, request, say, nic))
        for line in conversation.lines():
            event = msgspec.json.decode(line)
            if event["event"] == "done":
                return
            if event["event"] == "error":
                raise Failed(event["text"])
            monitor.forward(forwards(connection))
            booted.set()
            _say({"event": "ready"})
        raise Failed(f"the notebook's kernel {conversation.end_reason()}")


def main() -> int:
    """Hold one kernel. Arguments: where, the connection file, the kernel's command line.

    Standard output has one event per line: started (QEMU runs), ready (the kernel can be reached), error (the last
    event).
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # leaving ends the lab VM
    where, connection_file, *argv = sys.argv[1:]
    try:
        hold(where, Path(connection_file), argv)
    except LabkitError as error:
        _say({"event": "error", "text": str(error)})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
