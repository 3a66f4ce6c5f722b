"""Boot a QEMU machine of a test's own that is `here` for labkit: another kernel with this machine's files.

Commands run in it as root and outside of any experiment. What they write is discarded with the machine.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sandbox import Done

from labkit.common.errors import Failed
from labkit.measure.hosts import vm
from labkit.measure.hosts.vm import LabVm
from labkit.system.qemu import kernels, vm_spec

BOOT_S = 300.0


class Machine:
    """A running machine. `run` and `start` act inside it."""

    def __init__(self, guest: LabVm) -> None:
        self._guest = guest
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._answers = self._socket.makefile("rb")

    def greet(self) -> None:
        """Wait until it answers. Raises Failed when it does not."""
        deadline = time.monotonic() + BOOT_S
        while True:
            try:
                self._socket.connect(str(self._guest.scratch / "channel"))
                break
            except OSError:
                self._guest.check_booting(deadline)
                time.sleep(0.05)
        self._socket.settimeout(BOOT_S)
        assert self.run("true").returncode == 0

    def _ask(
        self, argv: tuple[str, ...], timeout_s: float | None, environment: dict[str, str]
    ) -> dict[str, Any]:
        parameters = {"argv": argv, "timeout_s": timeout_s, "env": environment}
        self._socket.sendall(json.dumps(parameters).encode() + b"\n")
        if timeout_s is not None:
            self._socket.settimeout(BOOT_S + timeout_s)
        line = self._answers.readline()
        assert line, self._guest.last_words()
        result: dict[str, Any] = json.loads(line)
        return result

    def run(self, *argv: str, timeout: float = 60, **environment: str) -> Done:
        """Run a program to its end."""
        report = self._ask(argv, timeout, environment)
        return Done(argv, report["returncode"], report["stdout"], report["stderr"])

    def start(self, *argv: str, **environment: str) -> int:
        """Start a program and discard its output; return its pid in the machine."""
        return int(self._ask(argv, None, environment)["pid"])

    def host_status(self) -> dict[str, str]:
        """Return /proc/PID/status of the QEMU process, which has its console in the machine's scratch folder."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            words = path.read_bytes().split(b"\0")
            if b"qemu-system" in words[0] and f"file:{self._guest.scratch}/console".encode() in words:
                return dict(line.split(":", 1) for line in path.with_name("status").read_text().splitlines())
        raise AssertionError("QEMU does not run")

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self._socket.close()


@contextmanager
def machine(where: str, folder: Path | None = None) -> Iterator[Machine]:
    """Boot the machine of a lab VM's parameters, emulated. It writes into `folder` only. One of two boots may fail."""
    parameters = vm_spec.parse(where)
    kernel = kernels.find(parameters.kernel)
    first = [sys.executable, str(Path(__file__).with_name("guest_init.py"))]
    for last in (False, True):
        with vm.started(where, parameters, kernel, folder, None, False, first) as guest:
            made = Machine(guest)
            try:
                try:
                    made.greet()
                except (Failed, OSError, AssertionError):
                    if last:
                        raise
                    continue
                yield made
                return
            finally:
                made.close()
