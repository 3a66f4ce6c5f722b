"""Build topologies and report their state beside what `ip` says in each namespace.

The tests run this as a program, like an experiment's process. The first argument is a JSON list of [name, pairs,
family, parent, compared]. Standard output gets a list of answers.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import msgspec

from labkit.common.errors import LabkitError
from labkit.measure import topologies
from labkit.measure.topologies.state import read
from labkit.system import process

ATTEMPTS = 50
OBJECTS = {"links": ["-d", "link"], "addresses": ["addr"], "routes": ["route"], "routes6": ["-6", "route"]}


def report(name: str, pairs: int, family: int, parent: str | None, compared: bool = True) -> dict[str, Any]:
    """Return the state of one topology, and if it is `compared`, what `ip` says."""
    machine = os.open("/proc/self/ns/net", os.O_RDONLY) if parent else None
    if parent:
        process.output(["ip", "link", "add", parent, "up", "type", "veth", "peer", "name", "far"])
    spec = topologies.Spec(pairs, family=family, parent=parent, machine_netns=machine)
    try:
        with topologies.build(name, spec) as topology:
            return answer(topology) if compared else {"state": msgspec.to_builtins(read.state(topology))}
    except LabkitError as error:
        return {"error": type(error).__name__, "text": str(error)}


def answer(topology: topologies.Topology) -> dict[str, Any]:
    """Return a state that was the same before and after `ip` was asked.

    The kernel gives new interfaces their link-local address, and passes carriers on, up to a second later.
    """
    state = read.state(topology)
    for _ in range(ATTEMPTS):
        seen = {
            space.name: {
                what: json.loads(process.output([*space.prefix, "ip", "-j", *words]) or "[]")
                for what, words in OBJECTS.items()
            }
            for space in topology.namespaces
        }
        before, state = state, read.state(topology)
        if state == before:
            return {"state": msgspec.to_builtins(state), "ip": seen}
    raise AssertionError(f"the state of {topology.name} did not settle: {before} became {state}")


if __name__ == "__main__":
    print(json.dumps([report(*request) for request in json.loads(sys.argv[1])]))
