"""Programs: the only user of subprocess. argv lists, deadlines, CPU time; every program ends with whoever
started it."""

from labkit.system.process.conversation import Conversation, Conversing
from labkit.system.process.forked import Forked
from labkit.system.process.programs import (
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
    "Conversing",
    "Ended",
    "Forked",
    "Outliving",
    "Running",
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
