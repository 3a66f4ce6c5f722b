"""Anonymous network namespaces, the fast endpoint: 0.7 ms each, freed by the kernel when nothing holds
them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

from labkit.system import netlink, process


class Reading(Protocol):
    """A file of the kernel's at an endpoint, read from its beginning as often as one likes."""

    def read(self) -> str:
        """All of it, as it is now."""

    def close(self) -> None:
        """Let go of it."""

    def __enter__(self) -> Self:
        """For `with`."""

    def __exit__(self, *_: object) -> None:
        """Let go of it."""


class Opened:
    """A file that is open here."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> str:
        """Up to 64 KB of it, as it is now."""
        return os.pread(self._fd, 1 << 16, 0).decode()

    def close(self) -> None:
        """Let go of it."""
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
        """The words that make a command run in here. They name the descriptor by this process, which must
        live on."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.fd}", "--"]

    def open(self, path: str) -> Opened:
        """A file as it reads in here; what lies under /proc/net stays that of this namespace after
        opening."""
        with netlink.inside(self.fd):
            return Opened(path.replace("/proc/net/", "/proc/thread-self/net/"))

    def sysctl(self, name: str, value: int | str) -> None:
        """Set net.`name` in here."""
        with netlink.inside(self.fd), open(f"/proc/sys/net/{name}", "w") as file:
            file.write(str(value))

    def close(self) -> None:
        """Let go of it."""
        self.netlink.close()
        os.close(self.fd)


class Kernel(Protocol):
    """A kernel that is not this one, asked through the box that it runs in."""

    def open(self, path: str) -> Reading:
        """A file as it reads there."""

    def counters(self, interface: str) -> netlink.LinkCounters:
        """What an interface there has received."""

    def sysctl(self, name: str, value: int | str) -> None:
        """Set net.`name` there."""


class EndpointRuntime(Protocol):
    """What programs of an endpoint run in: a container, or a guest, which has a kernel of its own. `told` are columns
    of rows."""

    name: str
    report: dict[str, Any]

    @property
    def prefix(self) -> list[str]:
        """The words that make a command run in it."""

    @property
    def kernel(self) -> Kernel | None:
        """Its kernel; None where that is this one."""


@dataclass(frozen=True)
class Endpoint:
    """One end of a pair: a namespace, the interface that carries the load, and its address.

    With a `box`, programs run in that: a container in the namespace, or a guest whose cable ends in the namespace and
    whose own kernel has the interface; `tap` is what is seen of its cable here.
    """

    name: str
    namespace: Namespace
    interface: str
    index: int
    address: str
    box: EndpointRuntime | None = None
    tap: str | None = None

    @property
    def prefix(self) -> list[str]:
        """The words that make a command run at this end."""
        return (self.box or self.namespace).prefix

    def start(self, argv: Sequence[str], *, held: bool = False) -> process.Running:
        """Start a program at this end; with `held` it is stopped as soon as it exists, until it may `go`."""
        if self.box is None:
            program = process.Running([*self.prefix, *argv])
            if held:
                program.hold()
            return program
        # What stands in front of a program in a box can be told to stop it, and not be stopped itself in its place.
        words = self.box.prefix
        ends = words.index("--")
        report = ["held"] if held else []
        return process.Running([*words[:ends], *report, *words[ends:], *argv], stops=signal.SIGTSTP)

    def open(self, path: str) -> Reading:
        """A file of the kernel's under /proc/net, as it reads at this end."""
        return (self._kernel or self.namespace).open(path)

    def counters(self) -> netlink.LinkCounters:
        """What its interface has received."""
        if (kernel := self._kernel) is not None:
            return kernel.counters(self.interface)
        return self.namespace.netlink.counters(self.index)

    def sysctl(self, name: str, value: int | str) -> None:
        """Set net.`name` at this end."""
        (self._kernel or self.namespace).sysctl(name, value)

    @property
    def _kernel(self) -> Kernel | None:
        return None if self.box is None else self.box.kernel


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
