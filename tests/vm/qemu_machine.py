"""A machine of QEMU's that a test has to itself, to be `here` for labkit: another kernel over this machine's files, in
which commands run as root and outside of any experiment. What they write is gone with it."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sandbox import LABKIT, Done

from labkit.common.errors import Failed
from labkit.measure.hosts import vm
from labkit.measure.hosts.vm_channel import LabVm
from labkit.system.qemu import console, kernels, vm_spec

BOOT_S = 300.0


class Machine:
    """It runs; `run`, `start` and `read` are of it."""

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
                if self._guest.gone() or time.monotonic() > deadline:
                    raise Failed(f"it did not boot: {self._guest.ended()}") from None
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
        assert line, console.last_words(self._guest.scratch / "console")
        result: dict[str, Any] = json.loads(line)
        return result

    def run(self, *argv: str, timeout: float = 60, **environment: str) -> Done:
        """Run a program to its end."""
        report = self._ask(argv, timeout, environment)
        return Done(argv, report["returncode"], report["stdout"], report["stderr"])

    def start(self, *argv: str, **environment: str) -> int:
        """Start a program whose output nobody hears; its pid there."""
        return int(self._ask(argv, None, environment)["pid"])

    def labkit(self, *words: str, timeout: float = 240, **environment: str) -> Done:
        """Run labkit; its data are in memory."""
        return self.run(*LABKIT, *words, timeout=timeout, **{"LABKIT_DATA": "/tmp/data", **environment})

    def rows(self, *words: str, timeout: float = 240) -> list[dict[str, Any]]:
        """The rows of `labkit run datapaths`."""
        done = self.labkit("run", "datapaths", *words, "--json", timeout=timeout)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def read(self, path: str) -> str:
        """A file."""
        return self.run("cat", path).stdout

    def close(self) -> None:
        """Let go of it."""
        self._answers.close()
        self._socket.close()


@contextmanager
def machine(where: str) -> Iterator[Machine]:
    """The machine that a lab VM's word asks for, emulated; one boot in two is allowed to fail."""
    parameters = vm_spec.parse(where)
    kernel = kernels.find(parameters.kernel)
    first = [sys.executable, str(Path(__file__).with_name("guest_init.py"))]
    for last in (False, True):
        with vm.started(where, parameters, kernel, None, None, False, first) as guest:
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
