"""Send datagrams between two containers that a VXLAN joins, and report how many labkit counts. The tests run this as a
program, like an experiment's process.

The first argument is a JSON list of requests: [IP version outside, inside, direction]. Standard output gets a JSON list
of answers: the datagrams by the receive counters, and the losses by the observer counters.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any

from labkit.measure import topologies
from labkit.measure.endpoints import Endpoint
from labkit.measure.experiments import DatapathParameters
from labkit.measure.observers.counters.receive_counters import receivers
from labkit.measure.observers.registry import TABLE
from labkit.measure.topologies.network.parts import Cable, CableEnd, Network, Node, Part, Tunnel
from labkit.system import netlink

SENT, LOST, PORT, LENGTH = 500, 100, 7000, 400


def network(outside: int, inside: int) -> Network:
    """Describe two containers that a VXLAN joins, with these versions of IP."""
    own, address = (
        ("192.0.2.{}", "fd00:9::{}")[outside == 6],
        ("10.9.0.{}/24", "fd00:8::{}/64")[inside == 6],
    )
    parts: list[Part] = []
    for number, other in ((1, 2), (2, 1)):
        at, near, far = f"c{number}", own.format(number), own.format(other)
        tunnel = Tunnel(
            "vxlan", at, "eth0", far, local=near, id=7, link="wan", address=address.format(number)
        )
        parts += [Node(at, container=True), tunnel]
    wan = (
        CableEnd(f"c{number}", "wan", f"{own.format(number)}/{24 if outside == 4 else 64}")
        for number in (1, 2)
    )
    return Network("direct", (*parts, Cable(*wan)), (("c1", "c2"),))


def bound(end: Endpoint) -> socket.socket:
    with netlink.inside(end.namespace.fd):
        made = socket.socket(socket.AF_INET6 if ":" in end.address else socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((end.address, PORT))
    made.settimeout(5)
    return made


def answer(outside: int, inside: int, direction: str) -> dict[str, Any]:
    """Return the counts of SENT datagrams, and of LOST ones for which no socket is open."""
    parameters = DatapathParameters(protocol="udp", family=inside, direction=direction)
    with topologies.build_network(network(outside, inside)) as topology:
        [pair] = topology.pairs
        ends = (pair.client, pair.server) if direction == "forward" else (pair.server, pair.client)
        sender, receiver = map(bound, ends)
        sender.sendto(b"learn", receiver.getsockname())
        receiver.recv(LENGTH)
        time.sleep(0.1)
        counters = receivers(topology.pairs, "udp", LENGTH, direction)
        before = counters.read()
        with TABLE["counters"].armed(parameters, topology, None) as watch:  # type: ignore[arg-type]
            for _ in range(SENT):
                sender.sendto(bytes(LENGTH), receiver.getsockname())
                receiver.recv(LENGTH)
            counted = counters.read() - before
            for _ in range(LOST):
                sender.sendto(bytes(LENGTH), (ends[1].address, PORT + 1))
            time.sleep(0.1)
            losses = watch.report().observed["loss"]
        return {"counted": counted.received_count, "sent": counted.sent_count, "losses": losses}


if __name__ == "__main__":
    print(json.dumps([answer(*request) for request in json.loads(sys.argv[1])]))
