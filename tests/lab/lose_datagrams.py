"""Send datagrams on paths that lose some, and report where labkit saw the losses.

The tests run this as a program, like an experiment's process. The first argument is a JSON list of topologies. Standard
output gets a JSON list of answers.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from contextlib import ExitStack
from typing import Any

from labkit.measure import topologies
from labkit.measure.experiments import DatapathParameters
from labkit.measure.observers.registry import TABLE
from labkit.measure.topologies.base import BETWEEN
from labkit.measure.traffic import ping
from labkit.system import netlink, process

SENT, PORT, LENGTH = 3000, 7000, 400


def bound(space: Any, address: str, family: int) -> socket.socket:
    with netlink.inside(space.fd):
        made = socket.socket(socket.AF_INET6 if family == 6 else socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address, PORT))
    return made


def answer(name: str, family: int, pairs: int, length: int = LENGTH) -> dict[str, Any]:
    """Return the counters of two paths after SENT datagrams to each.

    The first server's path has a queue for only a few datagrams. Nobody reads from the second server's socket.
    """
    parameters = DatapathParameters(topology=(name,), protocol="udp", family=family)
    with topologies.build(name, topologies.Spec(pairs, family=family)) as topology, ExitStack() as stack:
        narrow = next((space for space in topology.namespaces if space.name == BETWEEN), None)
        queue = ["tbf", "rate", "20mbit", "burst", "5kb", "limit", "20kb"]
        if name == "veth_bridge" and narrow is not None:
            process.output([*narrow.prefix, "tc", "qdisc", "add", "dev", "port1", "root", *queue])
        # This also lets the bridge learn all addresses.
        assert ping.reachable(topology.pairs, 1500, family) is None
        ends = [
            [
                stack.enter_context(bound(end.namespace, end.address, family))
                for end in (pair.client, pair.server)
            ]
            for pair in topology.pairs
        ]
        watch = stack.enter_context(TABLE["counters"].armed(parameters, topology, None))  # type: ignore[arg-type]
        with watch.counting():
            read = [send(*both, length, empties=number == 0) for number, both in enumerate(ends)]
            time.sleep(0.3)  # wait for the rest of the queue
            read[0] += drained(ends[0][1])
        for both in ends:
            both[1].close()  # drops the datagrams that nobody has read
        return {"observed": watch.report().observed, "read": read, "family": family}


def send(client: socket.socket, server: socket.socket, length: int, *, empties: bool) -> int:
    """Send SENT datagrams. Return how many were read meanwhile."""
    read = 0
    for _ in range(SENT):
        client.sendto(bytes(length), server.getsockname())
        read += drained(server) if empties else 0
    return read


def drained(server: socket.socket) -> int:
    """Read everything available. Return the number of datagrams."""
    server.setblocking(False)
    for count in range(1 << 30):
        try:
            server.recv(LENGTH)
        except BlockingIOError:
            return count
    return 0


if __name__ == "__main__":
    print(json.dumps([answer(*request) for request in json.loads(sys.argv[1])]))
