"""Build switches and report what their own tools show. The tests run this as a program, like an experiment's process.

The first argument is a JSON list of requests. Standard output gets a JSON list of answers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from labkit.common.errors import LabkitError
from labkit.measure import topologies
from labkit.measure.traffic import ping
from labkit.system import process

PINGS = 50
QUIET_S = 0.2
PATIENCE_S = 10.0
COUNTED = ("switched_count", "copies_expected_count", "copies_count", "copies_unread_count")


def report(topology: topologies.Topology, *argv: str) -> str:
    """Return what an Open vSwitch command prints in the switch's namespace."""
    switch = topology.switch
    assert switch is not None
    run = ["env", f"OVS_RUNDIR={switch.folder}"]
    return process.output([*switch.space.prefix, *run, *argv])


def seen(topology: topologies.Topology, stray: bool) -> dict[str, Any]:
    """Return what ping, ovs-vsctl, and the counters show."""
    switch = topology.switch
    assert switch is not None
    assert topology.meter is not None
    words = ping.reachable(topology.pairs, topology.spec.mtu_bytes, topology.spec.family)
    # A copy that arrives late would be counted with the pings.
    settled(topology.meter(), "what was sent before")
    end = topology.meter()
    for pair in topology.pairs:
        ping.answered(pair.client, pair.server.address, PINGS, 56)
    counted = settled(end, "the pings")
    database = f"--db=unix:{switch.folder / 'db.sock'}"
    return {
        "reachable": words,
        "counted": counted,
        "ports": report(topology, "ovs-vsctl", database, "list-ports", "switch").split(),
        "datapath": report(
            topology, "ovs-vsctl", database, "get", "bridge", "switch", "datapath_type"
        ).strip(),
        "mirrors": report(
            topology, "ovs-vsctl", database, "--bare", "--columns=name", "list", "mirror"
        ).split(),
        "flows": switch.command("dpctl/dump-flows"),
        "readers": [one for one in readers() if stray],
        "offloads": process.output([*topology.pairs[0].client.prefix, "ethtool", "-k", "eth0"]),
        "words": switch.words(),
    }


def settled(end: Callable[[], dict[str, Any]], what: str) -> dict[str, Any]:
    """Return the counters once they have not changed for QUIET_S. The switch delivers a packet before its last copy."""
    deadline, seen, since = time.monotonic() + PATIENCE_S, end(), time.monotonic()
    while time.monotonic() < since + QUIET_S:
        time.sleep(0.01)
        now = end()
        if any(now.get(name) != seen.get(name) for name in COUNTED):
            seen, since = now, time.monotonic()
        assert time.monotonic() < deadline, f"the switch still counts packets {PATIENCE_S:g} s after {what}"
    return seen


def readers() -> list[str]:
    """Return the running tcpdump programs."""
    lines = process.output(["ps", "-e", "-o", "args="]).splitlines()
    return [line for line in lines if line.startswith(("tcpdump", "/usr/bin/tcpdump", "/usr/sbin/tcpdump"))]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Build the requested switch and inspect it."""
    begun = time.monotonic()
    try:
        with topologies.build(request.pop("name"), topologies.Spec(**request)) as topology:
            built_s = time.monotonic() - begun
            return {"built_s": built_s} | seen(topology, True)
    except LabkitError as error:
        return {"error": type(error).__name__, "text": str(error)}


if __name__ == "__main__":
    print(json.dumps([answer(request) for request in json.loads(sys.argv[1])]))
