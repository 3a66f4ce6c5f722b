"""`labkit draw`: draw a topology."""

import argparse
from pathlib import Path

import msgspec

from labkit.commands import arguments, existing_ends
from labkit.commands.messages import json_text, note
from labkit.common import existing_names, run_folder, topology_state
from labkit.common.errors import BadInput
from labkit.common.limits import Within
from labkit.common.printable import printable
from labkit.runner import run as running

NOTES = """\
The drawing shows what the kernel reports, not what was requested. docs/network.yaml is an example
of a network as a file. Nodes and links of a containerlab file are drawn, too; what it leaves out is said.

    labkit draw veth_bridge pairs=2
    labkit draw docs/network.yaml --mermaid
    labkit draw docs/network.yaml --svg network.svg
    labkit draw lab.clab.yml

Two names draw the path between two ends that are already there, as root: container:NAME (of Docker,
Podman or a CRI), netns:NAME, pid:NUMBER, or host; on another machine, ssh:MACHINE/ before it.
Nothing is sent, and nothing changed.

    labkit draw container:web container:cli
    labkit draw ssh:node1/container:web ssh:node2/container:cli
    labkit draw container:web container:cli --port 8080

--port: a port of this machine that leads to the second end. The path has the rule or the program that
does it.
"""

JSON = {
    "topology": "its name",
    "kernel": "the kernel's release",
    "pairs": "a list of pairs, a client and a server each: `name`, `namespace`, `interface`, `address`",
    "namespaces": "a list: `name`; `interfaces` (`name`, `index`, `kind`, `mode`, `up`, `carrier`, `mtu_bytes`,"
    " `mac`, `addresses`, `master`, `peer`, `lower`, `tunnel`, `copies`, `redirect`); `routes` (`to`, `hops`, `source`,"
    " `metric`, `connected`, `limits`); of an existing network also `rules`, `published`, and each interface's `qdisc`"
    " and `offloads`",
    "forward": "the interfaces that a packet passes from the first client to its server, and the rule or program on the"
    " way: `namespace`, `interface`, `direction`, `skips` (the interface before it that a redirect skips)",
    "back": "the same from server to client",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_topology(parser)
    parser.add_argument("--port", type=int, metavar="N", help="a published port that leads to the second end")
    existing_ends.add_choice(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--mermaid", action="store_true", help="print a Mermaid flowchart")
    arguments.add_json(form, "print everything that the kernel reports as one JSON object")
    form.add_argument(
        "--html", type=Path, metavar="FILE", help="write a figure as an HTML file that works offline"
    )
    form.add_argument("--svg", type=Path, metavar="FILE", help="write the figure as SVG, drawn by a browser")


def run(given: argparse.Namespace) -> int:
    from labkit.analysis import drawing

    state = _existing(given) if existing_names.is_end(given.topology) else _built(given)
    if path := given.html or given.svg:
        from labkit.analysis.drawing import figure

        run_folder.write(path, figure.page(state).encode() if given.html else figure.svg(state))
        print(f"drawing: {printable(run_folder.display_path(path))}")
    elif given.json:
        print(json_text(state))
    else:
        draw = drawing.mermaid if given.mermaid else drawing.tree
        print(printable(draw(state)), end="")
    return 0


def _built(given: argparse.Namespace) -> topology_state.State:
    """Build the topology for a moment, and return its state."""
    arguments.refuse(given, ("port", "family", "address"), "without two existing ends")
    request = running.one_topology(given.topology, arguments.name_value_pairs(given.parameters))
    [answer] = running.ask(request["parameters"]["where"], {"do": "draw", **request}, note)
    return msgspec.convert(answer["state"], topology_state.State)


def _existing(given: argparse.Namespace) -> topology_state.State:
    """Return the state of the path between two existing ends."""
    if len(given.parameters) != 1:
        raise BadInput(f"{given.topology} is one end: name the other one, and nothing else, for example host")
    Within(1, 65535).check("--port", given.port)
    choice = existing_ends.choice(given)
    answer = existing_ends.ask("draw", given.topology, given.parameters[0], port=given.port, **choice)
    if answer["gap"] is not None:
        note(answer["gap"])
    for one in answer["others"] if not given.json else ():
        note(f"not drawn: {one}")
    return msgspec.convert(answer["state"], topology_state.State)
