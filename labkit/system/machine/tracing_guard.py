"""The guard of an experiment that traces.

The experiment dies with its PID namespace, but tracers belong to no namespace. The guard runs outside, waits until the
experiment has ended in any way, and restores tracers and sysctls. Its standard input is a connection that the
experiment holds open.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from labkit.common.errors import Failed
from labkit.system import process
from labkit.system.machine import sysctl_journal, tracing_journal

PATIENCE_S = 10.0


@contextmanager
def start_guard() -> Iterator[process.Companion]:
    """Start a guard for the block.

    It restores the settings when all processes have ended that hold its descriptor, even if this process is killed.
    The end of the block waits for that.
    """
    guard = process.Companion(process.python("-m", __name__), stderr=None)
    try:
        yield guard
    finally:
        guard.ended()


def main() -> None:
    """Wait for the end of the experiment, then restore what it left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for restore in (sysctl_journal.restore_leftovers, lambda: tracing_journal.restore_leftovers(PATIENCE_S)):
        try:
            restore()
        except (OSError, Failed) as error:
            print(f"labkit: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
