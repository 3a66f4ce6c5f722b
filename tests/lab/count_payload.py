"""Send a number of bytes over TCP, and report what labkit's counters say about them. The tests run this as a program,
like an experiment's process.

The first argument is a JSON list of requests: [topology, IP version, whether segmentation offload stays on]; the server
of BRIDGED has its address at a bridge, as a machine with containers does. Standard output gets a JSON list of errors,
or of two ratios each: the counted bytes, divided by those of the program, and by those that TCP sent, which includes
what it sent again.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from dataclasses import replace

from labkit.common.errors import LabkitError
from labkit.measure import topologies
from labkit.measure.observers.counters.receive_counters import receivers
from labkit.measure.traffic.base import PORT
from labkit.system import netlink, process

SENT_BYTES = 20_000_000
BYTES_SENT = 200  # the place of tcpi_bytes_sent in struct tcp_info (linux/tcp.h)
OFF = ("tso", "off", "gso", "off", "gro", "off")
BRIDGED = "bridged"
MOVED = """
address=$(ip -o address show dev {0} scope global | awk '{{print $4}}')
ip link add br0 address $(cat /sys/class/net/{0}/address) type bridge
ip address flush dev {0} && ip link set {0} master br0 && ip link set br0 up
ip address add $address dev br0 {1}
"""


def send_all(pair: topologies.Pair) -> int:
    """Send SENT_BYTES from the client to the server, and wait until the server has read all of them.

    Return the bytes that TCP sent.
    """
    kind = socket.AF_INET6 if ":" in pair.server.address else socket.AF_INET
    with netlink.inside(pair.server.namespace.fd):
        listener = socket.create_server((pair.server.address, PORT), family=kind)
    with netlink.inside(pair.client.namespace.fd):
        client = socket.socket(kind)
    client.connect((pair.server_address, PORT))
    sender = threading.Thread(target=lambda: (client.sendall(bytes(SENT_BYTES)), client.shutdown(1)))
    sender.start()
    server, _ = listener.accept()
    left = SENT_BYTES
    while part := server.recv(1 << 20):
        left -= len(part)
    sender.join()
    [tcp_bytes] = struct.unpack_from(
        "Q", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), BYTES_SENT
    )
    for one in (client, server, listener):
        one.close()
    assert not left
    return int(tcp_bytes)


def moved(pair: topologies.Pair) -> topologies.Pair:
    """Move the server's address to a bridge, whose port its interface becomes."""
    server = pair.server
    script = MOVED.format(server.interface, "nodad" if ":" in server.address else "")
    process.output([*server.prefix, "sh", "-ec", script])
    [index] = (one.index for one in netlink.links(server.namespace.netlink) if one.name == "br0")
    return replace(pair, server=replace(server, interface="br0", index=index))


def counted(name: str, family: int, offloads: bool) -> tuple[float, float] | str:
    """Return the counted bytes of payload, divided by those of the program and by those that TCP sent."""
    try:
        built = "veth" if name == BRIDGED else name
        with topologies.build(built, topologies.Spec(pairs=1, family=family)) as topology:
            [pair] = topology.pairs
            for end in () if offloads else (pair.client, pair.server):
                process.output([*end.prefix, "ethtool", "-K", end.interface, *OFF])
            if name == BRIDGED:
                pair = moved(pair)
            counters = receivers([pair], "tcp", None)
            before = counters.read()
            tcp_bytes = send_all(pair)
            size = (counters.read() - before).received_bytes
            return size / SENT_BYTES, size / tcp_bytes
    except LabkitError as error:
        return str(error)


if __name__ == "__main__":
    print(json.dumps([counted(*request) for request in json.loads(sys.argv[1])]))
