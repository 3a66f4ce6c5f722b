"""Builds networks and tells who reaches whom in them: a program, run as an experiment's process is. The folder for the
captures in the first argument."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from failing import HOSTS, SUBNETS, leaves_and_spines

from labkit.experiments.reachability import reachability
from labkit.topologies import network, overlay
from labkit.topologies.parts import Network, Route

PINGS = 3


def rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Of the overlay, held against its description and against another one; and of a network that is broken."""
    found = {}
    ecmp = overlay.seed("ecmp", provider="routed")
    with network.build(ecmp) as topology:
        found["overlay"] = reachability(ecmp, topology, PINGS, folder / "overlay")
        static = overlay.seed("static", provider="routed")
        found["another"] = reachability(static, topology, PINGS, folder / "another")
    plain = leaves_and_spines("static")
    with network.build(plain) as topology:
        found["other"] = reachability(_by_the_first_spine(plain), topology, PINGS, folder / "other")
        next(space for space in topology.namespaces if space.name == "s2").sysctl("ipv4/ip_forward", 0)
        found["broken"] = reachability(plain, topology, PINGS, folder / "broken")
    return found


def _by_the_first_spine(plain: Network) -> Network:
    """The description with the leaves' routes over the other spine."""
    parts = (
        msgspec.structs.replace(part, via=f"{SUBNETS[part.at, 's1']}.1")
        if isinstance(part, Route) and part.at in HOSTS
        else part
        for part in plain.parts
    )
    return msgspec.structs.replace(plain, parts=tuple(parts))


if __name__ == "__main__":
    print(json.dumps(rows(Path(sys.argv[1]))))
