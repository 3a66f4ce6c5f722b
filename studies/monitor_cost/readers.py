"""Programs that watch an interface, one at a time: how each is started, when it is ready, and what it counted.

Every reader looks for one flow. `socket` is the reference: a packet socket with the same filter in the kernel, whose
packets are received and thrown away. To add a reader, write a function and add it to READERS.
"""

import contextlib
import re
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import msgspec

from labkit.common import errors
from labkit.common.errors import Failed
from labkit.common.packets import ETHERNET
from labkit.measure.observers.capture import SNAP_BYTES, CapturePoint
from labkit.measure.observers.monitor import Monitor, Request, Selection
from labkit.system import libpcap, machine, netlink, process, temporary_files
from labkit.system.netlink.packet_sockets import PacketSockets
from labkit.system.recording.packet_ring import SOL_PACKET, attach

START_S, STOP_S = 30.0, 60.0
READY_S = 0.1  # dumpcap opens and closes sockets before the one that it captures with
ETH_P_ALL = 3
PACKET_STATISTICS = 6
ENOUGH_BYTES = 64
BUFFER_BYTES = 16 << 20  # of the reference, as much as the monitor's ring
COUNTED = {
    # received and dropped, by the program's own words when it ends
    "tcpdump": (r"(\d+) packets? captured", r"(\d+) packets? dropped by kernel"),
    "dumpcap": (
        r"received/dropped on interface .*?: (\d+)/",
        r"received/dropped on interface .*?: \d+/(\d+)",
    ),
    "tshark": (None, r"(\d+) packets? dropped"),
}


@dataclass(frozen=True)
class ReaderCounts:
    """What a reader counted: packets that it took, packets that it lost and knows of, and packets of the wanted flow.

    None: the reader does not say.
    """

    taken: int | None = None
    dropped: int | None = None
    wanted_found: int | None = None


@dataclass(frozen=True)
class RunningReader:
    """A reader at work. `pid` is its process, 0 if it has none. `stop` ends it and returns what it counted."""

    pid: int
    stop: Callable[[], ReaderCounts]
    start_s: float = 0.0


# Starts a reader at an interface; it is ready when the block begins, and gone when the block ends. It takes the source
# port of the wanted UDP flow, and what `monitor_sampled` samples. Raises Unsupported for a program that is missing,
# Failed for one that does not start.
Start = Callable[[CapturePoint, int, str], AbstractContextManager[RunningReader]]


@contextmanager
def _nothing(_hop: CapturePoint, _port: int, _sample: str) -> Iterator[RunningReader]:
    """Nobody watches: the baseline."""
    yield RunningReader(0, ReaderCounts)


@contextmanager
def _socket(hop: CapturePoint, port: int, _sample: str) -> Iterator[RunningReader]:
    """A packet socket with a filter in the kernel."""
    begun = time.monotonic()
    program = libpcap.compiled(Selection(port=port, protocol="udp").filter(), ETHERNET, SNAP_BYTES)

    def work(connection: socket.socket) -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as receiver:
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            attach(receiver, program)
            receiver.bind((hop.interface, ETH_P_ALL))
            connection.sendall(b"ready\n")
            connection.sendall(msgspec.json.encode(_receive_all(receiver, connection)) + b"\n")

    with netlink.inside(hop.namespace.fd):
        forked = process.Forked(work)

    def stop() -> ReaderCounts:
        count, dropped = msgspec.json.decode(forked.stop(STOP_S), type=tuple[int, int])
        return ReaderCounts(count, dropped, count)

    try:
        forked.receive(START_S)
        yield RunningReader(forked.pid, stop, time.monotonic() - begun)
    finally:
        forked.kill()


def _receive_all(receiver: socket.socket, connection: socket.socket) -> tuple[int, int]:
    """Receive and throw away until the other end of `connection` is closed. Returns packets received and dropped."""
    buffer, count = bytearray(ENOUGH_BYTES), 0
    receiver.setblocking(False)
    poll = select.poll()
    poll.register(receiver, select.POLLIN)
    poll.register(connection, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        with contextlib.suppress(BlockingIOError):
            while receiver.recv_into(buffer):
                count += 1
        if connection.fileno() in ready:
            statistics = receiver.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
            return count, struct.unpack("II", statistics)[1]


def _monitor(request: Callable[[int, str], Request], finds: bool) -> Start:
    """labkit's own monitor. `finds`: it tells the wanted flow from others."""

    @contextmanager
    def start(hop: CapturePoint, port: int, sample: str) -> Iterator[RunningReader]:
        begun = time.monotonic()
        one = Monitor(hop, request(port, sample))
        start_s = time.monotonic() - begun

        def stop() -> ReaderCounts:
            counts = one.close().counts
            taken = counts.selected_count - counts.dropped_count - counts.waiting_count
            return ReaderCounts(taken, counts.dropped_count, taken if finds else None)

        try:
            yield RunningReader(one.pid, stop, start_s)
        finally:
            one.kill()

    return start


def _program(name: str, arguments: Callable[[str, str, int], list[str]], finds: bool = False) -> Start:
    """A program that captures; `arguments` returns them for an interface, a file and the wanted port."""

    @contextmanager
    def start(hop: CapturePoint, port: int, _sample: str) -> Iterator[RunningReader]:
        path = machine.require_program(name)
        with TemporaryDirectory(prefix="labkit-", dir=temporary_files.in_memory()) as folder:
            begun = time.monotonic()
            argv = [*hop.namespace.prefix, path, *arguments(hop.interface, f"{folder}/packets", port)]
            with process.all_ended([process.Running(argv)]) as [program]:
                _wait_ready(name, hop, program)

                def stop() -> ReaderCounts:
                    program.signal(signal.SIGINT)
                    ended = program.ended_within(STOP_S)
                    if ended.timed_out or ended.returncode not in (0, -signal.SIGINT):
                        raise Failed(f"the reader {ended.message()}")
                    return parse_counts(name, ended.stderr, len(ended.stdout.splitlines()) if finds else None)

                yield RunningReader(program.pid, stop, time.monotonic() - begun)

    return start


@errors.reading("the last words of a reader")
def parse_counts(name: str, text: str, wanted_found: int | None = None) -> ReaderCounts:
    """Return what a program counted, from its last words on standard error."""
    found = (re.findall(pattern, text) if pattern else [] for pattern in COUNTED[name])
    taken, dropped = (int(numbers[-1]) if numbers else None for numbers in found)
    # tshark is silent about drops if there were none.
    return ReaderCounts(taken, dropped if dropped is not None or name != "tshark" else 0, wanted_found)


def _wait_ready(name: str, hop: CapturePoint, program: process.Running) -> None:
    """Wait until the interface has had a packet socket for a while."""
    with netlink.inside(hop.namespace.fd):
        index = netlink.index_of(hop.interface)
    deadline, since = time.monotonic() + START_S, None
    with contextlib.closing(PacketSockets(hop.namespace.fd)) as sockets:
        while since is None or time.monotonic() - since < READY_S:
            if program.poll():
                raise Failed(f"the reader {program.ended().message()}")
            if time.monotonic() > deadline:
                raise Failed(f"{name} opened no packet socket within {START_S:g} s")
            since = None if index not in sockets.drops() else since or time.monotonic()
            time.sleep(0.01)


READERS: dict[str, Start] = {
    "none": _nothing,
    "socket": _socket,
    "tcpdump": _program(
        "tcpdump", lambda link, file, _port: ["-Z", "root", "-n", "-i", link, "-w", file]
    ),
    "dumpcap": _program("dumpcap", lambda link, file, _port: ["-q", "-i", link, "-w", file]),
    "tshark": _program(
        "tshark",
        lambda link, _file, port: [
            "-n", "-l", "-i", link, "-Y", f"udp.srcport == {port}", "-T", "fields", "-e", "frame.number",
        ],
        finds=True,
    ),
    "monitor": _monitor(lambda port, _sample: Request(Selection(port=port, protocol="udp")), finds=True),
    "monitor_sampled": _monitor(lambda _port, sample: Request(sample=sample), finds=False),
    "monitor_all": _monitor(lambda _port, _sample: Request(), finds=False),
}  # fmt: skip
