"""Read named nftables counters over netlink: 50 µs, while starting nft(8) takes 17 ms."""

import struct
from collections.abc import Sequence

from labkit.common.errors import Failed
from labkit.system.netlink.netns import inside
from labkit.system.netlink.sockets import Netlink, attribute, attributes, request

# linux/netfilter/nfnetlink.h, nf_tables.h
NETLINK_NETFILTER = 12
NFNL_SUBSYS_NFTABLES, NFT_MSG_GETOBJ = 10, 19
NFPROTO_NETDEV, NFT_OBJECT_COUNTER = 5, 1
NFTA_OBJ_TABLE, NFTA_OBJ_NAME, NFTA_OBJ_TYPE, NFTA_OBJ_DATA = 1, 2, 3, 4
NFTA_COUNTER_PACKETS = 2
NLM_F_DUMP = 0x300


class NftCounters(Netlink):
    """All named counters in a table of family netdev, in the network namespace `netns` (a file descriptor)."""

    def __init__(self, netns: int, table: str) -> None:
        with inside(netns):
            super().__init__(NETLINK_NETFILTER)
        body = struct.pack("!BBH", NFPROTO_NETDEV, 0, 0)
        body += attribute(NFTA_OBJ_TABLE, table.encode() + b"\0")
        body += attribute(NFTA_OBJ_TYPE, struct.pack("!I", NFT_OBJECT_COUNTER))
        kind = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETOBJ
        self._table = table
        self._request = request("read the counters of nftables", kind, NLM_F_DUMP, body)

    def read(self, names: Sequence[str]) -> list[int]:
        """Return the packets that these have counted. Raises LinkError if the kernel refuses, and Failed if one is
        gone."""
        result = {}
        for answer in self.ask(self._request):
            counter = dict(attributes(answer[20:]))  # after struct nlmsghdr and struct nfgenmsg
            [count] = struct.unpack("!Q", dict(attributes(counter[NFTA_OBJ_DATA]))[NFTA_COUNTER_PACKETS])
            result[counter[NFTA_OBJ_NAME].rstrip(b"\0").decode()] = count
        if not result.keys() >= {*names}:
            raise Failed(
                f"the counters of the nftables table {self._table} are gone: measure again while nobody flushes rules"
            )
        return [result[one] for one in names]
