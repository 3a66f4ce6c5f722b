"""Network namespaces without a name, the fastest kind of endpoint: 0.7 ms each.

The kernel frees a namespace when no process and no file descriptor holds it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

from labkit.system import netlink, process


class Reading(Protocol):
    """An open kernel file at an endpoint; every `read` starts at its beginning."""

    def read(self) -> str:
        """Return its current content."""

    def close(self) -> None:
        """Close it."""

    def __enter__(self) -> Self:
        """Return itself, for `with`."""

    def __exit__(self, *_: object) -> None:
        """Close it."""


class Opened:
    """An open kernel file on this host."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> str:
        """Return its current content."""
        # A read of a file that the kernel makes record by record ends with a page (fs/seq_file.c).
        content = b""
        while part := os.pread(self._fd, 1 << 16, len(content)):
            content += part
        return content.decode()

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Namespace:
    """A network namespace held by a file descriptor, with a netlink socket in it."""

    def __init__(self, name: str, fd: int, socket: netlink.Netlink) -> None:
        self.name = name
        self.fd = fd
        self.netlink = socket

    @property
    def prefix(self) -> list[str]:
        """The command line prefix that runs a program in this namespace.

        It refers to the file descriptor through this process, which must therefore keep running.
        """
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.fd}", "--"]

    def open(self, path: str) -> Opened:
        """Open a file as this namespace sees it; an open file below /proc/net keeps showing this namespace."""
        with netlink.inside(self.fd):
            return Opened(path.replace("/proc/net/", "/proc/thread-self/net/"))

    def sysctl(self, name: str, value: int | str) -> None:
        """Set the sysctl net.`name` in this namespace."""
        with netlink.inside(self.fd), open(f"/proc/sys/net/{name}", "w") as file:
            file.write(str(value))

    def close(self) -> None:
        """Close the descriptor and the socket; the kernel frees the namespace if nothing else holds it."""
        self.netlink.close()
        os.close(self.fd)


class Kernel(Protocol):
    """The kernel of a guest, which labkit reaches through the endpoint runtime."""

    def open(self, path: str) -> Reading:
        """Open a file as this kernel shows it."""

    def counters(self, interface: str) -> netlink.LinkCounters:
        """Return the counters of one of its interfaces."""

    def sysctl(self, name: str, value: int | str) -> None:
        """Set the sysctl net.`name` of this kernel."""


class EndpointRuntime(Protocol):
    """Where the programs of an endpoint run: a container, or a guest with its own kernel.

    `report` has columns for the rows.
    """

    name: str
    report: dict[str, Any]

    @property
    def prefix(self) -> list[str]:
        """The command line prefix that runs a program in it."""

    @property
    def kernel(self) -> Kernel | None:
        """Its own kernel; None if it shares this host's kernel."""


@dataclass(frozen=True)
class Endpoint:
    """One end of a pair: a namespace, the interface that carries the load, and its address.

    With a `runtime`, programs run in it: a container in the namespace, or a guest. The cable of a guest ends in the
    namespace with the interface `tap`; `interface` is then inside the guest. `published_address`: an address of the
    host at which clients reach the ports of this end; None: they use `address`.
    """

    name: str
    namespace: Namespace
    interface: str
    index: int
    address: str
    runtime: EndpointRuntime | None = None
    tap: str | None = None
    published_address: str | None = None

    @property
    def prefix(self) -> list[str]:
        """The command line prefix that runs a program at this end."""
        return (self.runtime or self.namespace).prefix

    def start(self, argv: Sequence[str], *, held: bool = False) -> process.Running:
        """Start a program at this end. With `held` it is stopped as soon as it exists, until `go`."""
        if self.runtime is None and not held:
            # Without nsenter(1), whose start takes 0.1 s on an emulated CPU.
            with netlink.inside(self.namespace.fd):
                return process.Running(argv)
        if self.runtime is None:
            # nsenter gives the time to stop the program before it does anything.
            program = process.Running([*self.prefix, *argv])
            program.hold()
            return program
        # The client process of a runtime must pass the stop signal on to the program instead of stopping itself.
        words = self.runtime.prefix
        ends = words.index("--")
        report = ["held"] if held else []
        return process.Running([*words[:ends], *report, *words[ends:], *argv], stops=signal.SIGTSTP)

    def open(self, path: str) -> Reading:
        """Open a kernel file below /proc/net, as this end sees it."""
        return (self.kernel or self.namespace).open(path)

    def counters(self) -> netlink.LinkCounters:
        """Return the counters of its interface."""
        if (kernel := self.kernel) is not None:
            return kernel.counters(self.interface)
        return self.namespace.netlink.counters(self.index)

    def sysctl(self, name: str, value: int | str) -> None:
        """Set the sysctl net.`name` at this end."""
        (self.kernel or self.namespace).sysctl(name, value)

    @property
    def kernel(self) -> Kernel | None:
        """The kernel of its guest; None if programs run on this host's kernel."""
        return None if self.runtime is None else self.runtime.kernel


@dataclass(frozen=True)
class Pair:
    """Two ends; the load runs from client to server."""

    client: Endpoint
    server: Endpoint

    @property
    def server_address(self) -> str:
        """The address to which the client sends."""
        return self.server.published_address or self.server.address

    @property
    def shares_a_clock(self) -> bool:
        """Whether both ends have this host's clock, so that their times can be compared."""
        return self.client.kernel is None and self.server.kernel is None


@dataclass(frozen=True)
class RemoteEnd:
    """An end on another host, as this host knows it."""

    name: str
    address: str


@dataclass(frozen=True)
class RemotePair:
    """A client on this host and its server on another host."""

    client: Endpoint
    server: RemoteEnd

    @property
    def server_address(self) -> str:
        """The address to which the client sends."""
        return self.server.address


def first_sysctls(family: int) -> dict[str, int]:
    """Return the sysctls net.* that every namespace and guest gets before it has an interface.

    With family 4, IPv6 is off: router solicitations and listener reports of 256 new ports on one bridge are several
    hundred thousand frames within the first seconds, and labkit would measure them. With family 6, link-local addresses
    stay (a router's neighbour discovery needs one), but the kernel neither probes them for duplicates nor solicits
    routers.

    A TCP socket of a killed program holds its namespace while it tries to deliver its data. If the other end's
    namespace is already gone, it cannot succeed. So it gives up after a second instead of two minutes (tcp(7),
    tcp_orphan_retries, also for IPv6; 0 would mean 8).
    """
    of_v6 = {"disable_ipv6": 1} if family == 4 else {"accept_dad": 0, "router_solicitations": 0}
    return {"ipv4/tcp_orphan_retries": 1, **{f"ipv6/conf/default/{name}": of_v6[name] for name in of_v6}}


@contextmanager
def namespaces(names: list[str], *, family: int) -> Iterator[list[Namespace]]:
    """Make one namespace for each name; release all of them when the block ends."""
    made = [
        Namespace(name, fd, socket)
        for name, (fd, socket) in zip(names, netlink.new_namespaces(len(names)), strict=True)
    ]
    try:
        for namespace in made:
            for name, value in first_sysctls(family).items():
                namespace.sysctl(name, value)
        yield made
    finally:
        for namespace in made:
            namespace.close()
