"""Network namespaces without a name, the fastest kind of endpoint: 0.7 ms each.

The kernel frees a namespace when no process and no file descriptor holds it.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Protocol

from labkit.common.errors import Failed, Unsupported
from labkit.measure.endpoints.kernel import Kernel
from labkit.system import netlink, process
from labkit.system.netlink import ethtool

# Files that are read around slices of 100 ms stay open: opening one anew takes three times as long as reading it.
KEPT_OPEN = ("/proc/net/snmp", "/proc/net/snmp6", "/proc/net/dev")
SETTLE_S = 30.0  # for a slow machine; usually some milliseconds are enough


class Namespace(Kernel):
    """A network namespace held by a file descriptor, with a netlink socket in it."""

    is_here = True

    def __init__(self, name: str, fd: int, socket: netlink.Netlink) -> None:
        self._open: dict[str, int] = {}
        self.name = name
        self.fd = fd
        self.netlink = socket
        socket.where = name

    @property
    def prefix(self) -> list[str]:
        """The command line prefix that runs a program in this namespace.

        It refers to the file descriptor through this process, which must therefore keep running.
        """
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.fd}", "--"]

    def read_bytes(self, path: str) -> bytes:
        file = self._open.get(path)
        if file is None:
            with netlink.inside(self.fd):
                # An open file below /proc/net keeps showing the namespace in which it was opened.
                own = path.replace("/proc/net/", "/proc/thread-self/net/")
                file = os.open(own, os.O_RDONLY | os.O_CLOEXEC)
            if path in KEPT_OPEN:
                self._open[path] = file
        try:
            # A read of a file that the kernel makes record by record ends with a page (fs/seq_file.c).
            content = b""
            while part := os.pread(file, 1 << 16, len(content)):
                content += part
            return content
        finally:
            if path not in self._open:
                os.close(file)

    def write(self, path: str, content: bytes) -> None:
        with netlink.inside(self.fd):
            Path(path).write_bytes(content)

    @contextmanager
    def file(self, name: str, content: bytes) -> Iterator[str]:
        with tempfile.TemporaryDirectory() as folder:
            (path := Path(folder) / name).write_bytes(content)
            yield str(path)

    def counters(self, _interface: str, index: int) -> netlink.LinkCounters:
        return self.netlink.counters(index)

    def offloads(self, interface: str) -> dict[str, bool]:
        """Return the features of an interface over netlink, because starting a program takes long on an emulated CPU;
        of an old kernel, with ethtool."""
        with suppress(Unsupported), netlink.inside(self.fd):
            return ethtool.features(interface)
        return super().offloads(interface)

    def wait_for_addresses(self, addresses: Iterable[IPv4Address | IPv6Address]) -> None:
        """Wait until packets to these addresses are for this namespace.

        The kernel adds the local route of an IPv6 address in a workqueue (addrconf_dad_work): of 300 TCP connections
        to a new address of lo, 29 to 40 failed. Raises Failed after SETTLE_S.
        """
        deadline = time.monotonic() + SETTLE_S
        for one in addresses:
            while one.version == 6 and not netlink.is_local(self.netlink, str(one)):
                if time.monotonic() > deadline:
                    raise Failed(
                        f"{self.name} takes no packets for its address {one} after {SETTLE_S:.0f} s: build it again, on"
                        " a less busy machine"
                    )
                time.sleep(0.002)

    def qdisc(self, _interface: str, index: int) -> str:
        return netlink.qdisc(self.netlink, index)

    def close(self) -> None:
        """Close the descriptors and the socket; the kernel frees the namespace if nothing else holds it."""
        for file in self._open.values():
            os.close(file)
        self.netlink.close()
        os.close(self.fd)


class EndpointRuntime(Protocol):
    """Where the programs of an endpoint run: a container, or a guest with its own kernel.

    `report` has columns for the rows. `shared_folder`: a folder that its programs and this process may write into, with
    its path here and there; None: a guest has none.
    """

    name: str
    report: dict[str, Any]
    shared_folder: tuple[Path, str] | None

    @property
    def prefix(self) -> list[str]:
        """The command line prefix that runs a program in it."""

    @property
    def kernel(self) -> Kernel:
        """The kernel on which they run."""


@contextmanager
def _bound(cpu: int | None) -> Iterator[None]:
    """Bind this thread, and what it starts, to a CPU for the block; None: to those that it has."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if cpu is None else {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Endpoint:
    """One end of a pair: a namespace, the interface that carries the load, and its address.

    With a `runtime`, programs run in it: a container in the namespace, or a guest. The cable of a guest ends in the
    namespace with the interface `tap`; `interface` is then inside the guest. `published_address`: an address of the
    host at which clients reach the ports of this end; None: they use `address`. `port_offset`: added to the port of a
    generator's server here, where several arms share an end. `cpu`: the CPU of programs that are started here; None:
    any. `programs`: paths of those that are started instead of others, by the names of these. `more_header_bytes`:
    what its interface counts of a full packet of TCP in addition to the usual headers (ESP in transport mode). `vlan`:
    the VLAN whose tag the packet generator's frames from here carry; None: they have none.
    """

    name: str
    namespace: Namespace
    interface: str
    index: int
    address: str
    runtime: EndpointRuntime | None = None
    tap: str | None = None
    published_address: str | None = None
    port_offset: int = 0
    cpu: int | None = None
    programs: Mapping[str, str] = field(default_factory=dict, compare=False)
    more_header_bytes: int = 0
    vlan: int | None = None

    @property
    def prefix(self) -> list[str]:
        """The command line prefix that runs a program at this end."""
        return (self.runtime or self.namespace).prefix

    def start(self, argv: Sequence[str], *, held: bool = False) -> process.Running:
        """Start a program at this end. With `held` it is stopped as soon as it exists, until `go`."""
        argv = [self.programs.get(argv[0], argv[0]), *argv[1:]]
        if self.runtime is None and not held:
            # Without nsenter(1), whose start takes 0.1 s on an emulated CPU.
            with netlink.inside(self.namespace.fd), _bound(self.cpu):
                return process.Running(argv)
        if self.runtime is None:
            # nsenter gives the time to stop the program before it does anything.
            program = process.Running([*self.prefix, *argv])
            program.hold()
            return program
        if self.cpu is not None:
            argv = ["taskset", "--cpu-list", str(self.cpu), *argv]
        # The client process of a runtime must pass the stop signal on to the program instead of stopping itself.
        words = self.runtime.prefix
        ends = words.index("--")
        report = ["held"] if held else []
        return process.Running([*words[:ends], *report, *words[ends:], *argv], stops=signal.SIGTSTP)

    def shared_folder(self, scratch: Path) -> tuple[Path, str]:
        """Return a folder that this process and programs at this end may write into: its path here, and there.

        `scratch`: a folder of this process, which programs in a namespace see, too. No guest has one.
        """
        shared = (scratch, str(scratch)) if self.runtime is None else self.runtime.shared_folder
        assert shared is not None
        return shared

    def counters(self) -> netlink.LinkCounters:
        return self.kernel.counters(self.interface, self.index)

    @property
    def kernel(self) -> Kernel:
        """The kernel on which its programs run: that of its guest, or this host's through its namespace."""
        return self.namespace if self.runtime is None else self.runtime.kernel


@dataclass(frozen=True)
class Pair:
    """Two ends; the load runs from client to server."""

    client: Endpoint
    server: Endpoint

    @property
    def turned(self) -> "Pair":
        """The pair with its ends swapped."""
        return Pair(self.server, self.client)

    @property
    def server_address(self) -> str:
        """The address to which the client sends."""
        return self.server.published_address or self.server.address

    @property
    def shares_a_clock(self) -> bool:
        """Whether both ends have this host's clock, so that their times can be compared."""
        return self.client.kernel.is_here and self.server.kernel.is_here


@dataclass(frozen=True)
class RemoteEnd:
    """An end on another host, as this host knows it."""

    name: str
    address: str
    port_offset: int = 0


@dataclass(frozen=True)
class RemotePair:
    """A client on this host and its server on another host."""

    client: Endpoint
    server: RemoteEnd

    @property
    def server_address(self) -> str:
        """The address to which the client sends."""
        return self.server.address


def directed(pairs: Sequence[Pair], direction: str) -> Sequence[Pair]:
    """Return the pairs for frames in a direction: forward, reverse (their ends swapped), or both.

    Raises Unsupported for reverse and both if ends share a namespace or a guest.
    """
    if direction == "forward":
        return pairs
    if len({id(end.kernel) for pair in pairs for end in (pair.client, pair.server)}) < 2 * len(pairs):
        raise Unsupported(
            "ends share a namespace or a guest, which mixes the directions: let only the clients send"
        )
    turned = [pair.turned for pair in pairs]
    return turned if direction == "reverse" else [*pairs, *turned]


def of_guests(ends: Iterable[Endpoint]) -> dict[str, Kernel]:
    """Return the kernels of the guests at these ends by the names of the guests, which several ends may share."""
    return {end.kernel.name: end.kernel for end in ends if not end.kernel.is_here}


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
