"""A monitor: a forked process that empties a ring, samples, counts, and keeps the last packets in bounded memory.

It answers requests over its connection, one JSON line each: `read`, `clear`, `stop`, and at the end of the connection
a last report. Every packet of the interface is in exactly one of these counts: not selected, dropped, waiting, not
sampled, kept, forgotten.
"""

import contextlib
import math
import select
import socket
import time
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec

from labkit.common.errors import Failed
from labkit.common.limits import Within
from labkit.common.packets import ETHERNET, PORTS
from labkit.measure.observers.capture import (
    MAX_SNAP_BYTES,
    MIN_SNAP_BYTES,
    SNAP_BYTES,
    CapturePoint,
    open_ring,
)
from labkit.measure.observers.monitor import display_filter
from labkit.measure.observers.monitor.display_filter import Tshark
from labkit.measure.observers.monitor.flows import Totals, identify
from labkit.measure.observers.monitor.kept import KeptPackets, Row, row
from labkit.measure.observers.monitor.sampling import sampler
from labkit.measure.observers.monitor.selection import Selection
from labkit.system import libpcap, netlink, process
from labkit.system.recording.packet_ring import Block, Ring

BUFFER_BYTES = 16 << 20
KEEP_COUNT, MAX_KEEP_COUNT = 10_000, 1_000_000
MAX_KEPT_BYTES = 64 << 20
POLL_MS = 200
BLOCKS_AT_ONCE = 8  # of about 500 packets each, before requests are answered
ANSWER_S = 10.0
DRAIN_S, STEP_S = 5.0, 0.01
REPORTED_CONVERSATIONS = REPORTED_TALKERS = 20
Packet = TypeVar("Packet")


class Request(msgspec.Struct, frozen=True):
    """What a monitor does.

    `sample`: the sampler's text. `keep_count`: how many sampled packets it keeps. `snap_bytes`: how many bytes of each.
    `display`: a display filter in Wireshark's syntax, which only decides what is kept. `fields`: names of Wireshark's
    fields, comma-separated, whose values tshark adds to each kept packet. `tunnel_ports`: the UDP ports of vxlan and
    geneve.
    """

    selection: Selection = Selection()
    sample: str = "all"
    keep_count: int = KEEP_COUNT
    snap_bytes: int = SNAP_BYTES
    display: str | None = None
    fields: str = ""
    tunnel_ports: tuple[tuple[int, str], ...] = tuple(PORTS.items())


def check_request(request: Request) -> None:
    """Raise BadInput for the first invalid value of a request. Needs no privilege and no interface."""
    request.selection.filter(dict(request.tunnel_ports))
    sampler(request.sample)
    if request.display is not None:
        display_filter.check_text(request.display)
    display_filter.field_names(request.fields)
    Within(1, MAX_KEEP_COUNT).check("keep_count", request.keep_count)
    Within(MIN_SNAP_BYTES, MAX_SNAP_BYTES).check("snap_bytes", request.snap_bytes)


class MonitorCounts(msgspec.Struct):
    """Exact counts of the packets of an interface since the monitor began.

    seen_count: received and sent by the interface, by its own counters; selected_count: passed the filter in the
    kernel; dropped_count: of these, lost because the ring was full; waiting_count: not read or not judged yet, 0 at the
    end; unsampled_count: left out by the sampler; kept_count: in memory now; forgotten_count: sampled, but pushed out
    of memory or cleared; hidden_count: sampled, but the display filter did not match; unexamined_count: tshark was too
    slow for them, or failed. selected = dropped + waiting + unsampled + kept + forgotten + hidden + unexamined.
    """

    seen_count: int
    selected_count: int
    dropped_count: int
    waiting_count: int
    unsampled_count: int
    kept_count: int
    forgotten_count: int
    hidden_count: int
    unexamined_count: int

    @property
    def sampled_count(self) -> int:
        """Packets that the sampler chose and, with a display filter, tshark has judged or will never judge."""
        return self.kept_count + self.forgotten_count + self.hidden_count + self.unexamined_count

    @property
    def hint(self) -> str | None:
        """One sentence if packets passed and the filter selected none, else None."""
        if self.selected_count or not self.seen_count:
            return None
        return (
            f"{self.seen_count} packets passed and none was selected: leave a condition out; tagged packets need vlan=,"
            " and a tunnel on an unusual UDP port inside=vxlan:8472 or inside=geneve:PORT"
        )


class Report(msgspec.Struct, Generic[Packet]):
    """The state of a monitor at one moment.

    `classes`: packets and bytes by class. `conversations`: those with the most bytes (class, source, destination,
    packets, bytes). `packets`: new since the last request. `is_gone`: the interface no longer exists. `problem`: the
    error of the display filter's tshark. `talkers`: the hosts with the most bytes (address, packets and bytes sent,
    packets and bytes received). `selects_ports`: whether the filter has port= (`LiveMonitor`). `unseen`: what BPF
    programs redirect past the interface, a sentence (`LiveMonitor`).
    """

    counts: MonitorCounts
    classes: dict[str, tuple[int, int]]
    conversations: list[tuple[str, str, str, int, int]]
    packets: list[Packet]
    is_gone: bool
    link_type: int
    problem: str | None = None
    talkers: list[tuple[str, int, int, int, int]] = []
    selects_ports: bool = False
    unseen: str | None = None


class _MonitorProcess:
    """The work of the forked process."""

    def __init__(self, ring: Ring, request: Request) -> None:
        self._ring = ring
        self._sample = sampler(request.sample)
        self._samples_all = request.sample == "all"
        self._samples_flows = request.sample.startswith("first")
        self._kept = KeptPackets(request.keep_count, MAX_KEPT_BYTES)
        self._ports = dict(request.tunnel_ports)
        self._totals = Totals(self._ports)
        self._read = self._sampled = 0
        self._request = request
        self._display: Tshark | None = None
        self._new: list[Row] = []

    def work(self, control: socket.socket) -> None:
        """Take packets and answer requests until the other end of `control` is closed; then send the last counts."""
        fields = display_filter.field_names(self._request.fields)
        if self._request.display is not None or fields:
            self._display = Tshark(self._request.display, self._ring.link_type, fields)
        poll = select.poll()
        poll.register(control, select.POLLIN)
        poll.register(self._ring, select.POLLIN)
        requests = process.Lines(control)
        is_busy = False
        while True:
            ready = dict(self._ready(poll, 0 if is_busy else POLL_MS))
            if ready.get(self._ring.fileno(), 0) & select.POLLERR:
                self._ring.clear_error()
            is_busy = self._take()
            self._judge()
            if control.fileno() in ready:
                if not requests.read():
                    break
                while (line := requests.take()) is not None:
                    control.sendall(self._answer(msgspec.json.decode(line)) + b"\n")
        self._drain()
        control.sendall(self._answer({"do": "read", "since": -1, "limit": 0}))
        if self._display is not None:
            self._display.close()

    def _ready(self, poll: select.poll, timeout_ms: int) -> list[tuple[int, int]]:
        """Wait for an event and return the events; those of tshark's pipes as long as it runs."""
        pipes = self._display.descriptors() if self._display is not None else []
        for descriptor, is_written in pipes:
            poll.register(descriptor, select.POLLOUT if is_written else select.POLLIN)
        try:
            return poll.poll(timeout_ms)
        finally:
            for descriptor, _ in pipes:
                poll.unregister(descriptor)

    def _judge(self) -> None:
        """Keep the new packets, or, with a display filter, those that match."""
        rows, self._new = self._new, []
        if self._display is None:
            self._kept.add(rows)
            return
        self._display.add(rows)
        self._kept.add(list(self._display.matching_rows()))

    def _take(self) -> bool:
        """Handle packets that have come, some blocks at most. Returns whether there may be more."""
        count = 0
        for block in islice(self._ring.blocks(), BLOCKS_AT_ONCE):
            self._read += block.count
            if self._samples_all and self._display is None:
                self._totals.add_block(block)
                self._kept.add_block(self._sampled, block)
                self._sampled += block.count
            else:
                self._sample_block(block)
            count += 1
        return count == BLOCKS_AT_ONCE

    def _sample_block(self, block: Block) -> None:
        sample = self._sample
        for time_ns, kind, length_bytes, data in block.packets():
            if not self._samples_flows and not sample(time_ns, length_bytes, b""):
                continue
            name, addresses, ports = identify(data, block.link_type, self._ports)
            flow = b"".join((name.encode(), addresses, ports))
            if self._samples_flows and not sample(time_ns, length_bytes, flow):
                continue
            self._totals.add(name, addresses, 1, length_bytes)
            self._new.append(row(self._sampled, time_ns, kind, length_bytes, data))
            self._sampled += 1

    def _answer(self, request: dict[str, Any]) -> bytes:
        if request["do"] == "stop":
            self._drain()
        if request["do"] == "clear":
            self._kept.clear()
            self._totals.clear()
        before = request.get("before")
        report = Report(
            self._counts(),
            {name: (count, length_bytes) for name, (count, length_bytes) in self._totals.classes().items()},
            self._totals.conversations(REPORTED_CONVERSATIONS),
            self._kept.newest(
                request.get("since", -1), request.get("limit", 0), math.inf if before is None else before
            ),
            False,
            self._ring.link_type,
            self._display.problem if self._display else None,
            self._totals.talkers(REPORTED_TALKERS),
        )
        return msgspec.json.encode(report)

    def _counts(self) -> MonitorCounts:
        """Return the counts, without those of the interface, which the caller knows."""
        display, forgotten = self._display, self._kept.forgotten_count
        hidden, unexamined = (display.hidden_count, display.unexamined_count) if display else (0, 0)
        awaiting = display.awaiting_count if display else 0
        selected, dropped = self._ring.counts()
        waiting = max(0, selected - dropped - self._read)
        return MonitorCounts(
            seen_count=0,
            selected_count=selected,
            dropped_count=dropped,
            waiting_count=waiting + awaiting,
            unsampled_count=selected - dropped - waiting - self._sampled,
            kept_count=self._sampled - forgotten - hidden - unexamined - awaiting,
            forgotten_count=forgotten,
            hidden_count=hidden,
            unexamined_count=unexamined,
        )

    def _drain(self) -> None:
        """Read all that the socket has received: the kernel hands over an unfilled block only after a while."""
        self._ring.stop_receiving()
        end = time.monotonic() + DRAIN_S
        while time.monotonic() < end:
            is_more = True
            while is_more:
                is_more = self._take()
                self._judge()
            selected, dropped = self._ring.counts()
            if self._read == selected - dropped and not (self._display and self._display.awaiting_count):
                return
            time.sleep(STEP_S)


class Monitor:
    """A monitor at an interface, from now on until `close`.

    Raises BadInput for a missing interface or an invalid request, Unsupported if packets cannot be captured or
    filtered. The process that makes it must have one thread.
    """

    def __init__(self, hop: CapturePoint, request: Request) -> None:
        check_request(request)
        if request.display is not None or request.fields:
            display_filter.check(request.display, display_filter.field_names(request.fields))
        expression = request.selection.filter(dict(request.tunnel_ports))
        ethernet = hop.interface

        def program(link_type: int) -> bytes:
            at = ethernet if link_type == ETHERNET and expression else None
            return libpcap.compiled(expression, link_type, request.snap_bytes, at)

        self._hop = hop
        with contextlib.ExitStack() as stack:
            ring = stack.enter_context(
                open_ring(hop, request.snap_bytes, BUFFER_BYTES, program if expression else None)
            )
            with netlink.inside(hop.namespace.fd):
                self._index = netlink.index_of(hop.interface)
            self._before = self._passed_frames()
            self._seen = 0
            self._is_gone = self._is_stopped = False
            self._forked = process.Forked(_MonitorProcess(ring, request).work, [ring.fileno()])

    @property
    def pid(self) -> int:
        """The process that reads the packets."""
        return self._forked.pid

    def _passed_frames(self) -> int:
        counters = self._hop.namespace.netlink.counters(self._index)
        return counters.received_count + counters.sent_count

    def _with_seen(self, line: bytes) -> Report[Row]:
        try:
            if not self._is_stopped:
                self._seen = self._passed_frames() - self._before
        except Failed:
            self._is_gone = True
        report = msgspec.json.decode(line, type=Report[Row])
        report.counts.seen_count, report.is_gone = self._seen, self._is_gone
        return report

    def read(self, since: int = -1, limit: int = 0, before: int | None = None) -> Report[Row]:
        """Return the counts, and the newest `limit` kept packets after number `since` and below `before`. Raises Failed
        if the process ended."""
        return self._request({"do": "read", "since": since, "limit": limit, "before": before})

    def stop(self) -> Report[Row]:
        """Stop capturing, and handle all captured packets; packets in memory can still be read."""
        report = self._request({"do": "stop"})
        self._is_stopped = True
        return report

    def clear(self) -> Report[Row]:
        """Forget the kept packets and the totals of classes and conversations; the counts stay."""
        return self._request({"do": "clear"})

    def _request(self, request: dict[str, Any]) -> Report[Row]:
        try:
            self._forked.send(msgspec.json.encode(request))
            return self._with_seen(self._forked.receive(ANSWER_S))
        except Failed as error:
            raise Failed(f"the monitor of {self._hop.name} {error}: start it again") from None

    def close(self) -> Report[Row]:
        """Stop capturing, handle all captured packets, and return the last counts. Raises Failed if the process
        ended."""
        try:
            return self._with_seen(self._forked.stop(DRAIN_S + ANSWER_S))
        except (Failed, msgspec.DecodeError) as error:
            raise Failed(f"the monitor of {self._hop.name} {error}") from None

    def kill(self) -> None:
        """End it at once, without a report."""
        self._forked.kill()
