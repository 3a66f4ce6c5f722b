"""The topologies veth_published_proxy and veth_published_nat: a veth bridge whose host publishes the servers' ports.

A client sends to an address of the host (the namespace between the ends), not to the server's own. Docker publishes the
ports of containers in both ways. By default the kernel translates addresses, and a process (docker-proxy) copies what
the rules leave out: connections from the host itself and, in most versions, from containers on the same bridge. With
`userland-proxy: false` (since Docker 1.7, moby/moby 12165) the kernel translates these, too. In some earlier versions
it did so beside the proxy (moby/moby 4442 and 6810; moby/libnetwork 281).
"""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from labkit.measure.endpoints import Namespace, Pair
from labkit.measure.endpoints.nftables import run_nft
from labkit.measure.topologies.base import (
    BETWEEN,
    Spec,
    Topology,
    address,
    end_address,
    end_name,
    mac,
    numbers,
)
from labkit.measure.topologies.linux_datapaths import veth_bridge
from labkit.measure.topologies.network.build import joined
from labkit.measure.topologies.network.parts import Bridge, Neighbour, Part
from labkit.measure.traffic.base import PORT
from labkit.system import netlink, process

HOST, PUBLISHED = 3, 4  # `side` in the host's own address and in those at which it publishes ports
BRIDGE_MAC = mac(0, 4)
PROXY = "port_proxy"  # the name of a copying process in profiles
COPY_BYTES = 32 * 1024  # the buffer of Go's io.Copy, by which docker-proxy copies TCP
DATAGRAM_BYTES = 65_507  # the buffer of docker-proxy for UDP: the largest datagram
BACKLOG = 128
# After which docker-proxy forgets a client of UDP. Here the client's own datagrams count, too. For the proxy of 2015
# only the server's do, and iperf3's server sends a single one.
IDLE_S = 90.0


@contextmanager
def veth_published_proxy(name: str, spec: Spec) -> Iterator[Topology]:
    """Build a veth bridge, and a process for each server that copies data between its clients and it.

    It copies as docker-proxy did before Go used splice(2) for that (Go 1.11, 2018): TCP through a buffer of 32 KiB, and
    UDP one datagram at a time. The sockets hold megabytes for each pair, and a slice of 100 ms shows how they fill and
    empty. So use whole runs.
    """
    with _published(name, spec) as (topology, between), ExitStack() as stack:
        for pair in topology.pairs:
            _start_proxy(stack, between, pair)
        yield topology


@contextmanager
def veth_published_nat(name: str, spec: Spec) -> Iterator[Topology]:
    """Build a veth bridge whose host translates addresses (nftables): it replaces the published address by the
    server's, and the client's by its own, so that replies come back to it.

    Raises Unsupported without nft(8), or on a kernel without NAT.
    """
    with _published(name, spec) as (topology, between):
        v4 = spec.family == 4
        between.sysctl("ipv4/ip_forward" if v4 else "ipv6/conf/all/forwarding", 1)
        if v4:  # a packet that leaves by the interface where it came in is not a wrong route here
            for interface in ("all", "bridge"):
                between.sysctl(f"ipv4/conf/{interface}/send_redirects", 0)
        _translate(between, topology.pairs, "ip" if v4 else "ip6")
        yield topology


@contextmanager
def _published(name: str, spec: Spec) -> Iterator[tuple[Topology, Namespace]]:
    """Build a veth bridge with an address of the host for each server; yield it and the host."""
    own, alone = address(spec.family, HOST, 0), 32 if spec.family == 4 else 128
    published = [address(spec.family, PUBLISHED, number, alone) for number in range(spec.pairs)]
    plain, bridge = veth_bridge(name, spec), Bridge(BETWEEN, "bridge", str(own), BRIDGE_MAC)
    parts: list[Part] = [bridge if isinstance(part, Bridge) else part for part in plain.parts]
    for number in numbers(spec):
        host = own if number % 2 else published[number // 2]
        parts += [
            Neighbour(BETWEEN, "bridge", str(end_address(spec, number).ip), mac(number)),
            Neighbour(end_name(number), "eth0", str(host.ip), BRIDGE_MAC),
        ]
    with joined(msgspec.structs.replace(plain, parts=tuple(parts)), spec) as built:
        topology, between = built.topology(name, spec), built.space[BETWEEN]
        # At its loopback interface, so that it never sends from them.
        between.netlink.do(*(netlink.new_address(1, one) for one in published))
        between.wait_for_addresses(one.ip for one in published)
        pairs = [
            Pair(pair.client, replace(pair.server, published_address=str(one.ip)))
            for pair, one in zip(topology.pairs, published, strict=True)
        ]
        yield replace(topology, pairs=pairs), between


def _translate(between: Namespace, pairs: Sequence[Pair], family: str) -> None:
    servers = ", ".join(f"{pair.server_address} : {pair.server.address}" for pair in pairs)
    rules = (
        f"add table {family} published",
        f"add chain {family} published incoming {{ type nat hook prerouting priority -100 ; }}",
        f"add chain {family} published outgoing {{ type nat hook postrouting priority 100 ; }}",
        f"add rule {family} published incoming meta l4proto {{ tcp, udp }} th dport {PORT}"
        f" dnat to {family} daddr map {{ {servers} }}",
        f"add rule {family} published outgoing ct status dnat masquerade",
    )
    run_nft(between, rules, "translate addresses", "CONFIG_NFT_NAT, CONFIG_NFT_MASQ")


def _start_proxy(stack: ExitStack, between: Namespace, pair: Pair) -> None:
    """Start the process that copies between the clients of a published port and its server."""
    server = (pair.server.address, PORT)
    with netlink.inside(between.fd), ExitStack() as ours:
        family = socket.AF_INET6 if ":" in pair.server.address else socket.AF_INET
        streams, datagrams = (
            ours.enter_context(socket.socket(family, kind))
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
        )
        for each in (streams, datagrams):
            each.bind((pair.server_address, PORT))
        streams.listen(BACKLOG)

        def work(_connection: socket.socket) -> None:
            Path("/proc/self/comm").write_text(PROXY)
            threading.Thread(target=_copy_datagrams, args=(datagrams, server), daemon=True).start()
            while True:
                client, _address = streams.accept()
                threading.Thread(target=_copy_stream, args=(client, server), daemon=True).start()

        proxy = process.Forked(work, [streams.fileno(), datagrams.fileno()])
    stack.callback(proxy.kill)


def _copy_stream(client: socket.socket, server: tuple[str, int]) -> None:
    """Copy between a client's connection and a new one to the server, in both directions, until both have ended."""
    with client, suppress(OSError), socket.create_connection(server) as behind:
        for one in (client, behind):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as Go does
        back = threading.Thread(target=_copy, args=(behind, client), daemon=True)
        back.start()
        _copy(client, behind)
        back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    buffer = memoryview(bytearray(COPY_BYTES))
    with suppress(OSError):
        while length := source.recv_into(buffer):
            sink.sendall(buffer[:length])
    for one, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with suppress(OSError):
            one.shutdown(how)


def _copy_datagrams(front: socket.socket, server: tuple[str, int]) -> None:
    """Copy datagrams to the server, from a socket for each client."""
    behind: dict[Any, ServerSocket] = {}
    buffer = memoryview(bytearray(DATAGRAM_BYTES))
    while True:
        length, client = front.recvfrom_into(buffer)
        if (own := behind.get(client)) is None:
            own = behind[client] = ServerSocket(socket.socket(front.family, socket.SOCK_DGRAM))
            own.socket.connect(server)
            own.socket.settimeout(IDLE_S)
            threading.Thread(target=_return_datagrams, args=(behind, front, client), daemon=True).start()
        own.used_s = time.monotonic()
        with suppress(OSError):  # the server's port may be closed
            own.socket.send(buffer[:length])


@dataclass
class ServerSocket:
    """A socket to a server for one client, and when the client last sent (time.monotonic())."""

    socket: socket.socket
    used_s: float = 0.0


def _return_datagrams(behind: dict[Any, ServerSocket], front: socket.socket, client: Any) -> None:
    """Copy a server's datagrams back to the client, until neither of them has sent one for IDLE_S seconds."""
    buffer = memoryview(bytearray(DATAGRAM_BYTES))
    own = behind[client]
    with own.socket as back:
        while True:
            try:
                front.sendto(buffer[: back.recv_into(buffer)], client)
            except ConnectionRefusedError:  # the server's port was closed when a datagram arrived there
                continue
            except TimeoutError:
                if time.monotonic() - own.used_s >= IDLE_S:
                    break
            except OSError:
                break
        del behind[client]
