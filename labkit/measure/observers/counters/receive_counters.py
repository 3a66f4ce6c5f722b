"""The kernel's counters at the receivers, cheap enough to read around a slice of 100 ms."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from labkit.common import errors
from labkit.measure.endpoints import Endpoint, Namespace, Pair
from labkit.measure.topologies.network.kinds import ETHERNET, IP, WIREGUARD, length_bytes
from labkit.measure.topologies.network.parts import UDP_PORTS
from labkit.system import netlink
from labkit.system.machine.mibs import mibs, mibs6

ATTEMPTS = 4  # attempts to read two counters at the same moment
# TCP's header, and that with timestamps (RFC 7323), which Linux sends unless this sysctl is 0 at an end
PLAIN_TCP_BYTES, TCP_BYTES = 20, 32
TIMESTAMPS = "/proc/sys/net/ipv4/tcp_timestamps"
# Kinds that count frames after they took the Ethernet header off (vxlan_rcv, br_pass_frame_up, vlan_do_receive,
# __ip6_tnl_rcv)
WITHOUT_ETHERNET = ("vxlan", "geneve", "bridge", "vlan", "team", "ip6gretap")


@dataclass(frozen=True)
class ReceiveCounts:
    """Payload and packets received since the start; for UDP, datagrams that reached a socket.

    `sent_count` and `fragments_count` (made by IP at the senders) are None if unknown. `reverse_bytes` is the
    payload that went from servers to clients if data goes in both directions; else None.
    """

    received_bytes: int
    received_count: int
    sent_count: int | None = None
    fragments_count: int | None = None
    reverse_bytes: int | None = None

    def __sub__(self, other: ReceiveCounts) -> ReceiveCounts:
        # With a tunnel in the server's namespace the count may lag slightly, but never decreases (_received_datagrams)
        return ReceiveCounts(
            max(0, self.received_bytes - other.received_bytes),
            max(0, self.received_count - other.received_count),
            _less(self.sent_count, other.sent_count),
            _less(self.fragments_count, other.fragments_count),
            _less(self.reverse_bytes, other.reverse_bytes),
        )


def _less(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other


class Receivers:
    """The receive counters of the servers of all pairs.

    TCP: frames of the servers' interfaces, and their bytes without headers. A frame is up to 64 KB with segmentation
    offload, and then headers are 0.1 % of it. Without, they are 4.6 %, and would look like payload. UDP: datagrams that
    the servers have read (InDatagrams) times their length, so datagrams dropped at a full socket buffer or left unread
    do not count. On lo, acknowledgements are frames without payload. A tunnel's outer datagrams in the server's
    namespace do not count either (`udp_tunnels`). For UDP `length_bytes` is the payload of a datagram. What was sent is
    known only if the clients are on this host. `reverse_count`: how many of the receivers, from the
    first, are clients; 0 if the directions are not told apart.
    """

    def __init__(
        self,
        servers: Sequence[Endpoint],
        protocol: str,
        length_bytes: int | None,
        clients: Sequence[Endpoint] = (),
        reverse_count: int = 0,
    ) -> None:
        self._servers = servers
        self._protocol = protocol
        self._length_bytes = length_bytes
        self._reverse_count = reverse_count
        # Clients may share a namespace, whose counters must count once.
        self._clients = {id(client.kernel): client.kernel for client in clients}.values()
        self._mibs = "/proc/net/snmp6" if ":" in servers[0].address else "/proc/net/snmp"
        self._outside = [
            [link.index for link in udp_tunnels(server.namespace, server.address)]
            if protocol == "udp"
            else []
            for server in servers
        ]
        tcp_ends = () if protocol == "udp" else (servers[0], *clients[:1])
        without_timestamps = any(end.kernel.read(TIMESTAMPS).strip() == "0" for end in tcp_ends)
        self._header_bytes = [
            _header_bytes(server, bool(clients), without_timestamps) if tcp_ends else 0 for server in servers
        ]

    def read(self) -> ReceiveCounts:
        """Return the current sums over all pairs."""
        if self._protocol == "udp":
            assert self._length_bytes is not None
            counts = self.per_server()
            sent = [sent_datagrams(client.read(self._mibs)) for client in self._clients]
            each_bytes = [count * self._length_bytes for count in counts]
            return self._sums(each_bytes, counts, *map(sum, zip(*sent, strict=True)))
        read = [server.counters() for server in self._servers]
        each_bytes = [
            one.received_bytes - one.received_count * length
            for one, length in zip(read, self._header_bytes, strict=True)
        ]
        return self._sums(each_bytes, [one.received_count for one in read])

    def _sums(self, each_bytes: Sequence[int], counts: Sequence[int], *sent: int) -> ReceiveCounts:
        reverse_bytes = sum(each_bytes[: self._reverse_count]) if self._reverse_count else None
        return replace(ReceiveCounts(sum(each_bytes), sum(counts), *sent), reverse_bytes=reverse_bytes)

    def per_server(self) -> list[int]:
        """Return what each server has received: bytes of its interface (TCP) or datagrams (UDP)."""
        if self._protocol == "udp":
            ends = zip(self._servers, self._outside, strict=True)
            return [_received_datagrams(server, self._mibs, outside) for server, outside in ends]
        return [server.counters().received_bytes for server in self._servers]

    def carrying(self, before: Iterable[int]) -> list[bool]:
        """Return, per server, whether more arrived since `before` (from `per_server`) than a flow's start takes.

        `before` is iterated when the counters have been read.
        """
        enough = 2 if self._protocol == "udp" else 4096
        return [now >= then + enough for now, then in zip(self.per_server(), before, strict=True)]


def receivers(
    pairs: Sequence[Pair], protocol: str, length_bytes: int | None, direction: str = "forward"
) -> Receivers:
    """Return the counters of the servers of these pairs, or of whoever receives in this direction."""
    flows, reverse_count = [(pair.client, pair.server) for pair in pairs], 0
    if direction != "forward":
        # Both ends may be one interface (lo), which counts both directions.
        there = [
            (near, far)
            for near, far in flows
            if direction == "both" and (near.kernel is not far.kernel or near.index != far.index)
        ]
        reverse_count = len(flows) if len(there) == len(flows) else 0
        flows = [(far, near) for near, far in flows] + there
    receiving, sending = [to for _by, to in flows], [by for by, _to in flows]
    return Receivers(receiving, protocol, length_bytes, sending, reverse_count)


def _header_bytes(server: Endpoint, local: bool, without_timestamps: bool) -> int:
    """Return the bytes of headers in a frame of TCP, as the interface of a server counts it.

    local: whether the clients are on this host. without_timestamps: TCP sends none.

    Most interfaces that have an Ethernet header count it. The loopback interface counts packets after it took it off
    (loopback_xmit), as others do (WITHOUT_ETHERNET), and MACsec before Linux 6.0 (macsec_handle_frame). ipvlan counts
    it twice between its interfaces on one host (ipvlan_rcv_frame).
    WireGuard also counts its own header and tag (wg_packet_consume_data_done).
    """
    family = 6 if ":" in server.address else 4
    links = netlink.links(server.namespace.netlink) if server.kernel.is_here else []
    link = next((link for link in links if link.index == server.index), None)
    kind = link and link.kind
    before_6 = int(os.uname().release.partition(".")[0]) < 6
    without = kind in WITHOUT_ETHERNET or (kind == "macsec" and before_6) or (link and link.mac is None)
    ethernet_count = 0 if without else 2 if kind == "ipvlan" and local else 1
    tcp_bytes = PLAIN_TCP_BYTES if without_timestamps else TCP_BYTES
    # The programs of user-mode networks send no timestamps in any case.
    more_bytes = max(server.more_header_bytes, PLAIN_TCP_BYTES - tcp_bytes)
    more_bytes += length_bytes(WIREGUARD) if kind == "wireguard" else 0
    return ethernet_count * ETHERNET.length_bytes + IP[family].length_bytes + tcp_bytes + more_bytes


def _received_datagrams(server: Endpoint, path: str, outside: list[int]) -> int:
    """Return the datagrams that a server received, without the outer datagrams of tunnels.

    The two counters are not read at the same moment. Reading is repeated while packets arrive in between; finally the
    mean of the values before and after is used.
    """
    for _ in range(ATTEMPTS if outside else 1):
        before = _taken_out(server, outside)
        count, after = received_datagrams(server.kernel.read(path)), _taken_out(server, outside)
        if before == after:
            break
    return count - (before + after) // 2


def _taken_out(server: Endpoint, outside: list[int]) -> int:
    return sum(server.namespace.netlink.counters(index).received_count for index in outside)


def udp_tunnels(space: Namespace, address: str) -> list[netlink.Link]:
    """Return the interfaces of a namespace that decapsulate UDP datagrams of the IP version of this address.

    The kernel counts such a datagram as received (udp_queue_rcv_one_skb) and its inner packet on the interface at the
    same moment (vxlan_rcv, geneve_rx). IPv4 and IPv6 datagrams are counted separately.
    """
    in_udp = (link for link in netlink.links(space.netlink) if link.kind in UDP_PORTS)
    return [link for link in in_udp if _is_in_ipv6(space, link) == (":" in address)]


def _is_in_ipv6(space: Namespace, link: netlink.Link) -> bool:
    if link.kind == "wireguard":
        from labkit.system.netlink import encryption  # what only few networks need

        return any(":" in remote for remote in encryption.wireguard(space.fd, link.index).remotes)
    return any(name.endswith(("GROUP6", "LOCAL6", "REMOTE6")) for name in link.data)


@errors.reading("/proc/net/snmp")
def received_datagrams(text: str) -> int:
    """Parse the UDP datagrams received in a namespace from /proc/net/snmp or snmp6 (RFC 4113)."""
    return _group(text, "Udp")["InDatagrams"]


@errors.reading("/proc/net/snmp")
def sent_datagrams(text: str) -> tuple[int, int]:
    """Parse from the same files the UDP datagrams that sockets sent, with those that IP refused (`packet_loss`), and
    the fragments that IP created (RFC 4293)."""
    ip = _group(text, "Ip")
    return _group(text, "Udp")["OutDatagrams"] + ip["OutDiscards"], ip["FragCreates"]


def _group(text: str, name: str) -> dict[str, int]:
    if text.startswith("Ip6"):
        return mibs6(text, f"{name}6")[f"{name}6"]
    return mibs(text, name)[name]
