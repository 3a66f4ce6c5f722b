"""Switch the offloads and the queueing discipline of a topology's first client: `change_offloads.py TOPOLOGY`.

Prints what the arm reports for both ends beside what ethtool and ip report.
"""

from __future__ import annotations

import json
import sys

from labkit.measure import topologies
from labkit.measure.endpoints import Endpoint
from labkit.system import machine, process


def answer(end: Endpoint) -> dict[str, object]:
    """Return the settings as read by netlink and by programs."""
    prefix, interface = end.prefix, end.interface
    return {
        "offloads": [end.kernel.offloads(interface), machine.offloads(prefix, interface)],
        "qdisc": [end.kernel.qdisc(interface, end.index), machine.qdisc(prefix, interface)],
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
    alone = [client.kernel.offloads(client.interface), client.kernel.qdisc(client.interface, client.index)]
print(json.dumps({"before": before, "after": after, "alone": alone}))
