"""Network namespaces without names. The kernel frees one when nothing holds it any more."""

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from labkit.common.safe_files import closed
from labkit.system.netlink.sockets import LinkError, Netlink

CLONE_NEWNET = 0x40000000
CABLE = "cable"  # the name of both ends of a cable between two nodes of this kernel
_libc = ctypes.CDLL(None, use_errno=True)


def index_of(name: str) -> int:
    """Return the index of an interface in the calling thread's namespace. Raises OSError if there is none of this
    name."""
    return socket.if_nametoindex(name)


def _call(function: str, *arguments: int) -> None:
    if getattr(_libc, function)(*arguments) != 0:
        errno = ctypes.get_errno()
        raise LinkError(function, errno, "")


@contextmanager
def inside(netns: int) -> Iterator[None]:
    """Move the calling thread into the network namespace `netns` (a file descriptor) for the block.

    Programs that the thread starts in the block are in that namespace, too.
    """
    with closed(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)) as home:
        _call("setns", netns, CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", home, CLONE_NEWNET)


def new_namespaces(count: int) -> list[tuple[int, Netlink]]:
    """Create `count` network namespaces; return (file descriptor, netlink socket) for each.

    The kernel frees a namespace and its content when the last descriptor is closed, also if the process dies.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    made: list[tuple[int, Netlink]] = []
    try:
        for _ in range(count):
            _call("unshare", CLONE_NEWNET)
            made.append((os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC), Netlink()))
    finally:
        _call("setns", home, CLONE_NEWNET)
        os.close(home)
    return made
