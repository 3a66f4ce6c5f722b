"""A notebook's kernel in a lab VM: the process that Jupyter takes for the kernel, and what the guest does for it.

The cells run in the guest, as root of it and in its own network namespace. Jupyter's five ports are forwarded from this
machine's loopback to them; nothing else of the network is there. The folder that the process was started in, the
notebook's, is writable.
"""

from __future__ import annotations

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
from labkit.common.printable import printable
from labkit.measure.agent.notebook_kernel import ADDRESS, CONNECTION

PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
MONITOR_S = 30.0
PROGRESS_S = 10.0  # between two lines about a kernel that boots
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


def _tell_when_started(monitor: Monitor) -> None:
    monitor.greeted()
    _say({"event": "started"})


def _say(event: dict[str, Any]) -> None:
    """Write an event for the provisioner that started this process."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, msgspec.json.encode(event) + b"\n")


def _note(text: str) -> None:
    print(f"labkit: {printable(text)}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def boot_progress(where: str) -> Iterator[threading.Event]:
    """Write a line at the start and every `PROGRESS_S` seconds on standard error, which Jupyter has in its log, until
    the event is set or the block ends."""
    done, start = threading.Event(), time.monotonic()

    def lines() -> None:
        while not done.wait(PROGRESS_S):
            _note(f"{where} is still booting ({time.monotonic() - start:.0f} s)")

    _note(f"{where} boots for a notebook's kernel; emulated, that takes a minute")
    thread = threading.Thread(target=lines, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        done.set()
        thread.join()


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
        booted = stack.enter_context(boot_progress(where))
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
            booted.set()
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
