"""Anonymous network namespaces, the fast endpoint: 0.7 ms each, freed by the kernel when nothing holds
them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from labkit import netlink


class Namespace:
    """A network namespace held by a file descriptor, with a netlink socket in it."""

    def __init__(self, name: str, fd: int, socket: netlink.Netlink) -> None:
        self.name = name
        self.fd = fd
        self.netlink = socket

    @property
    def prefix(self) -> list[str]:
        """The words that make a command run in here. They name the descriptor by this process, which must
        live on."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.fd}", "--"]

    def open(self, path: str) -> IO[str]:
        """A file as it reads in here; what lies under /proc/net stays that of this namespace after
        opening."""
        with netlink.inside(self.fd):
            return open(path.replace("/proc/net/", "/proc/thread-self/net/"))

    def sysctl(self, name: str, value: int) -> None:
        """Set net.`name` in here."""
        with netlink.inside(self.fd), open(f"/proc/sys/net/{name}", "w") as file:
            file.write(str(value))

    def close(self) -> None:
        """Let go of it."""
        self.netlink.close()
        os.close(self.fd)


@dataclass(frozen=True)
class Endpoint:
    """One end of a pair: a namespace, the interface that carries the load, and its address."""

    name: str
    namespace: Namespace
    interface: str
    index: int
    address: str

    @property
    def prefix(self) -> list[str]:
        """The words that make a command run at this end."""
        return self.namespace.prefix


@dataclass(frozen=True)
class Pair:
    """Two ends between which load is run, from client to server."""

    client: Endpoint
    server: Endpoint


@dataclass(frozen=True)
class FarEnd:
    """What is known here of an end on another host."""

    name: str
    address: str


@dataclass(frozen=True)
class FarPair:
    """A client here, and its server on another host."""

    client: Endpoint
    server: FarEnd


@contextmanager
def namespaces(names: list[str], *, family: int) -> Iterator[list[Namespace]]:
    """One namespace for each name, released on the way out.

    With family 4, IPv6 is off in them: router solicitations and listener reports of 256 new ports on one
    bridge are several hundred thousand frames within the first seconds, and would be measured. With family 6,
    link-local addresses stay (a router's neighbour discovery needs one), but are neither probed for
    duplicates nor used to ask for routers.

    A TCP socket whose program was killed holds its namespace while it tries to deliver what it has, and when the
    other end's namespace went first that is in vain: it gives up after a second here, not after two minutes.
    """
    made = [
        Namespace(name, fd, socket)
        for name, (fd, socket) in zip(names, netlink.new_namespaces(len(names)), strict=True)
    ]
    try:
        for namespace in made:
            namespace.sysctl("ipv4/tcp_orphan_retries", 1)  # tcp(7); for IPv6 as well; 0 stands for 8
            if family == 4:
                namespace.sysctl("ipv6/conf/default/disable_ipv6", 1)
            else:
                for name in ("accept_dad", "router_solicitations"):
                    namespace.sysctl(f"ipv6/conf/default/{name}", 0)
        yield made
    finally:
        for namespace in made:
            namespace.close()
