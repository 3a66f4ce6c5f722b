"""Taps: network interfaces whose other end is a descriptor (Documentation/networking/tuntap.rst)."""

from __future__ import annotations

import fcntl
import os
import struct

from labkit.common.errors import Unsupported
from labkit.system.netlink.netns import index_of, inside

# linux/if_tun.h
TUNSETIFF, IFF_TAP, IFF_MULTI_QUEUE, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 2, 0x100, 0x1000, 0x4000
TUN = "/dev/net/tun"


def new_tap(name: str, queues_count: int = 1) -> list[int]:
    """A new tap in the network namespace of the calling thread: a descriptor for each of its queues. The kernel frees
    it with the last of them. Raises Unsupported where there are no taps."""
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | (IFF_MULTI_QUEUE if queues_count > 1 else 0)
    made: list[int] = []
    for _ in range(queues_count):
        made.append(_opened())
        fcntl.ioctl(made[-1], TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return made


def _opened() -> int:
    try:
        return os.open(TUN, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise Unsupported(
            f"the cable of a QEMU machine is a tap, and {TUN} cannot be opened ({error.strerror}): `modprobe tun` as"
            " root makes it, and in a container it has to be passed in"
        ) from None


def check_taps() -> None:
    """Raises Unsupported where there are no taps."""
    os.close(_opened())


class Tap:
    """A tap in the network namespace `netns` (a descriptor): its index there, and the descriptors of its queues."""

    def __init__(self, netns: int, name: str, queues_count: int = 1) -> None:
        with inside(netns):
            self.fds = new_tap(name, queues_count)
            self.index = index_of(name)

    def close(self) -> None:
        """Let go of it."""
        for fd in self.fds:
            os.close(fd)
