"""Network namespaces without names. The kernel frees one when nothing holds it any more."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from labkit.common.safe_files import closed
from labkit.system import libc
from labkit.system.netlink.sockets import LinkError, Netlink

CABLE = "cable"  # the name of both ends of a cable between two nodes of this kernel
# The index of an interface of the calling thread's namespace, by its name. Raises OSError if there is none.
index_of = socket.if_nametoindex


def _call(function: str, *arguments: int) -> None:
    try:
        libc.call(function, *arguments)
    except OSError as error:
        raise LinkError(function, error.errno or 0, "") from None


@contextmanager
def inside(netns: int) -> Iterator[None]:
    """Move the calling thread into the network namespace `netns` (a file descriptor) for the block.

    Programs that the thread starts in the block are in that namespace, too.
    """
    with closed(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)) as home:
        _call("setns", netns, libc.CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", home, libc.CLONE_NEWNET)


def new_namespaces(count: int) -> list[tuple[int, Netlink]]:
    """Create `count` network namespaces; return (file descriptor, netlink socket) for each.

    The kernel frees a namespace and its content when the last descriptor is closed, also if the process dies.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    made: list[tuple[int, Netlink]] = []
    try:
        for _ in range(count):
            _call("unshare", libc.CLONE_NEWNET)
            made.append((os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC), Netlink()))
    finally:
        _call("setns", home, libc.CLONE_NEWNET)
        os.close(home)
    return made
