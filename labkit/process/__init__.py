"""Programs: the only user of subprocess. argv lists, deadlines, CPU time; every program ends with whoever
started it."""

from labkit.process.conversation import Conversation, Talk
from labkit.process.forked import Forked
from labkit.process.programs import (
    DIE_WITH_US,
    LOCALE,
    Ended,
    Outliving,
    Running,
    ahead_of_load,
    all_ended,
    first,
    interactive,
    output,
    python,
    run,
    streamed,
    wait,
)

__all__ = [
    "DIE_WITH_US",
    "LOCALE",
    "Conversation",
    "Ended",
    "Forked",
    "Outliving",
    "Running",
    "Talk",
    "ahead_of_load",
    "all_ended",
    "first",
    "interactive",
    "output",
    "python",
    "run",
    "streamed",
    "wait",
]
