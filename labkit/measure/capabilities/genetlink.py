"""Two requests to other netlink families, short enough to encode by hand."""

from __future__ import annotations

import errno
import socket
import struct

NETLINK_NETFILTER, NETLINK_GENERIC = 12, 16  # linux/netlink.h
REQUEST, ACK, CREATE = 1, 4, 0x400
NLMSG_ERROR = 2


def new_nftables_table(name: str) -> int:
    """Create an nftables table in the calling thread's namespace; return 0 or the kernel's errno.

    It is a transaction like nft(8)'s: NFNL_MSG_BATCH_BEGIN, NFT_MSG_NEWTABLE, NFNL_MSG_BATCH_END (nfnetlink.h).
    """
    subsystem, inet = 10, 1
    bracket = struct.pack(">BBH", 0, 0, subsystem)  # struct nfgenmsg; the number is in network order
    table = struct.pack(">BBH", inet, 0, 0) + _attribute(1, name.encode() + b"\0")
    begin, end = _message(0x10, REQUEST, 1, bracket), _message(0x11, REQUEST, 3, bracket)
    return _ask(NETLINK_NETFILTER, begin + _message(subsystem << 8, REQUEST | ACK | CREATE, 2, table) + end)


def generic_family(name: str) -> int:
    """Look up a generic netlink family, which loads its module; return 0 or ENOENT (linux/genetlink.h)."""
    ctrl, getfamily, family_name = 0x10, 3, 2
    body = struct.pack("BBH", getfamily, 1, 0) + _attribute(family_name, name.encode() + b"\0")
    return _ask(NETLINK_GENERIC, _message(ctrl, REQUEST | ACK, 1, body))


def _message(kind: int, flags: int, number: int, body: bytes) -> bytes:
    return struct.pack("IHHII", 16 + len(body), kind, flags, number, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _ask(family: int, request: bytes) -> int:
    """Send the request and return the first errno, or 0 for an acknowledgement."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family) as kernel:
            kernel.settimeout(2)
            kernel.sendto(request, (0, 0))
            while True:
                answer = kernel.recv(65536)
                while len(answer) >= 16:
                    length, kind = struct.unpack_from("IH", answer)
                    if kind == NLMSG_ERROR:
                        return int(-struct.unpack_from("i", answer, 16)[0])
                    answer = answer[(length + 3) & ~3 :]
    except OSError as error:
        return error.errno or errno.ETIMEDOUT
