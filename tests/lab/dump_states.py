"""Build topologies and report their state beside what `ip` says in each namespace.

The tests run this as a program, like an experiment's process. The first argument is a JSON list of [name, pairs,
family, parent]. Standard output gets a list of answers.
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

OBJECTS = {"links": ["-d", "link"], "addresses": ["addr"], "routes": ["route"], "routes6": ["-6", "route"]}


def report(name: str, pairs: int, family: int, parent: str | None) -> dict[str, Any]:
    """Return the state of one topology, and what `ip` says."""
    machine = os.open("/proc/self/ns/net", os.O_RDONLY) if parent else None
    if parent:
        process.output(["ip", "link", "add", parent, "up", "type", "veth", "peer", "name", "far"])
    spec = topologies.Spec(pairs, family=family, parent=parent, machine_netns=machine)
    try:
        with topologies.build(name, spec) as topology:
            seen = {
                space.name: {
                    what: json.loads(process.output([*space.prefix, "ip", "-j", *words]) or "[]")
                    for what, words in OBJECTS.items()
                }
                for space in topology.namespaces
            }
            return {"state": msgspec.to_builtins(read.state(topology)), "ip": seen}
    except LabkitError as error:
        return {"error": type(error).__name__, "text": str(error)}


if __name__ == "__main__":
    print(json.dumps([report(*request) for request in json.loads(sys.argv[1])]))
