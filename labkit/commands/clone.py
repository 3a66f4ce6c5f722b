"""`labkit clone`: write an existing network as a file of parts."""

import argparse
from typing import Any

import msgspec
import yaml

from labkit.commands import existing_ends
from labkit.common.printable import printable
from labkit.measure.topologies import Network

NOTES = """\
The ends are named as for `labkit draw`. The copy is a network of parts: nodes, bridges, cables, devices
on others, tunnels, routes with their limits, permanent neighbours, with their MTU, addresses, offloads,
ports of bridges and their VLANs, rules of nftables, sysctls, and the queues that an impairment can be.
It is built once, without traffic, to see how it differs from the original. What it lacks is listed in
comments. Between ends on two machines, a cable or a router stands for the network that joins the
machines. What is printed is a file as docs/network.yaml is: draw, run (topology=FILE.yaml) and all that
works on networks works on the copy.

    labkit clone container:web container:cli
    labkit clone ssh:node1/container:web ssh:node2/container:cli
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("client", metavar="END", help=existing_ends.FORMS)
    parser.add_argument("server", metavar="END", help="the other end")
    existing_ends.add_choice(parser)
    parser.add_argument("--name", default="copy", help="the name of the network (copy)")


def run(given: argparse.Namespace) -> int:
    answer = existing_ends.ask(
        "clone", given.client, given.server, name=given.name, **existing_ends.choice(given)
    )
    network = msgspec.convert(answer["network"], Network)
    lines = [
        f"# A copy of the path from {given.client} to {given.server}.",
        *(f"# It lacks {one}." for one in answer["lacks"]),
    ]
    print(printable("\n".join(lines)))
    print(printable(text(network)), end="")
    return 0


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines, as rules are, line by line."""


def _lines(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _lines)


def text(network: Network) -> str:
    """Return a network as the content of a file."""
    return yaml.dump(_plain(network), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120)


def _plain(network: Network) -> dict[str, Any]:
    """Return a network as a file has it, without values that are the usual ones."""
    whole = msgspec.to_builtins(network)
    if not network.as_is:
        del whole["as_is"]
    for described, part in zip(whole["parts"], network.parts, strict=True):
        for field in msgspec.structs.fields(part):
            if field.name in described and getattr(part, field.name) == field.default:
                del described[field.name]
        for name, value in described.items():
            while isinstance(value, list | tuple) and name in ("one", "other") and value[-1] in (None, False):
                value = described[name] = list(value[:-1])
    return {**whole, "pairs": [list(pair) for pair in network.pairs]}
