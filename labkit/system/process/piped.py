"""A program that is fed and read through pipes, which never block this process."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence

from labkit.system.process.programs import DIE_WITH_US, Ended, content_of, parsed_environment, startable


class Piped:
    """A started program; it is killed with this process. Raises Unsupported where it cannot be started."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = list(argv)
        self._err = tempfile.TemporaryFile()
        with startable([*self._argv]):
            self._popen = subprocess.Popen(
                [*DIE_WITH_US, *self._argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._err,
                env=parsed_environment(),
                bufsize=0,
            )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self.stdin, self.stdout = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        os.set_blocking(self.stdin, False)
        os.set_blocking(self.stdout, False)

    def feed(self, data: bytes | memoryview) -> int:
        """Write as much as the pipe takes now; returns how many bytes. A program that has ended takes none."""
        try:
            return os.write(self.stdin, data)
        except (BlockingIOError, BrokenPipeError):
            return 0

    def received(self) -> bytes | None:
        """Return what it has written since the last call; None if it has closed its output."""
        try:
            return os.read(self.stdout, 1 << 16) or None
        except BlockingIOError:
            return b""

    def kill(self) -> str:
        """End it; returns how it ended, with its error message."""
        self._popen.kill()
        code = self._popen.wait()
        text = Ended(self._argv, code, "", content_of(self._err), 0.0).message()
        for pipe in (self._popen.stdin, self._popen.stdout, self._err):
            if pipe is not None:
                pipe.close()
        return text
