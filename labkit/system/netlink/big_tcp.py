"""Read and set the largest size of segmented (GSO) and of merged packets (GRO) of an interface.

More than 65,536 bytes are BIG TCP: of IPv6 since Linux 5.19, of IPv4 since 6.3. Numbers of linux/if_link.h and
linux/rtnetlink.h; pyroute2 and the iproute2 of Debian 12 do not know those of IPv4.
"""

import struct

from labkit.system.netlink.messages import Message
from labkit.system.netlink.sockets import Netlink, attribute, attributes, request

SIZES = {"gso_max_size": 41, "gro_max_size": 58, "gso_ipv4_max_size": 63, "gro_ipv4_max_size": 64}
RTM_NEWLINK, RTM_GETLINK, NLM_F_ACK = 16, 18, 4


def sizes_bytes(kernel: Netlink, index: int) -> dict[str, int]:
    """Return the sizes of an interface by the kernel's names; an old kernel lacks some."""
    [answer] = kernel.ask(request(f"read interface {index}", RTM_GETLINK, 0, _head(index)))
    found = dict(attributes(answer[32:]))
    return {name: struct.unpack("I", found[number])[0] for name, number in SIZES.items() if number in found}


def set_sizes(index: int, size_bytes: int) -> Message:
    """Return a request that sets all sizes of an interface."""
    value = struct.pack("I", size_bytes)
    body = _head(index) + b"".join(attribute(number, value) for number in SIZES.values())
    return request(f"set the largest GSO and GRO sizes to {size_bytes} bytes", RTM_NEWLINK, NLM_F_ACK, body)


def _head(index: int) -> bytes:
    """Return struct ifinfomsg."""
    return struct.pack("BxHiII", 0, 0, index, 0, 0)
