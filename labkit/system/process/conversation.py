"""Conversations: a program that is told lines and answers in lines."""

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
from labkit.system.process.programs import DIE_WITH_US, content_of, startable

# What unshare (2.38) says when its child was killed: it wants to end by the same signal, and cannot by that one.
_CHILD_KILLED = "unshare: sigprocmask unblock failed: Invalid argument"

LONGEST_LINE = 128 << 20  # bytes, of what is said in a conversation


class Conversing(Protocol):
    """A conversation with a labkit process on some host: told JSON lines, it answers in JSON lines."""

    def tell(self, line: str) -> None:
        """Tell it one more line; one that has ended hears nothing, and `lines` shows that it has."""

    def lines(self) -> Iterator[bytes]:
        """Its answers as they come, until it ends; whoever stops listening may ask again and hears those after."""

    def words(self) -> str:
        """After its end without an answer: how it ended, to follow "the experiment's process"."""

    def end(self) -> None:
        """End it now, if it has not."""


class Conversation:
    """A program that is told lines on standard input and answers in lines; it dies with us.

    `request` is its first line; None leaves that to the caller.
    """

    def __init__(self, argv: Sequence[str], request: str | None, pass_fds: Sequence[int] = ()) -> None:
        self._said = tempfile.TemporaryFile()
        self._heard = bytearray()
        self._silent_s: float | None = None
        with startable(argv):
            self._popen = subprocess.Popen(
                [*DIE_WITH_US, *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                pass_fds=pass_fds,
            )
        if request is not None:
            self.tell(request)

    def fileno(self) -> int:
        """A descriptor that becomes readable when it has answered or ended."""
        assert self._popen.stdout is not None
        return self._popen.stdout.fileno()

    def tell(self, line: str) -> None:
        """Tell it one more line; one that has ended hears nothing, and `lines` shows that it has."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(line.encode() + b"\n")
            self._popen.stdin.flush()

    def lines(self, silence_s: float = math.inf) -> Iterator[bytes]:
        """Its answers as they come, until it closes its output or nothing came for so long. Raises Failed for a line
        that has no end."""
        assert self._popen.stdout is not None
        descriptor, seen = self._popen.stdout.fileno(), 0
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while True:
            while end := self._heard.find(b"\n", seen) + 1:
                line, seen = bytes(self._heard[:end]), 0
                del self._heard[:end]
                yield line
            seen = len(self._heard)
            if seen > LONGEST_LINE:
                raise Failed(f"the experiment's process said a line of more than {LONGEST_LINE >> 20} MiB")
            if not poll.poll(None if math.isinf(silence_s) else silence_s * 1000):
                self._silent_s = silence_s
                return
            if not (content := os.read(descriptor, 1 << 16)):
                break
            self._heard += content
        if self._heard:
            yield bytes(self._heard)

    def words(self) -> str:
        """After its end: how it ended, and the last line that it wrote on standard error."""
        if self._silent_s is not None:
            return f"said nothing for {self._silent_s:g} s"
        returncode = self._popen.wait()
        last = content_of(self._said).strip().splitlines()[-1:]
        if last == [_CHILD_KILLED]:
            return f"was killed by signal {signal.SIGKILL:d}"
        killed = returncode < 0 or 128 < returncode < 193  # a shell's way, and unshare's, to tell of a signal
        how = f"was killed by signal {abs(returncode) % 128}" if killed else f"ended with {returncode}"
        return f"{how}{': ' if last else ''}{''.join(last)}"

    def end(self) -> None:
        """End it now, if it has not."""
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._said.close()
