"""Ask about two existing ends, on this machine or through ssh on theirs."""

from typing import Any

from labkit.commands.messages import note
from labkit.common import existing_names
from labkit.runner import run as running

FORMS = "container:NAME, netns:NAME, pid:N, host; on another machine ssh:MACHINE/ before both"


def ask(question: str, client: str, server: str, **given: Any) -> dict[str, Any]:
    """Return the answer of `existing.questions`. Raises the errors of names, of ends, and of the connection."""
    where, *ends = existing_names.machine(client, server)
    given = {"client": ends[0], "server": ends[1], **given}
    if where == "here":
        from labkit.measure.existing.questions import QUESTIONS  # only these commands need it

        return QUESTIONS[question](**given)
    [event] = running.ask(where, {"do": "existing", "question": question, "given": given}, note)
    answer: dict[str, Any] = event["answer"]
    return answer
