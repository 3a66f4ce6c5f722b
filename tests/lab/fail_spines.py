"""Build two hosts, two leaves and two spines, let a spine fail, and report the effect.

The tests run this as a program, like an experiment's process. Arguments: a kind of routes, and a list of [how,
ignores_linkdown].
"""

from __future__ import annotations

import json
import sys
from typing import Any

from labkit.measure.topologies.network import build
from labkit.measure.topologies.network.parts import Cable, CableEnd, Network, Node, Part, Route
from labkit.system import netlink
from studies.overlay import spine_failure

TIMES_S = (0.6, 1.0, 2.0)  # before the failure, while the spine is down, and after it has come back
SUBNETS = {("l1", "s1"): "10.1.1", ("l1", "s2"): "10.1.2", ("l2", "s1"): "10.2.1", ("l2", "s2"): "10.2.2"}
HOSTS = {"l1": "10.9.1", "l2": "10.9.2"}


def leaves_and_spines(routes: str) -> Network:
    """Describe a host at each leaf and both leaves at both spines. Routes are plain, over the second spine, or over
    both."""
    parts: list[Part] = [Node(name, forwards=True) for name in ("l1", "l2", "s1", "s2")]
    for leaf, other in (("l1", "l2"), ("l2", "l1")):
        host, net = f"h{leaf[1]}", HOSTS[leaf]
        parts += [
            Node(host, container=True),
            Cable(CableEnd(host, "up", f"{net}.2/24"), CableEnd(leaf, "down", f"{net}.1/24")),
            Route(host, "default", via=f"{net}.1"),
        ]
        for spine in ("s1", "s2"):
            link = SUBNETS[leaf, spine]
            parts += [
                Cable(
                    CableEnd(leaf, f"{leaf}_{spine}", f"{link}.2/24"),
                    CableEnd(spine, f"{spine}_{leaf}", f"{link}.1/24"),
                ),
                Route(spine, f"{net}.0/24", via=f"{link}.2"),
            ]  # fmt: skip
        one, two = (f"{SUBNETS[leaf, spine]}.1" for spine in ("s1", "s2"))
        to = f"{HOSTS[other]}.0/24"
        parts.append(Route(leaf, to, via=(two, one) if routes == "ecmp" else two))
        if routes == "metric":
            parts.append(Route(leaf, to, via=one, metric=100))
    return Network("leaves_and_spines", tuple(parts), (("h1", "h2"),))


def rows(routes: str, parameters: list[tuple[str, bool]]) -> list[dict[str, Any]]:
    """Return the rows of several failures, one after the other, in the same network."""
    described = leaves_and_spines(routes)
    with build.build(described) as topology:
        indexes = [
            link.index
            for space in topology.namespaces
            for link in netlink.links(space.netlink)
            if link.index >= netlink.FIRST_INDEX
        ]
        # If a veth has the same index at both ends, the kernel may report a lost carrier a second late.
        assert len(indexes) == len(set(indexes)), indexes
        return [
            spine_failure.failure(
                described, topology, how, ignores_linkdown=ignores, interval_s=0.01, times_s=TIMES_S
            )
            for how, ignores in parameters
        ]


if __name__ == "__main__":
    print(json.dumps(rows(*json.loads(sys.argv[1]))))
