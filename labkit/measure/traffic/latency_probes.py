"""Latency during a load: probe packets with sequence numbers, with kernel timestamps at both ends.

Probes are sent on a fixed schedule, whatever returns (open loop). Send times come from the kernel (SO_TIMESTAMPING,
error queue), receive times too (SO_TIMESTAMPNS), so waiting of the probing process for a CPU does not count. If a
device gives no send timestamp, the time just before the send call is used instead and `clock` says so; that adds about
8 µs.
"""

import errno
import itertools
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any

from labkit.common.errors import Unsupported
from labkit.common.schema import LATENCIES
from labkit.measure.endpoints import Pair
from labkit.measure.traffic import packet_sender
from labkit.measure.traffic.base import Latency
from labkit.measure.traffic.packet_sender import PROBE_PORT, FrameAddresses, Mix
from labkit.system import netlink

RATE_PPS = 1000
# Probes are over when none has arrived for so long; if none has arrived at all, the path may delay them for longer.
SETTLE_S, DRAIN_S, STEP_S = 0.05, 1.0, 0.005
# labkit reads what came after so many probes: a buffer that it never read would be full after some hundred.
TAKEN = 16
LONGEST_NS, DIGITS = 60_000_000_000, 3  # of the histogram
_MARK = struct.Struct("<IQ")  # sequence number, send time in ns
ETH_P_ALL = 3
SO_TIMESTAMPNS, SO_TIMESTAMPING = 35, 37
# linux/net_tstamp.h: SOFTWARE, OPT_ID, TX_SCHED, OPT_TSONLY. TX_SCHED is taken where a packet enters the sending
# interface. TX_SOFTWARE would be taken by the lowest driver that supports it, below a tunnel.
STAMPS = 1 << 4 | 1 << 7 | 1 << 8 | 1 << 11
SO_RCVBUFFORCE, RCVBUF_BYTES = 33, 8 << 20


def probe_of(mix: Mix, addresses: FrameAddresses) -> Mix:
    """Return what probes are: as large as the first frame of the load, but at least as large as their mark needs."""
    _, header_bytes, _ = packet_sender.headers(addresses, Mix(), PROBE_PORT)
    return Mix((max(mix.frame_bytes[0], header_bytes + _MARK.size + packet_sender.FCS_BYTES),), vlan=mix.vlan)


class Prober:
    """The probe sockets, one in the client's and one in the server's namespace."""

    def __init__(self, pair: Pair, addresses: FrameAddresses, mix: Mix) -> None:
        made, length, sizes = packet_sender.headers(addresses, probe_of(mix, addresses), PROBE_PORT)
        self._frame = bytearray(made[:length]) + bytes(sizes[0] - length)
        self._at = length
        with netlink.inside(pair.client.namespace.fd):
            self._send = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            self._send.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, STAMPS)
            packet_sender.enlarge(self._send, SO_RCVBUFFORCE, socket.SO_RCVBUF, RCVBUF_BYTES)
            self._send.bind((pair.client.interface, 0))
            target = packet_sender.mac(addresses.target_mac)
            self._to = pair.client.interface, packet_sender.ethertype(addresses, mix), 0, 0, target
        with netlink.inside(pair.server.namespace.fd):
            self._receive = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
            packet_sender.only_udp(self._receive, ":" in addresses.source_ip, (PROBE_PORT,))
            self._receive.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            # Probes of the other direction leave here.
            self._receive.setsockopt(packet_sender.SOL_PACKET, packet_sender.PACKET_IGNORE_OUTGOING, 1)
            packet_sender.enlarge(self._receive, SO_RCVBUFFORCE, socket.SO_RCVBUF, RCVBUF_BYTES)
            # ETH_P_ALL: sockets for one protocol come after the nftables hook that drops the load.
            self._receive.bind((pair.server.interface, ETH_P_ALL))
        self._receive.setblocking(False)
        # the offset of the mark as a receiver sees it
        self._mark_at = 28 if ":" not in addresses.source_ip else 48
        self._number = 0
        self._stamps, self._probes = dict[int, int](), list[tuple[int, int, int]]()

    def answer(self, request: list[Any]) -> dict[str, Any]:
        """Send probes for so many seconds at a rate; return their counts and latencies in nanoseconds. The third number
        is the delay of the path in seconds.

        One extra probe is sent first and ignored: the first timestamp of a socket may be wrong by a second.
        """
        duration_s, rate_pps, delay_s = request
        self._stamps, self._probes = {}, []
        self._one(time.time_ns())
        time.sleep(0.002)
        first, count = self._number, max(1, round(duration_s * rate_pps))
        begin, gap_ns = time.monotonic_ns(), 1_000_000_000 // rate_pps
        for number in range(count):
            due = begin + number * gap_ns
            if (wait := due - time.monotonic_ns()) > 0:
                time.sleep(wait / 1e9)
            self._one(time.time_ns())
            if not number % TAKEN:
                self._take()
        self._wait_for_arrivals(gap_ns / 1e9, delay_s)
        return self._result(first, count)

    def _wait_for_arrivals(self, gap_s: float, delay_s: float) -> None:
        """Wait until no more probes arrive, which were sent `gap_s` apart on a path that delays them by `delay_s`."""
        deadline = over = time.monotonic() + DRAIN_S + delay_s
        arrived_count = 0
        while (now := time.monotonic()) < deadline:
            if not arrived_count or len(self._probes) != arrived_count:
                arrived_count, over = len(self._probes), now + max(SETTLE_S, 2 * gap_s)
            elif now > over:
                return
            time.sleep(STEP_S)
            self._take()

    def _take(self) -> None:
        """Read the probes that have arrived, and the send timestamps."""
        for number, stamp_ns in self._sent():
            # The first interface's counts; a tunnel's underlay gives another.
            self._stamps.setdefault(number, stamp_ns)
        self._probes += self._arrived()

    def _one(self, now_ns: int) -> None:
        _MARK.pack_into(self._frame, self._at, self._number, now_ns)
        try:
            self._send.sendto(self._frame, self._to)
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # the first hop dropped it: it is lost
                raise
        self._number += 1

    def _result(self, first: int, count: int) -> dict[str, Any]:
        self._take()
        seen: dict[int, int] = {}
        reordered = duplicated = 0
        last = -1
        by_kernel: list[int] = []
        by_sender: list[int] = []
        for number, sent_ns, received_ns in self._probes:
            if number < first:
                continue
            if number in seen:
                duplicated += 1
                continue
            seen[number] = received_ns
            reordered += number < last
            last = max(last, number)
            by_sender.append(received_ns - sent_ns)
            if number in self._stamps:
                by_kernel.append(received_ns - self._stamps[number])
        kernel = len(by_kernel) == len(by_sender)
        return {
            "frames": count + 1,
            "sent": count,
            "received": len(seen),
            "reordered": reordered,
            "duplicated": duplicated,
            "clock": "kernel" if kernel else "sender",
            "latencies_ns": by_kernel if kernel else by_sender,
        }

    def _arrived(self) -> Iterable[tuple[int, int, int]]:
        while True:
            try:
                data, about, _flags, _from = self._receive.recvmsg(256, 128)
            except BlockingIOError:
                return
            for level, kind, content in about:
                if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                    seconds, rest = struct.unpack("qq", content[:16])
                    yield *_MARK.unpack_from(data, self._mark_at), seconds * 1_000_000_000 + rest

    def _sent(self) -> Iterable[tuple[int, int]]:
        """Yield the kernel's send timestamps by packet number on this socket (SOF_TIMESTAMPING_OPT_ID)."""
        while True:
            try:
                _, about, _flags, _from = self._send.recvmsg(
                    64, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT
                )
            except OSError:
                return
            stamp_ns = number = None
            for level, kind, content in about:
                if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING:
                    seconds, rest = struct.unpack("qq", content[:16])
                    stamp_ns = seconds * 1_000_000_000 + rest
                elif len(content) >= 16:  # struct sock_extended_err: ee_data is the packet number
                    number = struct.unpack_from("IBBBBII", content)[6]
            if stamp_ns and number is not None:
                yield number, stamp_ns


def jitter_ns(latencies_ns: Sequence[int]) -> float:
    """Return the jitter of probes in the order of their arrival (RFC 3550, section 6.4.1)."""
    result = 0.0
    for before, after in itertools.pairwise(latencies_ns):
        result += (abs(after - before) - result) / 16
    return result


def latency(result: dict[str, Any]) -> Latency:
    """Compute the percentiles of one run of probes. Raises Unsupported without the HDR histogram library."""
    try:
        from hdrh.histogram import HdrHistogram  # takes 10 ms, and most experiments do not need it
    except ImportError:
        raise Unsupported("latency beside a load needs the Python package hdrhistogram: install it") from None
    histogram = HdrHistogram(1, LONGEST_NS, DIGITS)
    for value in result["latencies_ns"]:
        histogram.record_value(min(LONGEST_NS, max(1, value)))
    there = histogram.get_total_count() > 0

    longest_s = max(result["latencies_ns"]) / 1e9 if there else None
    percentiles_s = {
        name: longest_s
        and min(histogram.get_value_at_percentile(100 * share) / 1e9, longest_s)  # None without probes
        for name, (share, _words) in LATENCIES.items()
    }
    return Latency(
        sent_count=result["sent"],
        received_count=result["received"],
        reordered_count=result["reordered"],
        duplicated_count=result["duplicated"],
        clock=result["clock"],
        percentiles_s=percentiles_s | {"max": longest_s},
        mean_s=sum(result["latencies_ns"]) / len(result["latencies_ns"]) / 1e9 if there else None,
        jitter_s=jitter_ns(result["latencies_ns"]) / 1e9 if there else None,
        histogram=histogram.encode().decode() if there else None,
    )
