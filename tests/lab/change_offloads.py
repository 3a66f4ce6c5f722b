"""Switch the offloads and the queueing discipline of a topology's first client: `change_offloads.py TOPOLOGY`.

Prints what the arm reports for both ends beside what ethtool and ip report.
"""

from __future__ import annotations

import json
import sys

from labkit.measure import topologies
from labkit.measure.endpoints import Endpoint
from labkit.measure.experiments import built_arm
from labkit.system import machine, process


def answer(end: Endpoint) -> dict[str, object]:
    """Return the settings as read by netlink and by programs."""
    prefix, interface = end.prefix, end.interface
    return {
        "offloads": [built_arm.offloads(end), machine.offloads(prefix, interface)],
        "qdisc": [built_arm.qdisc(end), machine.qdisc(prefix, interface)],
    }


with topologies.build(sys.argv[1], topologies.Spec()) as built:
    client, server = built.pairs[0].client, built.pairs[0].server
    before = [answer(client), answer(server)]
    process.output([*client.prefix, machine.program("ethtool"), "-K", client.interface, "tso", "off"])
    process.output(
        [*client.prefix, machine.program("tc"), "qdisc", "add", "dev", client.interface, "root", "pfifo"]
    )

    def no_program(name: str) -> str:
        raise AssertionError(f"{name} was started")

    after = [answer(client), answer(server)]
    machine.interfaces.program = no_program  # type: ignore[assignment]
    alone = [built_arm.offloads(client), built_arm.qdisc(client)]
print(json.dumps({"before": before, "after": after, "alone": alone}))
