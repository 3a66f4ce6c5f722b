"""The process that records packets: it empties the rings into a file, beside the experiment."""

import contextlib
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from labkit.common import run_folder
from labkit.common.errors import Failed
from labkit.common.packets import pcapng
from labkit.common.packets.pcapng import Counts
from labkit.system.recording.packet_ring import OUTGOING, Ring

POLL_S = 1.0
QUIET_S = 0.05  # after such a pause no more packets are expected
STEP_S = 0.01
DRAIN_S = 5.0
RECEPTION = {0: 4, 1: 12, 2: 8, 3: 16}  # sll_pkttype to pcapng's reception type


@dataclass(frozen=True)
class Limits:
    """The limits of a recording.

    `snap_bytes`: how many bytes of each packet are recorded. `rate_pps`: how many packets of a ring within a second.
    `total_bytes`: the size of the file. `settle_s`: how long recording goes on at most once it is to stop.
    """

    snap_bytes: int
    rate_pps: int
    total_bytes: int
    settle_s: float


class RecorderReport(msgspec.Struct):
    """The recorder's final report: counts in the order of the points, or an error."""

    counts: list[Counts] = []
    error: str | None = None


class _RecordedInterface:
    """A ring and the counts of its packets."""

    def __init__(self, number: int, ring: Ring, limits: Limits) -> None:
        self.number = number
        self.ring = ring
        self._limits = limits
        self._second = self._in_second = 0
        self.captured = self.skipped = self.truncated = 0

    def read(self, room_bytes: int) -> bytes:
        """Return the new packets as blocks of the file, within the limits of space and rate."""
        blocks: list[bytes] = []
        rate, written = self._limits.rate_pps, 0
        for time_ns, kind, whole, data in self.ring.packets():
            second = time_ns // 1_000_000_000
            if second != self._second:
                self._second, self._in_second = second, 0
            self._in_second += 1
            if self._in_second > rate or written >= room_bytes:
                self.skipped += 1
                continue
            flags = 2 if kind == OUTGOING else 1 | RECEPTION.get(kind, 0)
            blocks.append(pcapng.packet(self.number, time_ns, flags, whole, data))
            written += len(blocks[-1])
            self.captured += 1
            self.truncated += len(data) < whole
        return b"".join(blocks)

    def counts(self) -> Counts:
        return Counts(self.captured, self.ring.counts()[1], self.skipped, self.truncated)

    def is_empty(self) -> bool:
        """Return whether all packets that the socket saw have been read or lost."""
        seen, dropped = self.ring.counts()
        return self.captured + self.skipped == seen - dropped


class Recorder:
    """Writes what the rings capture to a file until it is stopped."""

    def __init__(self, rings: Sequence[Ring], path: Path, file: IO[bytes], limits: Limits) -> None:
        self._hops = [_RecordedInterface(number, ring, limits) for number, ring in enumerate(rings)]
        self._path = path
        self._file = file
        self._limits = limits
        self._written = 0

    def descriptors(self) -> list[int]:
        """Return the file descriptors that it needs in its own process."""
        return [self._file.fileno(), *(hop.ring.fileno() for hop in self._hops)]

    def record(self, control: socket.socket) -> None:
        """Record until the other end of `control` is closed; then send the report to it."""
        try:
            with run_folder.write_errors(self._path):
                report = self._record(control)
        except Failed as error:
            report = RecorderReport(error=str(error))
        control.sendall(msgspec.json.encode(report))

    def _record(self, control: socket.socket) -> RecorderReport:
        self._until_stopped(control)
        self._settle()
        self._drain()
        counts = [hop.counts() for hop in self._hops]
        for hop, result in zip(self._hops, counts, strict=True):
            self._write(pcapng.statistics(hop.number, time.time_ns(), result))
        with contextlib.suppress(OSError):  # without space for a sorted copy, the reader sorts the packets
            pcapng.sort(self._path)
        return RecorderReport(counts)

    def _until_stopped(self, control: socket.socket) -> None:
        poll = select.poll()
        poll.register(control, select.POLLIN)
        by_descriptor = {hop.ring.fileno(): hop for hop in self._hops}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = dict(poll.poll(POLL_S * 1000))
            for descriptor, event in ready.items():
                if descriptor in by_descriptor and event & select.POLLERR:
                    by_descriptor[descriptor].ring.clear_error()
            self._sweep()
            if control.fileno() in ready:
                return

    def _sweep(self) -> None:
        """Write new packets at once, so that they survive this process."""
        for hop in self._hops:
            if blocks := hop.read(self._limits.total_bytes - self._written):
                self._write(blocks)

    def _write(self, blocks: bytes) -> None:
        self._written += len(blocks)
        left = memoryview(blocks)
        while left:
            left = left[self._file.write(left) :]

    def _settle(self) -> None:
        """Continue until no packets arrived for QUIET_S, at most `settle_s`."""
        end = time.monotonic() + self._limits.settle_s
        seen, since = self._seen(), time.monotonic()
        while (now := time.monotonic()) < end and now - since < QUIET_S:
            time.sleep(STEP_S)
            self._sweep()
            if seen != (seen := self._seen()):
                since = time.monotonic()

    def _seen(self) -> int:
        return sum(hop.ring.counts()[0] for hop in self._hops)

    def _drain(self) -> None:
        """Read all packets that the sockets have seen: the kernel hands over an unfilled block after a delay."""
        for hop in self._hops:
            hop.ring.stop_receiving()
        end = time.monotonic() + DRAIN_S
        time.sleep(STEP_S)  # longer than the kernel needs for a packet in progress
        self._sweep()
        while not all(hop.is_empty() for hop in self._hops):
            if time.monotonic() > end:
                raise Failed(f"the kernel did not hand over all packets within {DRAIN_S:g} s")
            time.sleep(STEP_S)
            self._sweep()
