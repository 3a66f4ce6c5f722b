"""Programs: argv lists, deadlines, CPU time. Only this package uses subprocess; a program ends with its starter."""

from labkit.system.process.companion import Companion, CompanionClient
from labkit.system.process.conversation import Conversation, Conversing
from labkit.system.process.forked import Forked
from labkit.system.process.limits import check as check_limits
from labkit.system.process.limits import exhausted, raise_open_files
from labkit.system.process.piped import Piped
from labkit.system.process.programs import (
    DIE_WITH_US,
    LOCALE,
    Ended,
    Outliving,
    Running,
    all_ended,
    interactive,
    output,
    python,
    raise_priority,
    run,
    streamed,
    wait,
    wait_for_any,
)

__all__ = [
    "DIE_WITH_US",
    "LOCALE",
    "Companion",
    "CompanionClient",
    "Conversation",
    "Conversing",
    "Ended",
    "Forked",
    "Outliving",
    "Piped",
    "Running",
    "all_ended",
    "check_limits",
    "exhausted",
    "interactive",
    "output",
    "python",
    "raise_open_files",
    "raise_priority",
    "run",
    "streamed",
    "wait",
    "wait_for_any",
]
