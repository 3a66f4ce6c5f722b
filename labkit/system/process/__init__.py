"""Programs: argv lists, deadlines, CPU time. Only this package uses subprocess; a program ends with its starter."""

from labkit.system.process.conversation import (
    Companion,
    CompanionClient,
    Conversation,
    Conversing,
    Forked,
    LineBuffer,
    Lines,
    Piped,
    how_ended,
)
from labkit.system.process.limits import check as check_limits
from labkit.system.process.limits import exhausted, raise_open_files
from labkit.system.process.programs import (
    DIE_WITH_US,
    Ended,
    Running,
    all_ended,
    ended_by_signals,
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
    "DIE_WITH_US", "Companion", "CompanionClient", "Conversation", "Conversing", "Ended", "Forked",
    "LineBuffer", "Lines", "Piped", "Running", "all_ended", "check_limits", "ended_by_signals", "exhausted",
    "how_ended", "interactive", "output", "python", "raise_open_files", "raise_priority", "run", "streamed", "wait",
    "wait_for_any",
]  # fmt: skip
