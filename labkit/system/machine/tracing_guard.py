"""The guard of an experiment that traces. The experiment dies with its PID namespace, and tracers are no namespace's:
this process is outside, waits until the experiment has ended, in whatever way, and puts back what it left.

Its standard input is a pipe that the experiment holds open and nobody writes into.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from labkit.system import process
from labkit.system.machine import sysctl_journal, tracing_journal

PATIENCE_S = 10.0


@contextmanager
def start_guard() -> Iterator[process.Outliving]:
    """A guard. It does its work when all have ended that hold its descriptor, also when we are killed; at the latest
    when the block ends, and then that is waited for."""
    guard = process.Outliving(process.python("-m", __name__))
    try:
        yield guard
    finally:
        guard.ended()


def main() -> None:
    """Wait for the end of the experiment; then put back what it left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    sysctl_journal.put_back_left()
    tracing_journal.restore_leftovers(PATIENCE_S)


if __name__ == "__main__":
    main()
