"""Build networks and report who reaches whom. The tests run this as a program, like an experiment's process.

The first argument is the folder for the captures.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from fail_spines import HOSTS, SUBNETS, leaves_and_spines

from labkit.measure.topologies.network import build
from labkit.measure.topologies.network.parts import Network, Route
from studies.overlay import tenants
from studies.overlay.reachability import reachability

PINGS = 3


def rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the overlay, of a network that is compared with another description, and of a broken one."""
    result = {}
    ecmp = tenants.network("ecmp", 1500, 1426, "routed")
    with build.build(ecmp) as topology:
        result["overlay"] = reachability(ecmp, topology, PINGS, folder / "overlay")
    plain = leaves_and_spines("static")
    with build.build(plain) as topology:
        result["other"] = reachability(_by_the_first_spine(plain), topology, PINGS, folder / "other")
        next(space for space in topology.namespaces if space.name == "s2").sysctl("ipv4/ip_forward", 0)
        result["broken"] = reachability(plain, topology, PINGS, folder / "broken")
    return result


def _by_the_first_spine(plain: Network) -> Network:
    """Return the description in which the leaves' routes use the first spine only."""
    parts = (
        msgspec.structs.replace(part, via=f"{SUBNETS[part.at, 's1']}.1")
        if isinstance(part, Route) and part.at in HOSTS
        else part
        for part in plain.parts
    )
    return msgspec.structs.replace(plain, parts=tuple(parts))


if __name__ == "__main__":
    print(json.dumps(rows(Path(sys.argv[1]))))
