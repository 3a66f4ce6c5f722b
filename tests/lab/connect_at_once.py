"""Connect over new topologies at once, and report what TCP sent again. The tests run this as a program, like an
experiment's process.

The first argument is a JSON list of requests: [topology, IP version, number of builds]. Standard output gets a JSON
list of the segments that TCP sent again in all of them.
"""

from __future__ import annotations

import json
import socket
import struct
import sys

from labkit.measure import topologies
from labkit.system import netlink

TOTAL_RETRANS = 100  # the place of tcpi_total_retrans in struct tcp_info (linux/tcp.h)


def sent_again(name: str, family: int) -> int:
    """Build the topology and connect once; return the segments that TCP sent again."""
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    with topologies.build(name, topologies.Spec(pairs=1, family=family)) as topology:
        [pair] = topology.pairs
        with netlink.inside(pair.server.namespace.fd):
            listener = socket.create_server((pair.server.address, 0), family=kind)
        with netlink.inside(pair.client.namespace.fd):
            client = socket.socket(kind)
        with listener, client:
            client.connect(listener.getsockname()[:2])
            [count] = struct.unpack_from(
                "I", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), TOTAL_RETRANS
            )
            return int(count)


if __name__ == "__main__":
    answers = [
        sum(sent_again(name, family) for _ in range(builds))
        for name, family, builds in json.loads(sys.argv[1])
    ]
    print(json.dumps(answers))
