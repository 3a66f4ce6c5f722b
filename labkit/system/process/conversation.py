"""Conversations: a program that receives lines and answers in lines."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import Protocol

from labkit.common.errors import Failed
from labkit.system.process.programs import DIE_WITH_US, content_of, parsed_environment, startable

# The message of unshare (2.38) when its child was killed: it cannot end itself with the same signal.
_CHILD_KILLED = "unshare: sigprocmask unblock failed: Invalid argument"
_NO_PRIVILEGE = (
    "is not permitted to create a namespace: run labkit as root, or allow user namespaces (as root: sysctl"
    " kernel.unprivileged_userns_clone=1, or kernel.apparmor_restrict_unprivileged_userns=0)"
)
# What unshare writes if the kernel refuses a namespace, and what it means (namespaces(7), user_namespaces(7)).
_NO_NAMESPACE = {
    "unshare: unshare failed: No space left on device": (
        "cannot create a namespace, because their number is limited: as root, raise the sysctls"
        " user.max_user_namespaces and user.max_net_namespaces"
    ),
    "unshare: unshare failed: Operation not permitted": _NO_PRIVILEGE,
    "unshare: write failed /proc/self/uid_map: Operation not permitted": _NO_PRIVILEGE,
    "unshare: unshare failed: Invalid argument": "cannot create a namespace: this kernel lacks one kind of them",
}

LONGEST_LINE = 128 << 20  # bytes of one line of a conversation


class Conversing(Protocol):
    """A conversation with a labkit process on some host, in JSON lines."""

    def send(self, line: str) -> None:
        """Send one more line. A process that has ended ignores it, and `lines` ends."""

    def lines(self) -> Iterator[bytes]:
        """Yield its answers as they come, until it ends. A later call continues with the next answer."""

    def end_reason(self) -> str:
        """Say how it ended without an answer; the text follows "the experiment's process"."""

    def end(self) -> None:
        """End the process now if it still runs."""


class Conversation:
    """A program that receives lines on standard input and answers in lines; the kernel kills it when this process ends.

    `request` is its first line; with None the caller sends it.
    """

    def __init__(self, argv: Sequence[str], request: str | None, pass_fds: Sequence[int] = ()) -> None:
        self._stderr = tempfile.TemporaryFile()
        self._buffer = bytearray()
        self._silent_s: float | None = None
        with startable(argv):
            self._popen = subprocess.Popen(
                [*DIE_WITH_US, *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                pass_fds=pass_fds,
                env=parsed_environment(),
            )
        if request is not None:
            self.send(request)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the program answers or ends."""
        assert self._popen.stdout is not None
        return self._popen.stdout.fileno()

    def send(self, line: str) -> None:
        """Send one more line. A process that has ended ignores it, and `lines` ends."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(line.encode() + b"\n")
            self._popen.stdin.flush()

    def lines(self, silence_s: float = math.inf) -> Iterator[bytes]:
        """Yield its answers as they come, until it closes its output or is silent for `silence_s` seconds.

        Raises Failed for a line longer than LONGEST_LINE.
        """
        assert self._popen.stdout is not None
        descriptor, seen = self._popen.stdout.fileno(), 0
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while True:
            while end := self._buffer.find(b"\n", seen) + 1:
                line, seen = bytes(self._buffer[:end]), 0
                del self._buffer[:end]
                yield line
            seen = len(self._buffer)
            if seen > LONGEST_LINE:
                raise Failed(f"the experiment's process wrote a line longer than {LONGEST_LINE >> 20} MiB")
            if not poll.poll(None if math.isinf(silence_s) else silence_s * 1000):
                self._silent_s = silence_s
                return
            if not (content := os.read(descriptor, 1 << 16)):
                break
            self._buffer += content
        if self._buffer:
            yield bytes(self._buffer)

    def end_reason(self) -> str:
        """Say how it ended, with the last line that it wrote on standard error."""
        if self._silent_s is not None:
            return f"was silent for {self._silent_s:g} s"
        returncode = self._popen.wait()
        last = content_of(self._stderr).strip().splitlines()[-1:]
        if last == [_CHILD_KILLED]:
            return f"was killed by signal {signal.SIGKILL:d}"
        if known := _NO_NAMESPACE.get("".join(last)):
            return known
        killed = (
            returncode < 0 or 128 < returncode < 193
        )  # a shell and unshare report a signal as 128 + its number
        how = f"was killed by signal {abs(returncode) % 128}" if killed else f"ended with {returncode}"
        return f"{how}{': ' if last else ''}{''.join(last)}"

    def end(self) -> None:
        """End the process now if it still runs."""
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._stderr.close()
