"""Read named nftables counters over netlink: 50 µs, while starting nft(8) takes 17 ms."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping

from labkit.system.netlink.netns import inside
from labkit.system.netlink.sockets import LinkError

# linux/netfilter/nfnetlink.h, nf_tables.h
NETLINK_NETFILTER = 12
NFNL_SUBSYS_NFTABLES, NFT_MSG_GETOBJ = 10, 19
NFPROTO_NETDEV, NFT_OBJECT_COUNTER = 5, 1
NFTA_OBJ_TABLE, NFTA_OBJ_NAME, NFTA_OBJ_TYPE, NFTA_OBJ_DATA = 1, 2, 3, 4
NFTA_COUNTER_PACKETS = 2
NLM_F_REQUEST, NLM_F_MULTI, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 1, 2, 0x300, 2, 3


class _Reader:
    """Asks for counters in a table of family netdev, in the network namespace `netns` (a file descriptor)."""

    def __init__(self, netns: int, table: str, flags: int, *more: bytes) -> None:
        with inside(netns):
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER
            )
        body = struct.pack("!BBH", NFPROTO_NETDEV, 0, 0)
        body += _attribute(NFTA_OBJ_TABLE, table.encode() + b"\0")
        body += _attribute(NFTA_OBJ_TYPE, struct.pack("!I", NFT_OBJECT_COUNTER)) + b"".join(more)
        kind = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETOBJ
        self._request = struct.pack("IHHII", 16 + len(body), kind, NLM_F_REQUEST | flags, 0, 0) + body

    def _answers(self) -> Iterator[dict[int, bytes]]:
        """Yield the attributes of each counter that the kernel returns. Raises LinkError if it refuses."""
        self._socket.send(self._request)
        while True:
            answer, at = self._socket.recv(1 << 17), 0
            while at + 16 <= len(answer):
                length, kind, flags = struct.unpack_from("IHH", answer, at)
                if kind == NLMSG_ERROR:
                    number = -struct.unpack_from("i", answer, at + 16)[0]
                    raise LinkError("read a counter of nftables", number, "")
                if kind == NLMSG_DONE:
                    return
                yield _attributes(answer[at + 20 : at + length])
                if not flags & NLM_F_MULTI:
                    return
                at += (length + 3) & ~3

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class NftCounter(_Reader):
    """A named counter in a table of family netdev, in the network namespace `netns` (a file descriptor)."""

    def __init__(self, netns: int, table: str, name: str) -> None:
        super().__init__(netns, table, 0, _attribute(NFTA_OBJ_NAME, name.encode() + b"\0"))

    def read(self) -> int:
        """Return the number of packets counted. Raises LinkError if the counter does not exist."""
        [counter] = self._answers()
        return _packets(counter)


class NftCounters(_Reader):
    """All named counters in a table of family netdev, in the network namespace `netns` (a file descriptor)."""

    def __init__(self, netns: int, table: str) -> None:
        super().__init__(netns, table, NLM_F_DUMP)

    def read(self) -> dict[str, int]:
        """Return the number of packets that each has counted, by name."""
        return {
            counter[NFTA_OBJ_NAME].rstrip(b"\0").decode(): _packets(counter) for counter in self._answers()
        }


def _packets(counter: Mapping[int, bytes]) -> int:
    data = _attributes(counter[NFTA_OBJ_DATA])
    return int(struct.unpack("!Q", data[NFTA_COUNTER_PACKETS])[0])


def _attribute(kind: int, content: bytes) -> bytes:
    return struct.pack("HH", 4 + len(content), kind) + content + b"\0" * (-len(content) % 4)


def _attributes(data: bytes) -> dict[int, bytes]:
    result, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("HH", data, at)
        if length < 4:
            break
        result[kind & 0x3FFF] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return result
