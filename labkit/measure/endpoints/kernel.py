"""What observers and changes ask of the kernel of an endpoint, wherever it runs: read this, write that, run that."""

import abc
import socket
import struct
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple

from labkit.common.errors import Failed
from labkit.system import machine, netlink, process
from labkit.system.machine import mibs

# The state of a socket that takes what comes, in hexadecimal: TCP_LISTEN, and of UDP TCP_CLOSE
# (include/net/tcp_states.h)
OPEN = {"tcp": "0A", "udp": "07"}


class Listening(NamedTuple):
    """A socket that takes what comes: its own address, its port, and its inode."""

    address: str
    port: int
    inode: int


class Kernel(abc.ABC):
    """A kernel as an endpoint sees it: this host's through a network namespace, or a guest's.

    `name`: of the namespace or of the guest. `is_here`: it is this host's, so its ends share a clock, and this process
    can open sockets at them.
    """

    name: str
    is_here = False

    @property
    @abc.abstractmethod
    def prefix(self) -> list[str]:
        """The command line prefix that runs a program on it, in the network namespace of the end."""

    @abc.abstractmethod
    def read_bytes(self, path: str) -> bytes:
        """Return the content of a file. Raises OSError, or Failed if a guest does not answer."""

    @abc.abstractmethod
    def write(self, path: str, content: bytes) -> None:
        """Write a file. Raises OSError, or Failed if a guest does not answer."""

    @abc.abstractmethod
    def file(self, name: str, content: bytes) -> AbstractContextManager[str]:
        """Return a context with the path of a file of this name and content, which programs on this kernel can read."""

    def read(self, path: str) -> str:
        """Return the text of a file, as `read_bytes`."""
        return self.read_bytes(path).decode(errors="replace")

    def run(self, name: str, *words: str, timeout_s: float = 20.0) -> process.Ended:
        """Run a program; `words` are arguments, never a shell's."""
        return process.run([*self.prefix, machine.program(name), *words], timeout_s)

    def listens(self, port: int, transport: str = "tcp") -> bool:
        """Return whether a socket of TCP or UDP listens on a port."""
        return any(one.port == port for one in self.listening(transport))

    def listening(self, transport: str = "tcp") -> list[Listening]:
        """Return the sockets of TCP or UDP that take what comes (/proc/net/tcp; proc(5))."""
        result = []
        for name, family in ((f"{transport}6", socket.AF_INET6), (transport, socket.AF_INET)):
            with suppress(FileNotFoundError):  # of a kernel without IPv6
                for line in self.read(f"/proc/net/{name}").splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == OPEN[transport]:
                        digits, port = fields[1].split(":")
                        words = (int(digits[at : at + 8], 16) for at in range(0, len(digits), 8))
                        address = socket.inet_ntop(family, b"".join(struct.pack("=I", one) for one in words))
                        if "." in address:  # IPv4 at a socket of IPv6
                            address = address.removeprefix("::ffff:")
                        result.append(Listening(address, int(port, 16), int(fields[9])))
        return result

    def sysctl(self, name: str, value: int | str) -> None:
        """Set the sysctl net.`name`."""
        self.write(f"/proc/sys/net/{name}", str(value).encode())

    def counters(self, interface: str, _index: int) -> netlink.LinkCounters:
        """Return the counters of an interface, which this host knows by its index and a guest by its name."""
        counts = mibs.interfaces(self.read("/proc/net/dev")).get(interface)
        if counts is None:
            raise Failed(f"{self.name} has no interface {interface}")
        return netlink.LinkCounters(counts["rx_bytes"], counts["rx_packets"], counts["tx_packets"])

    def offloads(self, interface: str) -> dict[str, bool]:
        """Return the features of an interface by ethtool's names; empty if neither the kernel nor ethtool reports them.

        Raises Failed if there is no such interface.
        """
        return machine.offloads(self.prefix, interface)

    def qdisc(self, interface: str, _index: int) -> str:
        """Return the root queueing discipline of an interface. Raises Failed if there is no such interface."""
        return machine.qdisc(self.prefix, interface)
