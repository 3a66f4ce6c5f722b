"""What the receiving ends have got, by the kernel's own counters, cheap enough to read around a slice of 100
ms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from labkit.endpoints import Endpoint, Pair, Reading


@dataclass(frozen=True)
class Got:
    """bytes and packets since the beginning; for UDP datagrams that reached a socket, and their payload, and what was
    sent where that is known."""

    received_bytes: int
    received_count: int
    sent_count: int | None = None

    def __sub__(self, other: Got) -> Got:
        sent = (
            None
            if self.sent_count is None or other.sent_count is None
            else self.sent_count - other.sent_count
        )
        return Got(
            self.received_bytes - other.received_bytes, self.received_count - other.received_count, sent
        )


class Receivers:
    """Counters of the servers of all pairs.

    TCP: bytes and frames of the servers' interfaces (a frame is up to 64 KB with segmentation offload, so
    headers are below 0.1 %; on lo the acknowledgements count, too). UDP: datagrams that the servers have read
    (InDatagrams), times their length: what a full socket buffer dropped, or a starved server left, is not
    goodput.
    """

    def __init__(
        self,
        servers: Sequence[Endpoint],
        protocol: str,
        length_bytes: int | None,
        files: list[Reading],
        client_files: list[Reading],
    ) -> None:
        self._servers = servers
        self._protocol = protocol
        self._length_bytes = length_bytes
        self._files = files
        self._client_files = client_files

    def read(self) -> Got:
        """The sums over all pairs, now."""
        if self._protocol == "udp":
            assert self._length_bytes is not None
            counts = [_datagrams(server)[0] for server in self._files]
            sent = [_datagrams(client)[1] for client in self._client_files]
            return Got(sum(counts) * self._length_bytes, sum(counts), sum(sent) if sent else None)
        read = [server.counters() for server in self._servers]
        return Got(sum(one.received_bytes for one in read), sum(one.received_count for one in read))

    def each(self) -> list[int]:
        """What every server has got: bytes of its interface, or datagrams."""
        if self._protocol == "udp":
            return [_datagrams(server)[0] for server in self._files]
        return [server.counters().received_bytes for server in self._servers]

    def carrying(self, before: list[int]) -> list[bool]:
        """Whether at each server data has arrived since `before` (of `each`): more than setting up a flow
        takes."""
        enough = 2 if self._protocol == "udp" else 4096
        return [now >= then + enough for now, then in zip(self.each(), before, strict=True)]


@contextmanager
def receivers(pairs: Sequence[Pair], protocol: str, length_bytes: int | None) -> Iterator[Receivers]:
    """The counters of these pairs; for UDP `length_bytes` is the payload of a datagram."""
    servers, clients = [pair.server for pair in pairs], [pair.client for pair in pairs]
    with server_receivers(servers, protocol, length_bytes, clients) as found:
        yield found


@contextmanager
def server_receivers(
    servers: Sequence[Endpoint], protocol: str, length_bytes: int | None, clients: Sequence[Endpoint] = ()
) -> Iterator[Receivers]:
    """The counters of these servers; what was sent is told only where the clients are on this host, too."""
    with ExitStack() as stack:
        path = "/proc/net/snmp6" if ":" in servers[0].address else "/proc/net/snmp"
        files, client_files = (
            [stack.enter_context(end.open(path)) for end in ends] if protocol == "udp" else []
            for ends in (servers, clients)
        )
        yield Receivers(servers, protocol, length_bytes, files, client_files)


def _datagrams(file: Reading) -> tuple[int, int]:
    return datagrams(file.read())


def datagrams(text: str) -> tuple[int, int]:
    """UDP datagrams received and sent of a namespace, from /proc/net/snmp (IPv4) or /proc/net/snmp6 (IPv6);
    RFC 4113."""
    if text.startswith("Ip6"):
        pairs = dict(line.split() for line in text.splitlines())
        return int(pairs["Udp6InDatagrams"]), int(pairs["Udp6OutDatagrams"])
    names, values = (line.split() for line in text.splitlines() if line.startswith("Udp:"))
    table = dict(zip(names, values, strict=True))
    return int(table["InDatagrams"]), int(table["OutDatagrams"])
