"""Sends datagrams on ways that lose some, and tells where labkit saw them go: a program, run as an experiment's process
is. A JSON list of topologies in the first argument, a JSON list of answers on standard output."""

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
    """A queue of the first server's way that takes a few datagrams only, and a socket of the second's that nobody
    empties: what the counters say of both after SENT datagrams to each."""
    parameters = DatapathParameters(topology=(name,), protocol="udp", family=family)
    with topologies.build(name, topologies.Spec(pairs, family=family)) as topology, ExitStack() as stack:
        narrow = next((space for space in topology.namespaces if space.name == BETWEEN), None)
        queue = ["tbf", "rate", "20mbit", "burst", "5kb", "limit", "20kb"]
        if name == "veth_bridge" and narrow is not None:
            process.output([*narrow.prefix, "tc", "qdisc", "add", "dev", "port1", "root", *queue])
        assert ping.reachable(topology.pairs, 1500, family) is None  # the bridge has learnt who is where
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
            time.sleep(0.3)  # what still is in the queue
            read[0] += drained(ends[0][1])
        for both in ends:
            both[1].close()  # what nobody has read
        return {"observed": watch.report().observed, "read": read, "family": family}


def send(client: socket.socket, server: socket.socket, length: int, *, empties: bool) -> int:
    """Send SENT datagrams; how many have been read meanwhile."""
    read = 0
    for _ in range(SENT):
        client.sendto(bytes(length), server.getsockname())
        read += drained(server) if empties else 0
    return read


def drained(server: socket.socket) -> int:
    """Read all that is there; how many there were."""
    server.setblocking(False)
    for count in range(1 << 30):
        try:
            server.recv(LENGTH)
        except BlockingIOError:
            return count
    return 0


if __name__ == "__main__":
    print(json.dumps([answer(*request) for request in json.loads(sys.argv[1])]))
