"""Tap interfaces: the other end is a file descriptor (Documentation/networking/tuntap.rst)."""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from labkit.common.errors import Unsupported
from labkit.common.safe_files import closed
from labkit.system import libc
from labkit.system.netlink.netns import index_of, inside

# linux/if_tun.h
TUNSETIFF, IFF_TAP, IFF_MULTI_QUEUE, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 2, 0x100, 0x1000, 0x4000
TUN, TUNGETDEVNETNS = "/dev/net/tun", 0x54E3
SYS_PIDFD_GETFD = 438  # of every architecture


def new_tap(name: str, queues_count: int = 1) -> list[int]:
    """Create a tap in the calling thread's network namespace; return one file descriptor per queue.

    The kernel removes the tap when the last descriptor is closed. Raises Unsupported if the machine has no taps.
    """
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | (IFF_MULTI_QUEUE if queues_count > 1 else 0)
    made: list[int] = []
    for _ in range(queues_count):
        made.append(_open_tun())
        fcntl.ioctl(made[-1], TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return made


def _open_tun() -> int:
    try:
        return os.open(TUN, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise Unsupported(
            f"QEMU machines need a tap, but {TUN} cannot be opened ({error.strerror}): run `modprobe tun` as"
            " root; pass the device into a container"
        ) from None


def check_taps() -> None:
    """Raise Unsupported if the machine has no taps."""
    os.close(_open_tun())


class Tap:
    """A tap in the network namespace `netns` (a file descriptor): its index there and the descriptors of its
    queues."""

    def __init__(self, netns: int, name: str, queues_count: int = 1) -> None:
        with inside(netns):
            self.fds = new_tap(name, queues_count)
            self.index = index_of(name)

    def close(self) -> None:
        """Close the queues; this removes the tap."""
        for fd in self.fds:
            os.close(fd)


def holders(netns: int, name: str) -> Iterator[tuple[int, str]]:
    """Yield number and name of the processes that hold a tap of the network namespace `netns` (a file descriptor).

    Its name is in the descriptor's fdinfo (drivers/net/tun.c); the namespace is asked for with a copy of it.
    """
    for file in Path("/proc").glob("[0-9]*/fdinfo/*"):
        with suppress(OSError):
            pid, number = int(file.parts[2]), int(file.name)
            if f"iff:\t{name}\n" in file.read_text() and _netns_of(pid, number) == os.fstat(netns).st_ino:
                yield pid, Path("/proc", file.parts[2], "comm").read_text().strip()


def _netns_of(pid: int, number: int) -> int:
    """Return the inode of the namespace of a tap that a process holds. Raises OSError."""
    with closed(os.pidfd_open(pid)) as process:
        copy = libc.call("syscall", SYS_PIDFD_GETFD, process, number, 0)
    with closed(copy), closed(fcntl.ioctl(copy, TUNGETDEVNETNS)) as netns:
        return os.fstat(netns).st_ino
