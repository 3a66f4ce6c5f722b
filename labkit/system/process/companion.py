"""A companion: a program beside an experiment that outlives it, and puts something in order when it has ended."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from labkit.common import errors
from labkit.common.errors import Failed, error_by_name
from labkit.system.process.programs import startable


class Companion:
    """A program in its own session that receives JSON lines on standard input and answers in JSON lines.

    Its standard input ends when the last process ends that holds the other end of the connection; then it does its last
    work and ends. Neither Ctrl-C nor the death of this process ends it before.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._ours, theirs = socket.socketpair()
        with startable(argv), theirs:
            self._popen = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def fileno(self) -> int:
        """Return the descriptor of this end, to pass on to the process that talks with the companion."""
        return self._ours.fileno()

    @property
    def pid(self) -> int:
        """The program's process."""
        return self._popen.pid

    def release(self) -> None:
        """Close this end. A process that received a copy of it keeps the copy open."""
        self._ours.close()

    def ended(self, patience_s: float) -> None:
        """Close this end and wait until the program has done its last work; kill it after `patience_s` seconds."""
        self.release()
        try:
            self._popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


class CompanionClient:
    """The connection to a companion, in the process that talks with it. `name` is the companion's in messages."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._name = name
        self._buffer = bytearray()

    def ask(self, request: dict[str, Any], patience_s: float) -> Any:
        """Send a request; return the `ok` of the answer. Raises the error that the companion names (`error`, `kind`),
        and Failed when it has ended or does not answer in time."""
        deadline = time.monotonic() + patience_s
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            while b"\n" not in self._buffer:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                if not (part := self._socket.recv(1 << 16)):
                    raise Failed(f"{self._name} has ended")
                self._buffer += part
        except TimeoutError:
            raise Failed(f"{self._name} did not answer within {patience_s:g} s") from None
        except OSError:
            raise Failed(f"{self._name} has ended") from None
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        with errors.reading(f"the answer of {self._name}"):
            answer = json.loads(line)
            if "error" in answer:
                raise error_by_name(answer["kind"], answer["error"])
            result = answer["ok"]
        return result

    def close(self) -> None:
        """Close this end of the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()
