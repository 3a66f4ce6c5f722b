"""Readers of mirrored copies: a process for each interface in the namespace where the copies arrive."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labkit.common.errors import Failed
from labkit.measure.endpoints import Namespace
from labkit.system import machine, netlink, process

ETH_P_ALL = 3
START_S = 10.0
COUNTER = "mirror_reader"  # the name of a counting process in profiles
ENOUGH_BYTES = 64  # bytes of a packet that suffice to count it


@contextmanager
def reading(kind: str, space: Namespace, interfaces: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Run a reader (`count`, `tcpdump` or `none`) at each of these interfaces (name, index) until the block ends.

    Raises Unsupported if tcpdump is missing, Failed with its message, or if a reader does not start.
    """
    with ExitStack() as stack:
        ended: list[Callable[[], str | None]] = []
        for name, _index in interfaces if kind != "none" else ():
            if kind == "tcpdump":
                argv = [*space.prefix, machine.program("tcpdump"), "-n", "-i", name, "-w", "/dev/null"]
                [program] = stack.enter_context(process.all_ended([process.Running(argv)]))
                ended.append(lambda one=program: one.ended().words() if one.poll() else None)  # type: ignore[misc]
            else:
                stack.callback(_counter(space, name).kill)
        if kind != "none":
            _wait(space, {index for _name, index in interfaces}, ended)
        yield


def _wait(space: Namespace, wanted: set[int], ended: Sequence[Callable[[], str | None]]) -> None:
    """Wait until every interface has a packet socket that receives from it."""
    sockets = netlink.PacketSockets(space.fd)
    try:
        deadline = time.monotonic() + START_S
        while not wanted <= set(sockets.drops()):
            words = next((result for one in ended if (result := one()) is not None), None)
            if words is not None or time.monotonic() > deadline:
                raise Failed(f"a reader of copies did not start: {words or f'not within {START_S:.0f} s'}")
            time.sleep(0.002)
    finally:
        sockets.close()


def _counter(space: Namespace, interface: str) -> process.Forked:
    """Start a process that receives and discards every packet of an interface."""

    def work(_connection: socket.socket) -> None:
        Path("/proc/self/comm").write_text(COUNTER)
        buffer = bytearray(ENOUGH_BYTES)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as receiver:
            receiver.bind((interface, ETH_P_ALL))
            while True:
                receiver.recv_into(buffer)

    with netlink.inside(space.fd):
        return process.Forked(work)
