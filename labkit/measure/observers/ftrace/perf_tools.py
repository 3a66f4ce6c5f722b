"""A wrapper of funcgraph, funccount and kprobe from Brendan Gregg's perf-tools (Debian package perf-tools-unstable).

They use the shared trace instance. SIGINT to their process group ends them, so that they restore the settings
themselves; labkit restores what they leave changed (session.exclusive_tracefs).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from labkit.common.errors import BadInput, Failed
from labkit.measure.observers.ftrace import session
from labkit.system import machine, process
from labkit.system.machine import tracing_journal

# The tracefs file that shows that a tool is tracing, and its content before.
ARMED = {
    "funcgraph": ("current_tracer", "nop"),
    "funccount": ("function_profile_enabled", "0"),
    "kprobe": ("events/kprobes/enable", "0"),
}
ARMING_S = 120.0  # funcgraph arms all kernel functions; an emulated CPU needs half a minute
GRACE_S = 30.0  # to print buffered output and restore the settings
AGAIN_S = 1.0  # a signal between two of its commands does not end it


class Tool:
    """A running tool."""

    def __init__(self, program: process.Running, duration_s: int) -> None:
        self._program, self._duration_s = program, duration_s

    def text(self) -> str:
        """Wait until its time is over and return its output. Raises Failed with its error message."""
        if process.wait([self._program], time.monotonic() + self._duration_s + GRACE_S):
            self.end()
        ended = self._program.ended()
        if ended.returncode != 0:
            raise Failed(ended.words())
        return ended.stdout

    def end(self) -> None:
        """End it and its children."""
        deadline = time.monotonic() + GRACE_S
        while not self._program.poll():
            late = time.monotonic() > deadline
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._program.pid, signal.SIGKILL if late else signal.SIGINT)
            process.wait([self._program], time.monotonic() + AGAIN_S)
        with contextlib.suppress(OSError):
            if tracing_journal.PERF_TOOLS_LOCK.read_text().strip() == str(
                self._program.pid
            ):  # it was killed before it could
                tracing_journal.PERF_TOOLS_LOCK.unlink()


@contextmanager
def perf_tool(name: str, words: Sequence[str], duration_s: int) -> Iterator[Tool]:
    """Run funcgraph, funccount or kprobe with these arguments (`-m 1 ip_rcv`) for `duration_s` seconds.

    It has ended when the block ends. Raises Unsupported if it is not installed or tracing is impossible.
    """
    if name not in ARMED:
        raise BadInput(f"{name} is not a supported perf-tool: choose {', '.join(ARMED)}")
    program = machine.needed(f"{name}-perf", "perf-tools-unstable")
    with session.exclusive_tracefs() as top:
        running = process.Running(
            ["setsid", program, "-d", str(duration_s), *words]
        )  # the leader of its group
        tool = Tool(running, duration_s)
        try:
            _armed(running, top, *ARMED[name])
            yield tool
        finally:
            tool.end()
            running.ended()


def _armed(program: process.Running, top: Path, name: str, before: str) -> None:
    """Wait until it traces or has ended. Raises Failed after ARMING_S."""
    deadline = time.monotonic() + ARMING_S
    while not program.poll():
        with contextlib.suppress(OSError):
            if (top / name).read_text().strip() != before:
                return
        if time.monotonic() > deadline:
            raise Failed(f"{' '.join(program.argv)} does not trace after {ARMING_S:g} s")
        time.sleep(0.05)
