"""Read named nftables counters over netlink: 50 µs, while starting nft(8) takes 17 ms."""

from __future__ import annotations

import socket
import struct

from labkit.system.netlink.netns import inside
from labkit.system.netlink.sockets import LinkError

# linux/netfilter/nfnetlink.h, nf_tables.h
NETLINK_NETFILTER = 12
NFNL_SUBSYS_NFTABLES, NFT_MSG_GETOBJ = 10, 19
NFPROTO_NETDEV, NFT_OBJECT_COUNTER = 5, 1
NFTA_OBJ_TABLE, NFTA_OBJ_NAME, NFTA_OBJ_TYPE, NFTA_OBJ_DATA = 1, 2, 3, 4
NFTA_COUNTER_PACKETS = 2
NLM_F_REQUEST, NLMSG_ERROR = 1, 2


class NftCounter:
    """A named counter in a table of family netdev, in the network namespace `netns` (a file descriptor)."""

    def __init__(self, netns: int, table: str, name: str) -> None:
        with inside(netns):
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER
            )
        body = struct.pack("!BBH", NFPROTO_NETDEV, 0, 0)
        body += _attribute(NFTA_OBJ_TABLE, table.encode() + b"\0")
        body += _attribute(NFTA_OBJ_NAME, name.encode() + b"\0")
        body += _attribute(NFTA_OBJ_TYPE, struct.pack("!I", NFT_OBJECT_COUNTER))
        kind = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETOBJ
        self._request = struct.pack("IHHII", 16 + len(body), kind, NLM_F_REQUEST, 0, 0) + body

    def read(self) -> int:
        """Return the number of packets counted. Raises LinkError if the counter does not exist."""
        self._socket.send(self._request)
        answer = self._socket.recv(65536)
        if struct.unpack_from("H", answer, 4)[0] == NLMSG_ERROR:
            raise LinkError("read a counter of nftables", -struct.unpack_from("i", answer, 16)[0], "")
        data = _attributes(answer[20:])[NFTA_OBJ_DATA]
        return int(struct.unpack("!Q", _attributes(data)[NFTA_COUNTER_PACKETS])[0])

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


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
