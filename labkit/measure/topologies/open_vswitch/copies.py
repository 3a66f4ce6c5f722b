"""Readers of mirrored copies: a process for each interface in the namespace where the copies arrive.

To add a reader, write a function, add it to KINDS, and its name to `switch_options.READERS`.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from labkit.common.errors import Failed
from labkit.measure.endpoints import Namespace
from labkit.system import machine, netlink, process
from labkit.system.netlink.packet_sockets import PacketSockets
from labkit.system.recording.packet_ring import Ring
from labkit.system.recording.recorder import Limits, Recorder

ETH_P_ALL = 3
START_S = 10.0
COUNTER = "mirror_reader"  # the name of a counting process in profiles
ENOUGH_BYTES = 64  # bytes of a packet that suffice to count it
# Of a recorder: what labkit keeps of a packet and its ring by default; rate and size of the file have no limit.
SNAP_BYTES, RING_BYTES = 256, 4 << 20
NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class _Reader:
    """A running reader.

    `end`: returns how it ended, in words, or None while it runs. `lost_count`: returns how many packets it has lost
    since it started, None if nobody can know. A reader without this function is counted by the kernel at its socket.
    """

    end: Callable[[], str | None]
    lost_count: Callable[[], int | None] | None = None


Start = Callable[[ExitStack, Namespace, str], _Reader]


@contextmanager
def reading(
    kind: str, space: Namespace, interfaces: Sequence[tuple[str, int]]
) -> Iterator[Callable[[], tuple[int | None, ...]]]:
    """Run a reader (`switch_options.READERS`) at each of these interfaces (name, index) until the block ends.

    Yields a function that returns the packets that each reader has lost up to now, None if nobody can know; it raises
    Failed if a reader has ended. Raises Unsupported if tcpdump is missing, and Failed, with the reader's message, if a
    reader does not start.
    """
    if kind == "none":
        yield lambda: (0,) * len(interfaces)
        return
    with ExitStack() as stack:
        sockets = stack.enter_context(contextlib.closing(PacketSockets(space.fd)))
        running = [KINDS[kind](stack, space, name) for name, _index in interfaces]
        _wait(sockets, {index for _name, index in interfaces}, running)

        def lost_counts() -> tuple[int | None, ...]:
            if (words := _end(running)) is not None:
                raise Failed(f"a reader of copies has ended: {words}")
            at_sockets = sockets.drops()
            return tuple(
                at_sockets.get(index, 0) if one.lost_count is None else one.lost_count()
                for one, (_name, index) in zip(running, interfaces, strict=True)
            )

        yield lost_counts


def _end(running: Sequence[_Reader]) -> str | None:
    """Return how the first of the readers that have ended did so, in words; None while all run."""
    return next((words for one in running if (words := one.end()) is not None), None)


def _wait(sockets: PacketSockets, wanted: set[int], running: Sequence[_Reader]) -> None:
    """Wait until every interface has a packet socket that receives from it."""
    deadline = time.monotonic() + START_S
    while not wanted <= set(sockets.drops()):
        words = _end(running)
        if words is not None or time.monotonic() > deadline:
            raise Failed(f"a reader of copies did not start: {words or f'not within {START_S:.0f} s'}")
        time.sleep(0.002)


def _count(stack: ExitStack, space: Namespace, interface: str) -> _Reader:
    """Start a process that receives and discards every packet of an interface."""

    def work(_connection: socket.socket) -> None:
        Path("/proc/self/comm").write_text(COUNTER)
        buffer = bytearray(ENOUGH_BYTES)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as receiver:
            receiver.bind((interface, ETH_P_ALL))
            while True:
                receiver.recv_into(buffer)

    with netlink.inside(space.fd):
        counting = process.Forked(work)
    stack.callback(counting.kill)
    return _Reader(counting.poll)


def _tcpdump(stack: ExitStack, space: Namespace, interface: str) -> _Reader:
    # Without -Z it would become another user, and give that user what it writes to: the machine's /dev/null.
    words = ["-Z", "root", "-n", "-i", interface, "-w", "/dev/null"]
    argv = [*space.prefix, machine.program("tcpdump"), *words]
    [program] = stack.enter_context(process.all_ended([process.Running(argv)]))
    # Its ring drops without a count at the socket, and it prints its own count only when it ends.
    return _Reader(lambda: program.ended().message() if program.poll() else None, lambda: None)


def _record(stack: ExitStack, space: Namespace, interface: str) -> _Reader:
    """Start the recorder of labkit's captures. Its ring counts what did not fit, and its socket does not."""
    ring = stack.enter_context(contextlib.closing(Ring(space.fd, interface, SNAP_BYTES, RING_BYTES)))
    nowhere = Path("/dev/null")
    file = stack.enter_context(nowhere.open("wb", buffering=0))
    recorder = Recorder([ring], nowhere, file, Limits(SNAP_BYTES, NO_LIMIT, NO_LIMIT, 0.0))

    def work(control: socket.socket) -> None:
        Path("/proc/self/comm").write_text(COUNTER)
        recorder.record(control)

    recording = process.Forked(work, recorder.descriptors())
    # It is killed rather than stopped, because nobody reads the report of what went to /dev/null.
    stack.callback(recording.kill)
    return _Reader(recording.poll, lambda: ring.counts()[1])


KINDS: dict[str, Start] = {"count": _count, "tcpdump": _tcpdump, "record": _record}
