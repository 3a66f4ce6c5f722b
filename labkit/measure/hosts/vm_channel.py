"""The channel to a lab VM: a unix socket of QEMU. The other end is the guest's virtio-serial port (agent.vm_init)."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import labkit
from labkit.common.errors import BadInput, Failed
from labkit.system import process
from labkit.system.qemu import boot

SILENCE_S = 30.0  # the guest sends a beat every second
# A guest that got no CPU time between one client's end and the next one's start noticed neither: the port only shows
# whether a host is connected. Therefore a client without a hello disconnects for a moment. Both times grow with each
# attempt, up to LONGER times.
GREETING_S, AWAY_S, LONGER = 0.5, 0.1, 16
REPORT_S = 15.0  # between two messages about a boot; an emulated one takes 5 s on a quiet machine


@dataclass(eq=False)
class LabVm(boot.Machine):
    """A running lab VM: the folder of its sockets and console, and its holder if this process booted it."""

    where: str
    scratch: Path
    folder: Path | None
    holder: process.Conversation | None = None
    label = "the lab VM"

    def ended(self) -> str | None:
        """Return how it ended; None while it runs, as far as this process can know."""
        if self.holder is None or not select.select([self.holder], [], [], 0)[0]:
            return None
        return self.wait_for_end()

    def wait_for_end(self) -> str:
        """Return how it ended, when it has ended."""
        how = "it has ended"
        for line in self.holder.lines() if self.holder else ():
            event = msgspec.json.decode(line)
            how = event.get("text", how)
        return how

    def suspect(self) -> bool:
        """Return whether it has ended or a failure made it unfit for further use."""
        return self.ended() is not None or (self.scratch / "suspect").exists()

    def reaches(self, folder: str | None) -> bool:
        """Return whether it can write into the folder."""
        if folder is None or self.folder is None:
            return folder is None
        return Path(folder).resolve().is_relative_to(self.folder)


class VmConversation:
    """A conversation with one process in a lab VM (a process.Conversing). Raises Failed if the lab VM has ended.

    `say` gets a sentence every REPORT_S seconds while the lab VM boots.
    """

    def __init__(
        self, guest: LabVm, deadline: float, say: Callable[[str], None] = lambda _text: None
    ) -> None:
        self._guest, self._say = guest, say
        self._begun, self._reports = time.monotonic(), 0
        self._how = ""
        try:
            self._check(self._greeting(deadline))
        except BaseException:
            self._socket.close()
            self._suspect("did not greet")
            raise

    def _check(self, hello: dict[str, Any]) -> None:
        if hello["labkit"] != labkit.__version__:
            raise Failed(
                f"the lab VM runs labkit {hello['labkit']}, but this is {labkit.__version__}: boot it again"
            )
        if hello["problem"]:
            raise BadInput(f"the lab VM cannot be prepared: {hello['problem']}")

    def _greeting(self, deadline: float) -> dict[str, Any]:
        longer = 1
        self._connect(deadline)
        while (hello := self._hello(deadline, longer * GREETING_S)) is None:
            self._socket.close()
            time.sleep(longer * AWAY_S)
            longer = min(2 * longer, LONGER)
            self._connect(deadline)
        return hello

    def _connect(self, deadline: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(SILENCE_S)
        self._lines = process.Lines(self._socket)
        while True:
            try:
                return self._socket.connect(str(self._guest.scratch / "channel"))
            except OSError:  # QEMU has not created it yet, or has ended
                self._check_booting(deadline)
                time.sleep(0.01)

    def _check_booting(self, deadline: float) -> None:
        """Check the boot (Machine.check_booting), and tell every REPORT_S seconds how far it has come."""
        self._guest.check_booting(deadline)
        waited_s = time.monotonic() - self._begun
        if waited_s > (self._reports + 1) * REPORT_S:
            self._reports += 1
            line = self._guest.console_lines()[-1:]
            how = f"the last line of its console: {line[0][:100]}" if line else "its console is still empty"
            self._say(f"the lab VM has been booting for {waited_s:.0f} s; {how}")

    def _hello(self, deadline: float, patience_s: float) -> dict[str, Any] | None:
        """Return the hello event, None if it does not arrive within `patience_s`."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            with suppress(TimeoutError):
                if not self._lines.read(0.1):
                    raise self._guest.boot_failure(self._guest.wait_for_end())
            self._check_booting(deadline)
            while (line := self._lines.take()) is not None:
                # Leftovers of an earlier conversation come before the hello.
                if line.startswith(b'{"event":"hello"'):
                    greeting: dict[str, Any] = msgspec.json.decode(line)
                    return greeting
        return None

    def send(self, line: str) -> None:
        """Send a line."""
        with suppress(OSError):
            self._socket.sendall(line.encode() + b"\n")

    def lines(self) -> Iterator[bytes]:
        """Yield the answers as they arrive."""
        try:
            for line in self._lines.until_end(SILENCE_S):
                if line.startswith(b'{"event":"ended"'):
                    self._how = msgspec.json.decode(line)["text"]
                    return
                yield line
        except TimeoutError:
            last = self._guest.last_words()
            return self._suspect(f"was silent for {SILENCE_S:.0f} s: its lab VM hangs{last}")
        how = f"{self._guest.wait_for_end()}{self._guest.last_words()}"
        self._suspect(f"ended together with its lab VM: {how}")

    def _suspect(self, how: str) -> None:
        self._how = how
        with suppress(OSError):
            (self._guest.scratch / "suspect").touch()

    def end_reason(self) -> str:
        """Return how the process ended."""
        return self._how or "has not ended"

    def end(self) -> None:
        """Disconnect; the guest then kills the process."""
        self._socket.close()
