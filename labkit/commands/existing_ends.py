"""Ask about two existing ends, on this machine or through ssh on theirs."""

import argparse
from ipaddress import ip_address
from typing import Any

from labkit.commands.messages import note
from labkit.common import existing_names
from labkit.common.errors import BadInput
from labkit.runner import run as running

FORMS = "container:NAME, netns:NAME, pid:N, host; on another machine ssh:MACHINE/ before it"


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add what chooses among several addresses of the ends."""
    text = "of several addresses, those of this version of IP"
    parser.add_argument("--family", type=int, choices=(4, 6), help=text)
    text = "of several addresses of an end this one (once for each end)"
    parser.add_argument("--address", action="append", metavar="A", help=text)


def choice(given: argparse.Namespace) -> dict[str, Any]:
    """Return what `add_choice` parsed. Raises BadInput for what is no address."""
    try:
        only = [str(ip_address(one)) for one in given.address or ()]
    except ValueError as error:
        raise BadInput(f"--address: {error}") from None
    return {"family": given.family, "only": only}


def ask(question: str, client: str, server: str, **given: Any) -> dict[str, Any]:
    """Return the answer of `existing.questions`. Raises the errors of names, of ends, and of the connection."""
    placed = existing_names.machines(client, server)
    where, *others = dict.fromkeys(where for where, _name in placed)
    if others:
        from labkit.runner import across  # only ends on two machines need it

        return across.QUESTIONS[question](placed, note, **given)
    given = {"client": placed[0][1], "server": placed[1][1], **given}
    if where == "here":
        from labkit.measure.existing.questions import QUESTIONS  # only these commands need it

        return QUESTIONS[question](**given)
    [event] = running.ask(where, {"do": "existing", "question": question, "given": given}, note)
    answer: dict[str, Any] = event["answer"]
    return answer
