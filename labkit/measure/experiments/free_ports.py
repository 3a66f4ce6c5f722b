"""Ports and connection tracking, arranged so that they do not end a measurement of connections.

The end that closes a connection first keeps its addresses and ports for a minute (TIME_WAIT), and connection tracking
keeps its entry for two. So during the measurement a client takes a port again after a second, nearly all ports may be
taken, and entries of closed connections expire after a second. What a change has set stays as it is. Of more than
tcp_max_tw_buckets closed connections, the kernel forgets the last ones at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from labkit.common.errors import Failed
from labkit.common.units import counted
from labkit.measure.endpoints import Kernel
from labkit.system.machine import mibs

# The kernel's default, and what it becomes.
SYSCTLS = {
    "ipv4/tcp_tw_reuse": ("2", "1"),
    "ipv4/ip_local_port_range": ("32768 60999", "1024 65535"),
    "netfilter/nf_conntrack_tcp_timeout_time_wait": ("120", "1"),
}
Judged = tuple[dict[str, Any], list[str]]  # columns of a row, and its doubts


@contextmanager
def arranged(spaces: Sequence[Kernel], client: Kernel) -> Iterator[Callable[[], Judged]]:
    """Arrange ports and connection tracking in these namespaces and guests, as long as the block lasts.

    Yields a function that returns what `client` had, and doubts about connections that the kernel did not take.
    """
    with ExitStack() as stack:
        for space in spaces:
            for name, (usual, ours) in SYSCTLS.items():
                if _value(space, name) == usual:
                    space.sysctl(name, ours)
                    stack.callback(space.sysctl, name, usual)
        before = _refused(spaces)

        def judged() -> Judged:
            found = {name: value for name in SYSCTLS if (value := _value(client, name))}
            words = " ".join(
                f"{name.split('/')[1]}={value.replace(' ', '-')}" for name, value in found.items()
            )
            lost = {what: count - before[what] for what, count in _refused(spaces).items()}
            doubts = [
                f"{what} dropped {counted(count, 'packet')} of new connections, which were sent again a second later"
                for what, count in lost.items()
                if count > 0
            ]
            return {"connection_sysctls": words}, doubts

        yield judged


def _value(space: Kernel, name: str) -> str | None:
    with suppress(OSError, Failed):  # without connection tracking
        return " ".join(space.read(f"/proc/sys/net/{name}").split())
    return None


def _refused(spaces: Sequence[Kernel]) -> dict[str, int]:
    """Return how many packets of new connections each cause has dropped since the namespaces exist."""
    result = dict.fromkeys(("a full table of connection tracking", "a full queue of a server"), 0)
    table, queue = result
    for space in spaces:
        result[queue] += mibs.mibs(space.read("/proc/net/netstat"), "TcpExt")["TcpExt"]["ListenDrops"]
        with suppress(OSError):  # without connection tracking
            names, *cpus = map(str.split, space.read("/proc/net/stat/nf_conntrack").splitlines())
            result[table] += sum(int(one[names.index("drop")], 16) for one in cpus)
    return result
