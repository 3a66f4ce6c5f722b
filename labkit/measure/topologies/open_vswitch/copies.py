"""The copies of mirrors where they arrive: counted for each mirror, and read by a process for each interface.

A mirror with a port of its own has an interface of its own at the monitor, whose counter is its count. Mirrors that
share a cable (the trunk of VLANs, the uplink of tunnels) mark their copies. nftables counts each mark where the cable
arrives, behind the sockets of readers, and drops the copy there, because nobody else receives it.

To add a reader, write a function, add it to KINDS, and its name to `switch_options.READERS`.
"""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from labkit.common.errors import Failed, Unsupported
from labkit.common.switch_options import SwitchOptions
from labkit.common.switch_options import options as parse
from labkit.measure.endpoints import Namespace, namespaces
from labkit.measure.endpoints.nftables import check_no_udp_gro, count_at_ingress
from labkit.measure.topologies.base import MONITOR, Copies, Spec
from labkit.measure.topologies.physical_nic import borrowed_nic
from labkit.system import machine, netlink, process
from labkit.system.netlink.nft_counters import NftCounters
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
RSPAN_VLAN = 4000  # the VLAN of the first mirror's copies
TABLE = "mirrors"
# Where a copy has its mirror's mark, as nft(8) writes it. In tunnels that is the key (RFC 2890, after four bytes), the
# network identifier (RFC 7348, after eight bytes of UDP and four of VXLAN), or the session (draft-foschiano-erspan-03,
# the last ten bits of four bytes, after four bytes of GRE and the sequence number).
MARKS = {"vlan": "vlan id", "gre": "@th,32,32", "vxlan": "@th,96,24", "erspan": "@th,80,16 & 0x3ff"}
ONLY = {"gre": "meta l4proto 47", "erspan": "meta l4proto 47", "vxlan": "meta l4proto 17"}


def mark(output: str, number: int) -> int:
    """Return the mark of a mirror's copies: their VLAN, or the key of their tunnel."""
    return RSPAN_VLAN + number if output == "vlan" else number + 1


@contextmanager
def counting(
    options: SwitchOptions, space: Namespace, ends: Sequence[tuple[str, int]]
) -> Iterator[Callable[[], Copies]]:
    """Count the copies that arrive at these interfaces (name, index) of a namespace until the block ends.

    Yields a function that returns those up to now. They are not told apart (`of_mirrors` is None) if several mirrors
    share a cable and there is no nft(8), the kernel has no such hook, or the cable joins datagrams.
    """

    def arrived() -> list[int]:
        return [space.netlink.counters(index).received_count for _name, index in ends]

    if len(ends) == options.mirrors:
        yield lambda: Copies(sum(counts := arrived()), tuple(counts))
        return
    [(cable, _index)] = ends
    names = [f"mirror{number}" for number in range(options.mirrors)]
    of_marks = ", ".join(f'{mark(options.output, number)} : "{one}"' for number, one in enumerate(names))
    rule = f"{ONLY.get(options.output, '')} counter name {MARKS[options.output]} map {{ {of_marks} }} drop"
    with closing(NftCounters(space.fd, TABLE)) as counters:
        try:
            check_no_udp_gro(space, cable)
            count_at_ingress(space, cable, TABLE, names, rule)
        except Unsupported:
            names = []

        def counts() -> Copies:
            return Copies(sum(arrived()), tuple(counters.read(names)) if names else None)

        yield counts


@contextmanager
def receiving(spec: Spec, switch: str) -> Iterator[tuple[str, Callable[[], Copies]]]:
    """Read the copies of this switch (the topology's name) that arrive at the NIC, until the block ends.

    Yields the MAC address of the NIC, and a function that returns the copies that have arrived up to now. Nothing
    answers, so nothing is sent. Raises BadInput for a NIC that cannot be used, and as `reading`.
    """
    options = parse(switch)
    with (
        namespaces([MONITOR], family=spec.family) as [space],
        borrowed_nic(spec, space, moved=True) as (kernel, index),
    ):
        nic = next(link for link in netlink.links(kernel) if link.index == index)
        assert nic.mac is not None, "it is Ethernet"
        ends = [(nic.name, index)]
        with counting(options, space, ends) as arrived, reading(options.readers, space, ends) as unread:
            yield nic.mac, lambda: msgspec.structs.replace(arrived(), unread=unread())


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
        sockets = stack.enter_context(closing(PacketSockets(space.fd)))
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
    ring = stack.enter_context(closing(Ring(space.fd, interface, SNAP_BYTES, RING_BYTES)))
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
