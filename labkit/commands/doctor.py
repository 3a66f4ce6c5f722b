"""`labkit doctor`: show what a kernel and its machine can do."""

import argparse
from typing import Any

from labkit.commands import arguments, doctor_text
from labkit.commands.messages import json_text, note
from labkit.common.errors import Failed
from labkit.measure.agent import main as agent_main
from labkit.runner import run as running

NOTES = """\
The doctor tries each capability instead of asking for versions. It says in five lines what works, what is
missing, and how to get it; with --all, one line for each capability says what it is for. With --datapaths it builds
every topology, and lists them by model (draft-ietf-bmwg-containerized-infra).

    labkit doctor
    labkit doctor --all
    labkit doctor --datapaths
    labkit doctor --where vm:debian
    labkit doctor --where ssh:NAME
"""

JSON = {
    "machine": "the columns that describe the host (`labkit rows --columns`)",
    "details": "what lscpu and the system say about it; its fields depend on the machine",
    "capabilities": "a list: `group`, `name`, `available` (null: not tested), `detail`, `lost` (what is"
    " not possible without it), `remedy` (how to get it)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_json(parser)
    parser.add_argument("--all", action="store_true", help="one line for each capability")
    parser.add_argument("--datapaths", action="store_true", help="one line for each topology, which is built")
    text = "examine a lab VM (vm:KERNEL) or another machine (ssh:NAME) instead of this one"
    parser.add_argument("--where", default="here", metavar="HOST", help=text)


def run(given: argparse.Namespace) -> int:
    try:
        where, request = given.where, dict[str, Any](do="doctor")
        if given.datapaths:
            request["topologies"] = True
        if where.startswith("vm:"):
            # The lab VM is discarded afterwards, so loaded modules may stay. In this profile one thread emulates all
            # CPUs, which makes it safe to arm tracers.
            where += "" if ",profile=" in where else ",profile=tracing"
            request |= {"alone": True}
        events = running.ask(where, request, note)
        answer = next(event for event in events if event["event"] == "doctor")
    except Failed as error:
        if given.where != "here":
            raise
        # The doctor is needed most if no namespace can be created, so it then probes without one.
        note(str(error))
        answer = next(agent_main.doctor({"topologies": given.datapaths}))
    del answer["event"]
    every = given.all or given.datapaths
    print(json_text(answer) if given.json else doctor_text.as_text(answer, every=every).removesuffix("\n"))
    return 0
