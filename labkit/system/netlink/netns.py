"""Network namespaces without names: made, entered, and freed by the kernel when nothing holds them."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from labkit.system.netlink.sockets import LinkError, Netlink

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def index_of(name: str) -> int:
    """The index of an interface in the namespace of the calling thread. Raises OSError when there is none of
    that name."""
    return socket.if_nametoindex(name)


def _call(function: str, *arguments: int) -> None:
    if getattr(_libc, function)(*arguments) != 0:
        errno = ctypes.get_errno()
        raise LinkError(function, errno, "")


@contextmanager
def inside(netns: int) -> Iterator[None]:
    """The calling thread is in the network namespace `netns` (a file descriptor); programs that it starts
    are, too."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", netns, CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", home, CLONE_NEWNET)
    finally:
        os.close(home)


def new_namespaces(count: int) -> list[tuple[int, Netlink]]:
    """`count` anonymous network namespaces: a file descriptor that keeps each alive, and a netlink socket in
    it.

    When the descriptors are closed, by whomever and however, the kernel frees them and all that is in them.
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
