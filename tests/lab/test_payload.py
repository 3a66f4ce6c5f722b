"""What labkit counts is payload: of TCP with and without segmentation offload, of UDP inside tunnels, too."""

import socket
import struct
import threading
import time
from dataclasses import replace

import pytest

from labkit.measure import topologies
from labkit.measure.endpoints import Endpoint, Pair
from labkit.measure.experiments import DatapathParameters
from labkit.measure.observers.counters.receive_counters import receivers
from labkit.measure.observers.registry import TABLE
from labkit.measure.topologies.network.parts import Cable, CableEnd, Network, Node, Part, Tunnel
from labkit.measure.traffic.base import PORT
from labkit.system import netlink, process

pytestmark = pytest.mark.needs("root", "ethtool", "veth", "bridge", "macvlan", "vxlan")
NAMES = ("loopback", "veth_bridge", "macvlan_bridge", "vxlan", "bridged")
NEAR = 0.004
SENT_BYTES = 20_000_000
BYTES_SENT = 200  # the place of tcpi_bytes_sent in struct tcp_info (linux/tcp.h)
OFF = ("tso", "off", "gso", "off", "gro", "off")
# The server's address at a bridge, whose port its interface becomes, as on a machine with containers.
MOVED = """
address=$(ip -o address show dev {0} scope global | awk '{{print $4}}')
ip link add br0 address $(cat /sys/class/net/{0}/address) type bridge
ip address flush dev {0} && ip link set {0} master br0 && ip link set br0 up
ip address add $address dev br0 {1}
"""


def send_all(pair: Pair) -> int:
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
    info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    for one in (client, server, listener):
        one.close()
    assert not left
    return int(struct.unpack_from("Q", info, BYTES_SENT)[0])


def moved(pair: Pair) -> Pair:
    """Move the server's address to a bridge."""
    server = pair.server
    script = MOVED.format(server.interface, "nodad" if ":" in server.address else "")
    process.output([*server.prefix, "sh", "-ec", script])
    [index] = (one.index for one in netlink.links(server.namespace.netlink) if one.name == "br0")
    return replace(pair, server=replace(server, interface="br0", index=index))


@pytest.mark.parametrize(
    ("name", "family", "offloads"),
    [
        *((name, 4, False) for name in NAMES),
        *((name, 6, True) for name in NAMES),
        ("without timestamps", 4, False),
        pytest.param("pasta_published", 4, True, marks=pytest.mark.needs("user-mode networks")),
    ],
)
def test_counted_bytes_are_payload(name: str, family: int, offloads: bool) -> None:
    """Without offload, 1,514 bytes of a frame are 1,448 of payload (4.6 % less), or 1,428 with IPv6 (6 % less).

    What TCP sends again on a busy machine may arrive twice. Without timestamps, which the TCP of pasta never has, it is
    1,460 of payload.
    """
    built = name if name in topologies.TABLE else "veth"
    with topologies.build(built, topologies.Spec(family=family)) as topology:
        [pair] = topology.pairs
        if name == "without timestamps":
            pair.client.kernel.sysctl("ipv4/tcp_timestamps", 0)
        for end in () if offloads else (pair.client, pair.server):
            process.output([*end.prefix, "ethtool", "-K", end.interface, *OFF])
        if name == "bridged":
            pair = moved(pair)
        counters = receivers([pair], "tcp", None)
        before = counters.read()
        tcp_bytes = send_all(pair)
        counted = (counters.read() - before).received_bytes
    assert counted / SENT_BYTES > 1 - NEAR
    assert counted / tcp_bytes < 1 + NEAR


COUNT, LOST, LENGTH = 500, 100, 400


def joined(outside: int, inside: int) -> Network:
    """Describe two containers that a VXLAN joins, with these versions of IP."""
    own = ("192.0.2.{}", "fd00:9::{}")[outside == 6]
    address = ("10.9.0.{}/24", "fd00:8::{}/64")[inside == 6]
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
    made.bind((end.address, 7000))
    made.settimeout(5)
    return made


@pytest.mark.parametrize(
    ("outside", "inside", "direction"),
    [(4, 6, "forward"), (6, 4, "forward"), (4, 4, "reverse"), (6, 6, "reverse")],
)
def test_counted_datagrams_are_the_programs(outside: int, inside: int, direction: str) -> None:
    """The kernel counts what a tunnel takes out as received, by the version of IP outside; and losses, here of
    datagrams for which no socket is open, are followed on the way of the data."""
    parameters = DatapathParameters(protocol="udp", family=inside, direction=direction)
    with topologies.build_network(joined(outside, inside)) as topology:
        [pair] = topology.pairs
        ends = (pair.client, pair.server) if direction == "forward" else (pair.server, pair.client)
        sender, receiver = map(bound, ends)
        with sender, receiver:
            sender.sendto(b"learn", receiver.getsockname())
            receiver.recv(LENGTH)
            time.sleep(0.1)
            counters = receivers(topology.pairs, "udp", LENGTH, direction)
            before = counters.read()
            with TABLE["counters"].armed(parameters, topology, None) as watch:  # type: ignore[arg-type]
                for _ in range(COUNT):
                    sender.sendto(bytes(LENGTH), receiver.getsockname())
                    receiver.recv(LENGTH)
                counted = counters.read() - before
                for _ in range(LOST):
                    sender.sendto(bytes(LENGTH), (ends[1].address, 7001))
                time.sleep(0.1)
                [loss] = watch.report().observed["loss"]
    assert (counted.received_count, counted.sent_count) == (COUNT, COUNT)
    assert loss["pair"] == ("c1 > c2" if direction == "forward" else "c2 > c1")
    counts = loss["unit"], loss["sent_count"], loss["received_count"], loss["lost_count"]
    assert counts == ("datagrams", COUNT + LOST, COUNT, LOST)
