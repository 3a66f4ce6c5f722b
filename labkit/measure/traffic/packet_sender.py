"""The sending process of the packet generator: frames built once, sent with sendmmsg(2) on AF_PACKET at a rate.

It imports only the standard library. Measured on two shared cores over veth: 1.5 µs of CPU time per packet, for 1 flow
as for 64,000.

A frame has its own headers and a payload that all frames share, so a million flows of 9,000 bytes need 100 bytes each.
Frames carry UDP to port PORT, without a UDP checksum for IPv4 (RFC 768), with one for IPv6.
"""

import array
import ctypes
import errno
import gc
import ipaddress
import itertools
import json
import math
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BufferedIOBase
from typing import Any

PORT, PROBE_PORT = 9, 10  # discard (RFC 863), and the port of latency probes
ETHERNET_BYTES, FCS_BYTES = 14, 4  # as in labkit.common.packets, which this file does not import
FIRST_PORT, PORTS_COUNT = 1024, 64512
# How many values a field can take. The low bits of addresses vary, so they stay in the subnet.
CAPACITY = {
    "source_mac": 1 << 24,
    "target_mac": 1 << 24,
    "source_ip": 1 << 16,
    "target_ip": 1 << 16,
    "source_port": PORTS_COUNT,
    "target_port": PORTS_COUNT,
}
# a bit that is 0 in the consecutive MAC addresses of all ends, and is neither the multicast nor the local bit
NO_END = 0x04 << 40
MIN_MESSAGES = 1024  # prepared messages, so that a batch rarely ends early
BATCH, BATCH_S = 64, 150e-6  # a batch has at most this many frames, and at most what is due within this time
MAX_BURST = 1024  # frames that one call of sendmmsg(2) takes (UIO_MAXIOV)
SLIP_S = 500e-6  # a frame that is later than this moves the schedule instead of causing a burst
# How often this process tries how late it wakes, and what multiple of that moves the schedule.
WAKES, LATE_TIMES = 9, 10
SPIN_S, SLEEP_S = 10e-6, 30e-6  # before a frame is due: spin for so long, sleep when it is longer
REFUSED_S, RETRY_S = 1.0, 1e-3  # how long a single frame is offered again, and how often
# linux/if_packet.h; a socket that ignores outgoing frames counts each frame of the load once
SOL_PACKET, PACKET_QDISC_BYPASS, PACKET_IGNORE_OUTGOING = 263, 20, 23
ETH_P_IP, ETH_P_IPV6, ETH_P_8021Q = 0x0800, 0x86DD, 0x8100
SO_ATTACH_FILTER, SO_SNDBUFFORCE = 26, 32
PR_SET_TIMERSLACK = 29
SNDBUF_BYTES = 4 << 20


@dataclass(frozen=True)
class FrameAddresses:
    """The addresses of a sender's frames: those of both ends, and the MAC address of the next hop.

    `ethernet` False: the interface takes packets without an Ethernet header. `vlan`: the VLAN of the sender, whose
    tag its frames carry.
    """

    interface: str
    source_mac: str
    target_mac: str
    source_ip: str
    target_ip: str
    ethernet: bool = True
    vlan: int | None = None


@dataclass(frozen=True)
class Mix:
    """What to send: frame sizes in bytes with FCS, used in turn; the number of flows; the fields that differ, first
    fastest.

    `block` flows send one packet each, `repeats` times, before the next block; 0 and 1: all flows in turn. `vlan`: the
    VLAN of an 802.1Q tag that every frame carries; it makes each frame 4 bytes longer than `frame_bytes`.
    `burst_frames`: how many frames leave back to back; None: what is due within BATCH_S.
    """

    frame_bytes: tuple[int, ...] = (64,)
    flows: int = 1
    vary: tuple[str, ...] = ("source_port",)
    block: int = 0
    repeats: int = 1
    vlan: int | None = None
    burst_frames: int | None = None


def capacity(vary: Sequence[str]) -> int:
    """Return how many flows these fields can distinguish."""
    return math.prod(CAPACITY[name] for name in vary)


def headers(addresses: FrameAddresses, mix: Mix, port: int = PORT) -> tuple[bytearray, int, list[int]]:
    """Return the headers of all prepared frames, their length each, and the frames' lengths without FCS.

    Lengths also exclude the Ethernet header if there is none.
    """
    count = _messages(mix)
    sizes = [size - FCS_BYTES for size in itertools.islice(itertools.cycle(mix.frame_bytes), count)]
    ip = _Ip(addresses, port)
    front = b""
    if addresses.ethernet:
        tag = tag_of(addresses, mix)
        macs = mac(addresses.target_mac) + mac(addresses.source_mac)
        front = macs + tag + struct.pack("!H", ip.ethertype)
        sizes = [size + len(tag) for size in sizes]
    else:
        sizes = [size - ETHERNET_BYTES for size in sizes]
    length = len(front) + ip.length
    made = bytearray((front + ip.template) * count)
    varied = dict(_varied(mix, count))
    for name in ("source_mac", "target_mac"):
        if addresses.ethernet and name in varied:
            base = int.from_bytes(mac(getattr(addresses, name)), "big")
            at = 6 if name == "source_mac" else 0
            # The first flow has the end's own address. A switch drops frames to or from the address of another end.
            flows = [base ^ value ^ (NO_END if value else 0) for value in varied[name]]
            _write_field(made, length, at, 6, flows)
    ip.fill(made, length, len(front), [size - len(front) for size in sizes], varied)
    return made, length, sizes


def tag_of(addresses: FrameAddresses, mix: Mix) -> bytes:
    """Return the 802.1Q tag of the frames: that of their sender, or of the mix, or empty."""
    vlan = mix.vlan if addresses.vlan is None else addresses.vlan
    return b"" if vlan is None else struct.pack("!HH", ETH_P_8021Q, vlan)


def _messages(mix: Mix) -> int:
    """Return how many frames to prepare: every flow, with complete cycles of sizes, and enough for a batch."""
    if mix.flows >= MIN_MESSAGES:
        return mix.flows
    once = math.lcm(mix.flows, len(mix.frame_bytes))
    return once if mix.block else once * math.ceil(MIN_MESSAGES / once)


def _varied(mix: Mix, count: int) -> Iterator[tuple[str, list[int]]]:
    """Yield each varied field with the difference of its value from the first flow's, for every frame."""
    step = 1
    for name in mix.vary:
        capacity_count = CAPACITY[name]
        once = [number // step % capacity_count for number in range(mix.flows)]
        yield name, (once * math.ceil(count / mix.flows))[:count]
        step *= capacity_count


class _Ip:
    """The IP and UDP headers of a frame."""

    def __init__(self, addresses: FrameAddresses, port: int) -> None:
        self.source, self.target = (
            int(ipaddress.ip_address(text)) for text in (addresses.source_ip, addresses.target_ip)
        )
        self.v4 = ":" not in addresses.source_ip
        self.port = port
        self.size = 4 if self.v4 else 16
        udp = struct.pack("!HHHH", FIRST_PORT, port, 0, 0)
        ends = self.source.to_bytes(self.size, "big") + self.target.to_bytes(self.size, "big")
        start = struct.pack("!BBHHHBBH", 0x45, 0, 0, 0, 0, 64, 17, 0) if self.v4 else bytes([0x60, 0, 0, 0])
        start += b"" if self.v4 else struct.pack("!HBB", 0, 17, 64)
        self.template = start + ends + udp
        self.length = len(self.template)
        self.ethertype = ETH_P_IP if self.v4 else ETH_P_IPV6

    def fill(
        self,
        made: bytearray,
        stride: int,
        at: int,
        lengths: Sequence[int],
        varied: dict[str, list[int]],
    ) -> None:
        """Write lengths, varied fields and checksums into every frame; `lengths` are those of the IP packets."""
        count, size = len(lengths), self.size
        end = at + self.length - 8
        sources = _xored(self.source, varied.get("source_ip"), count)
        targets = _xored(self.target, varied.get("target_ip"), count)
        ports = [
            [
                FIRST_PORT + value if name in varied else first
                for value in varied.get(name, itertools.repeat(0, count))
            ]
            for name, first in (("source_port", FIRST_PORT), ("target_port", self.port))
        ]
        first = end - 2 * size
        for offset, values in ((first, sources), (first + size, targets)):
            _write_field(made, stride, offset, size, values)
        _write_field(made, stride, end, 2, ports[0])
        _write_field(made, stride, end + 2, 2, ports[1])
        udp_bytes = [length - self.length + 8 for length in lengths]
        _write_field(made, stride, end + 4, 2, udp_bytes)
        if self.v4:
            _write_field(made, stride, at + 2, 2, lengths)
            base = 0x4500 + (64 << 8 | 17)
            known: dict[tuple[int, int, int], int] = {}  # most frames share the summed values
            sums = []
            for row in zip(lengths, sources, targets, strict=True):
                if row not in known:
                    known[row] = _fold_checksum(base + row[0] + _sum_words(row[1], 4) + _sum_words(row[2], 4))
                sums.append(known[row])
            _write_field(made, stride, at + 10, 2, sums)
        else:
            _write_field(made, stride, at + 4, 2, udp_bytes)
            rows6 = zip(udp_bytes, sources, targets, *ports, strict=True)
            sums = [
                17 + 2 * one + _sum_words(source, 16) + _sum_words(target, 16) + left + right
                for one, source, target, left, right in rows6
            ]
            _write_field(made, stride, end + 6, 2, [_fold_checksum(value) or 0xFFFF for value in sums])


def _xored(base: int, changes: list[int] | None, count: int) -> list[int]:
    return [base] * count if changes is None else [base ^ change for change in changes]


def _sum_words(value: int, size: int) -> int:
    """Return the sum of an address's 16-bit words."""
    if size == 4:
        return (value >> 16) + (value & 0xFFFF)
    return sum(value >> shift & 0xFFFF for shift in range(0, 128, 16))


def _fold_checksum(value: int) -> int:
    """Return the Internet checksum of a sum of words (RFC 1071)."""
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    return value ^ 0xFFFF


def _write_field(made: bytearray, stride: int, at: int, size: int, values: Sequence[int]) -> None:
    """Write a big-endian number into every frame, one byte position at a time, which C code does."""
    if values.count(values[0]) == len(values):
        for place, byte in enumerate(values[0].to_bytes(size, "big")):
            made[at + place :: stride] = bytes([byte]) * len(values)
        return
    if size > 8:
        _write_field(made, stride, at, size - 8, [value >> 64 for value in values])
        _write_field(made, stride, at + size - 8, 8, [value & (1 << 64) - 1 for value in values])
        return
    swapped = array.array("Q", values)
    swapped.byteswap()
    every = swapped.tobytes()
    for place in range(size):
        made[at + place :: stride] = every[8 - size + place :: 8]


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


@dataclass(frozen=True)
class Report:
    """The result of a trial.

    `dropped_count`: offered, but refused by the first hop (ENOBUFS). `elapsed_s`: from the first frame's due time to
    the end, or at a rate to when the next frame would be due; `begun_s` is that first time (CLOCK_MONOTONIC). `slip_s`:
    by how much the schedule moved because the sender was late. `bursts_count`: how often it waited for a frame's time;
    the frames between two waits left back to back.
    """

    sent_count: int
    dropped_count: int
    elapsed_s: float
    slip_s: float
    cpu_s: float
    begun_s: float
    bursts_count: int


def ethertype(addresses: FrameAddresses, mix: Mix) -> int:
    """Return the type of what an Ethernet header of these frames announces."""
    if tag_of(addresses, mix):
        return ETH_P_8021Q
    return ETH_P_IPV6 if ":" in addresses.source_ip else ETH_P_IP


def enlarge(one: socket.socket, force: int, option: int, length_bytes: int) -> None:
    """Give a socket a buffer of this length, as far as the user may: `force` is the option for root."""
    try:
        one.setsockopt(socket.SOL_SOCKET, force, length_bytes)
    except OSError:
        one.setsockopt(socket.SOL_SOCKET, option, length_bytes)


class Sender:
    """A socket in this process's network namespace, with prepared frames. Raises OSError."""

    def __init__(self, addresses: FrameAddresses, mix: Mix) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
        enlarge(self._socket, SO_SNDBUFFORCE, socket.SO_SNDBUF, SNDBUF_BYTES)
        # Bound to no protocol, so it receives nothing.
        self._socket.bind((addresses.interface, 0))
        self._block, self._repeats, self._burst = mix.block, mix.repeats, mix.burst_frames
        self._prepare(addresses, mix)
        libc = ctypes.CDLL(None, use_errno=True)
        self._call = libc.sendmmsg
        self._call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
        self._position = self._turn = 0

    def _prepare(self, addresses: FrameAddresses, mix: Mix) -> None:
        """Build struct mmsghdr, struct iovec and headers for every frame, with the same sockaddr_ll for all."""
        self._headers, length, sizes = headers(addresses, mix)
        self._count = len(sizes)
        self._payload = ctypes.create_string_buffer(max(sizes))
        place = ctypes.c_char.from_buffer(self._headers)
        first, rest = ctypes.addressof(place), ctypes.addressof(self._payload)
        iov = array.array("Q", bytes(32 * self._count))
        iov[0::4] = array.array("Q", range(first, first + length * self._count, length))
        iov[1::4] = array.array("Q", [length]) * self._count
        iov[2::4] = array.array("Q", [rest]) * self._count
        iov[3::4] = array.array("Q", [size - length for size in sizes])
        self._iov = iov
        index = socket.if_nametoindex(addresses.interface)
        kind, target = socket.htons(ethertype(addresses, mix)), mac(addresses.target_mac)
        link = struct.pack("HHiHBB8s", socket.AF_PACKET, kind, index, 0, 0, 6, target)
        self._link = ctypes.create_string_buffer(link, len(link))
        # struct mmsghdr: 64 bytes on 64-bit Linux: name, its length, iov, its length, control, its length, flags, len
        messages = array.array("Q", bytes(64 * self._count))
        messages[0::8] = array.array("Q", [ctypes.addressof(self._link)]) * self._count
        messages[1::8] = array.array("Q", [len(link)]) * self._count
        start = iov.buffer_info()[0]
        messages[2::8] = array.array("Q", range(start, start + 32 * self._count, 32))
        messages[3::8] = array.array("Q", [2]) * self._count
        self._all = messages

    def send(self, rate_pps: float | None, duration_s: float, count: int | None = None) -> Report:
        """Send at a rate (None: as fast as possible) for `duration_s`, or until `count` packets are sent.

        Raises OSError.
        """
        call, fd, base = self._call, self._socket.fileno(), self._all.buffer_info()[0]
        clock, sleep = time.monotonic_ns, time.sleep
        total = round(rate_pps * duration_s) if rate_pps else 1 << 62
        total = total if count is None else count
        gap_ns = 1e9 / rate_pps if rate_pps else 0.0
        batch = self._burst or (max(1, min(BATCH, round(rate_pps * BATCH_S))) if rate_pps else BATCH)
        in_step = self._burst or 1  # as many frames are due at the same time
        slip_ns = int(max(SLIP_S, LATE_TIMES * _wakes_late_s()) * 1e9)
        spin_ns, sleep_ns = int(SPIN_S * 1e9), int(SLEEP_S * 1e9)
        sent = dropped = slipped = bursts = ahead = 0
        used_s = time.process_time()
        begin = origin = clock()
        end = begin + int(duration_s * 1e9)
        block_start, block_end = self._bounds()
        while sent + dropped < total:
            now = clock()
            ahead = (sent + dropped) % in_step  # frames of this burst that have left
            if rate_pps and not ahead:
                due = origin + int((sent + dropped) * gap_ns)
                if now < due or not bursts:
                    bursts += 1
                    if due - now > sleep_ns:
                        sleep((due - now - spin_ns) / 1e9)
                    while (now := clock()) < due:
                        pass
                late = now - due
                if late > slip_ns:
                    slipped, origin = slipped + late, origin + late
            if now >= end:
                break
            if self._position >= block_end:
                block_start, block_end = self._next(block_start, block_end)
            wanted = min(batch - ahead, total - sent - dropped, block_end - self._position)
            done = call(fd, base + self._position * 64, wanted, 0)
            if done < 0:
                number = ctypes.get_errno()
                if number == errno.ENOBUFS:  # dropped at the first hop: offered but lost
                    dropped, self._position = dropped + 1, self._position + 1
                    continue
                if number in (errno.EAGAIN, errno.EINTR):
                    continue
                raise OSError(number, os.strerror(number))
            sent, self._position = sent + done, self._position + done
            if done < wanted:  # the next frame was refused: sendmmsg(2) then returns the count alone
                dropped, self._position = dropped + 1, self._position + 1
        # The last frame, and those of the last burst, take their time of the rate, too.
        elapsed_s = max(clock() - begin, slipped + (sent + dropped) * gap_ns) / 1e9
        return Report(
            sent_count=sent,
            dropped_count=dropped,
            elapsed_s=elapsed_s,
            slip_s=slipped / 1e9,
            cpu_s=time.process_time() - used_s,
            begun_s=begin / 1e9,
            bursts_count=bursts,
        )

    def _bounds(self) -> tuple[int, int]:
        block = self._block or self._count
        start = self._position // block * block if self._position < self._count else 0
        if self._position >= self._count:
            self._position = 0
        return start, min(start + block, self._count)

    def _next(self, start: int, end: int) -> tuple[int, int]:
        """Return the next block; the same again until it was repeated often enough."""
        self._turn += 1
        if self._turn < self._repeats:
            self._position = start
            return start, end
        self._turn = 0
        self._position = 0 if end >= self._count else end
        return self._bounds()

    def answer(self, request: list[Any]) -> dict[str, Any]:
        """Run a trial; the request has the arguments of `send`."""
        return asdict(self.send(*request))


def serve(requests: BufferedIOBase, answers: BufferedIOBase, answer: Callable[[Any], dict[str, Any]]) -> None:
    """Answer each request, a line of JSON, with a line of JSON, until there are no more; the first answer says that
    this process is ready."""
    result: dict[str, Any] = {}
    while True:
        answers.write(json.dumps(result).encode() + b"\n")
        answers.flush()
        if not (line := requests.readline()):
            return
        try:
            result = answer(json.loads(line))
        except OSError as error:
            result = {"error": error.strerror}


def send_frame(one: socket.socket, frame: bytes) -> None:
    """Send a frame; try again while the first hop refuses it, because the load before still fills its queue.

    Raises OSError.
    """
    deadline = time.monotonic() + REFUSED_S
    while True:
        try:
            one.send(frame)
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_S)


def only_udp(one: socket.socket, v6: bool, ports: Sequence[int]) -> None:
    """Attach a classic BPF filter for UDP to these ports; the socket sees packets from their IP header on.

    It attaches the program itself, because this file imports only the standard library.
    """
    load_half, load_byte, jump_equal, take, drop = 0x28, 0x30, 0x15, (6, 0, 0, 0x40000), (6, 0, 0, 0)
    protocol_at, port_at = (6, 42) if v6 else (9, 22)
    count = len(ports)
    code = [
        (load_byte, 0, 0, protocol_at),
        (jump_equal, 0, count + 1, 17),  # else behind the ports, to `drop`
        (load_half, 0, 0, port_at),
        *((jump_equal, count - at, 0, port) for at, port in enumerate(ports)),
        drop,
        take,
    ]
    program = b"".join(struct.pack("HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(program, len(program))
    one.setsockopt(
        socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", len(code), ctypes.addressof(buffer))
    )


def _wakes_late_s() -> float:
    """Return how late this process usually wakes: the median of a few short sleeps."""
    late = []
    for _ in range(WAKES):
        begun = time.monotonic()
        time.sleep(SLEEP_S)
        late.append(time.monotonic() - begun - SLEEP_S)
    return sorted(late)[WAKES // 2]


def prepare_process(cpu: int | None) -> bool:
    """Prepare this process to send on time: SCHED_FIFO, no timer slack, no garbage collection, one CPU.

    Returns False without the privilege for SCHED_FIFO; `nice` would have no effect (sched_autogroup).
    """
    gc.disable()
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    return True


if sys.maxsize < 1 << 32 or sys.byteorder != "little":
    raise ImportError("the packet generator lays out struct mmsghdr for 64-bit little-endian machines alone")
