"""Small packets of labkit's own from one end to the other, counted where they arrive: no answer is needed.

At most 1,000 packets of at most one MTU pass in each direction, and one TCP connection that carries 256 KiB.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from labkit.common.packets import internet_checksum
from labkit.measure.existing.checks.drops import SMALL_BYTES
from labkit.measure.existing.spaces import Space
from labkit.system import netlink

# linux/in.h, linux/in6.h, linux/errqueue.h: send whole packets whatever MTU of the path is known; report errors
IP_MTU_DISCOVER, IP_RECVERR, IPV6_MTU_DISCOVER, IPV6_RECVERR, PMTUDISC_PROBE = 10, 11, 23, 25, 3
SOL_RAW, ICMP_FILTER = 255, 1  # linux/socket.h, linux/icmp.h; the same number for ICMPv6 (linux/icmpv6.h)
_error = struct.Struct("=IBBBBII")  # struct sock_extended_err
ORIGIN_LOCAL = 1
BURST, BLOCKED_BURST, GAP_S, LAST_S, FIRST_S = 300, 30, 0.001, 0.15, 1.2
TRIES = 3
TOKEN_BYTES = 8
SO_RCVBUFFORCE, BUFFER_BYTES = 33, 1 << 20  # asm-generic/socket.h; root may have more than net.core.rmem_max
NOISE_SHARE = 0.01  # a busy machine loses a packet now and then
TCP_BYTES, TCP_S = 256 << 10, 3.0
ECHO = {4: (8, 0), 6: (128, 129)}  # the types of an echo request and its answer


@dataclass(frozen=True)
class End:
    """An end of a path: its namespace and its address."""

    space: Space
    address: str

    @property
    def version(self) -> int:
        """4 or 6."""
        return 6 if ":" in self.address else 4

    def opened(self, kind: int, protocol: int = 0) -> socket.socket:
        """Return a socket in its namespace, for its version of IP."""
        with netlink.inside(self.space.fd):
            return socket.socket(socket.AF_INET6 if self.version == 6 else socket.AF_INET, kind, protocol)


@dataclass
class Sent:
    """What a burst of small packets of one protocol came to: how many were sent and arrived, and what came back.

    exempt: its loss is not judged, because the end accepts nothing but connections to its ports, and these succeed.
    """

    sent: int = 0
    arrived: int = 0
    said: str = ""
    exempt: bool = False

    @property
    def arrives(self) -> bool:
        """Whether packets arrive, or none of them needs to."""
        return bool(self.arrived) or self.exempt

    @property
    def lost_share(self) -> float:
        """The share that did not arrive, although it should."""
        return 0.0 if self.exempt else (self.sent - self.arrived) / self.sent if self.sent else 1.0


@dataclass(frozen=True)
class Mtu:
    """The largest packet that passes, of those up to the MTU of the sender's interface; `told`: the MTU in the ICMP
    error that came back, None if none came."""

    full_bytes: int
    passes_bytes: int
    told_bytes: int | None

    @property
    def is_hole(self) -> bool:
        """Whether larger packets vanish without an error."""
        return self.passes_bytes < self.full_bytes and self.told_bytes is None


@dataclass
class OneWay:
    """What was measured in one direction."""

    icmp: Sent = field(default_factory=Sent)
    udp: Sent = field(default_factory=Sent)
    mtu: Mtu | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """What arrived of what was sent, and the largest packet that passes, as `labkit check --json` prints it."""
        shown: dict[str, Any] = {
            name: f"{one.arrived}/{one.sent}" for name, one in (("icmp", self.icmp), ("udp", self.udp))
        }
        return shown | {"mtu_bytes": self.mtu.passes_bytes if self.mtu else None}

    @property
    def sent_count(self) -> int:
        """How many small packets were sent that are judged."""
        return sum(one.sent for one in (self.icmp, self.udp) if not one.exempt)

    @property
    def arrives(self) -> bool:
        """Whether packets of one of them arrive."""
        return self.icmp.arrives or self.udp.arrives


@dataclass(frozen=True)
class Connection:
    """A TCP connection of labkit's own: whether it came about, what it carried and for how long; `said`: the error."""

    connected: bool
    carried_bytes: int
    lasted_s: float
    said: str = ""


def _socket(kind: str, end: End, takes: int | None = None) -> socket.socket:
    """Return a socket of an end for UDP, or for ICMP. takes: the type of ICMP that it receives; None: none."""
    icmp = socket.IPPROTO_ICMPV6 if end.version == 6 else socket.IPPROTO_ICMP
    one = end.opened(socket.SOCK_DGRAM) if kind == "udp" else end.opened(socket.SOCK_RAW, icmp)
    try:
        if kind == "icmp":
            _only(one, end.version, takes)
        # A burst of 300 packets does not fit into the usual buffer if this process does not run meanwhile.
        try:
            one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        except OSError:  # root of a user namespace may have twice net.core.rmem_max
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        one.setblocking(False)
        one.bind((end.address, 0))
    except OSError:
        one.close()
        raise
    return one


class Receiver:
    """Takes packets with a token at an end; close it after use. `port`: of UDP."""

    def __init__(self, kind: str, end: End, token: bytes) -> None:
        self._socket, self._token = _socket(kind, end, ECHO[end.version][0]), token
        self.port: int = self._socket.getsockname()[1]
        self.close = self._socket.close

    def arrived(self, wait_s: float, wanted: int) -> set[int]:
        """Return the numbers of the packets that arrive until there are `wanted`, or for so many seconds."""
        numbers: set[int] = set()
        until = time.monotonic() + wait_s
        # What has arrived is read although the time is over: a busy machine may let this process wait.
        while len(numbers) < wanted and (left := until - time.monotonic()) > -FIRST_S:
            if not select.select([self._socket], [], [], max(left, 0))[0]:
                break
            with suppress(OSError):
                data = self._socket.recv(1 << 16)
                at = data.find(self._token)
                # An answer to a request has the same payload, but only the sender's end gets it.
                if at >= 0:
                    numbers.add(struct.unpack_from("!I", data, at + 8)[0])
        return numbers


class Sender:
    """Sends packets with a token from an end to an address, and a port of UDP; close it after use."""

    def __init__(self, kind: str, end: End, token: bytes, address: str, port: int) -> None:
        self._kind, self._version, self._token = kind, end.version, token
        self._socket = _socket(kind, end)
        self.close = self._socket.close
        v6 = end.version == 6
        level = socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP
        self._socket.setsockopt(level, IPV6_MTU_DISCOVER if v6 else IP_MTU_DISCOVER, PMTUDISC_PROBE)
        self._socket.setsockopt(level, IPV6_RECVERR if v6 else IP_RECVERR, 1)
        try:
            self._socket.connect((address, port if kind == "udp" else 0))
        except OSError:
            self.close()
            raise
        self._headers_bytes = (40 if v6 else 20) + 8

    def send(self, number: int, length_bytes: int) -> str:
        """Send one packet of this length with its IP header; return the error of the system, if any."""
        body = self._token + struct.pack("!I", number)
        body += bytes(max(length_bytes - self._headers_bytes - len(body), 0))
        if self._kind == "icmp":
            body = _echo_request(self._version, number, body)
        for _ in range(2):  # the first attempt may return the error of an earlier packet
            try:
                self._socket.send(body)
                return ""
            except OSError as error:
                said = error.strerror or str(error)
        return said

    def burst(self, count: int) -> None:
        """Send small packets with the numbers from 1 to `count`, one every GAP_S."""
        for number in range(1, count + 1):
            self.send(number, SMALL_BYTES)
            time.sleep(GAP_S)

    def told(self) -> tuple[str, int | None]:
        """Return the errors that came back, in words, and the MTU that they name."""
        words, mtu_bytes = "", None
        while True:
            try:
                _data, ancillary, _flags, _address = self._socket.recvmsg(2048, 512, socket.MSG_ERRQUEUE)
            except OSError:
                return words, mtu_bytes
            for _level, _kind, data in ancillary:
                if len(data) >= _error.size:
                    number, origin, _type, _code, _pad, info, _more = _error.unpack_from(data)
                    if number == errno.EMSGSIZE and origin != ORIGIN_LOCAL:
                        mtu_bytes = info
                    elif number != errno.EMSGSIZE:
                        words = os.strerror(number)


def _only(one: socket.socket, version: int, kind: int | None) -> None:
    """Make a raw socket receive messages of ICMP of one type only, or none: their queue would leave errors no room."""
    blocked = bytearray(b"\xff" * (32 if version == 6 else 4))
    if kind is not None:  # numbers of 32 bits in the machine's order
        word = 4 * (kind // 32)
        blocked[word : word + 4] = struct.pack("=I", 0xFFFFFFFF & ~(1 << kind % 32))
    level = socket.IPPROTO_ICMPV6 if version == 6 else SOL_RAW
    one.setsockopt(level, ICMP_FILTER, bytes(blocked))


def _echo_request(version: int, number: int, body: bytes) -> bytes:
    """Return an echo request; the kernel fills in the checksum of ICMPv6 alone."""
    message = struct.pack("!BBHHH", ECHO[version][0], 0, 0, 0x6C6B, number & 0xFFFF) + body
    if version == 6:
        return message
    even = message + b"\0" * (len(message) % 2)
    checksum = internet_checksum(sum(struct.unpack(f"!{len(even) // 2}H", even)))
    return message[:2] + struct.pack("!H", checksum) + message[4:]


@contextmanager
def channel(kind: str, here: End, there: End) -> Iterator[tuple[Sender, Receiver]]:
    """Provide a sender at one end and a receiver at the other, both on this machine."""
    token = os.urandom(TOKEN_BYTES)
    with (
        closing(Receiver(kind, there, token)) as receiver,
        closing(Sender(kind, here, token, there.address, receiver.port)) as sender,
    ):
        yield sender, receiver


def one_way(
    opened: Callable[[str], AbstractContextManager[tuple[Sender, Receiver]]], mtu_bytes: int
) -> OneWay:
    """Send bursts from one end to the other, then full packets that must not be fragmented.

    opened: returns both ends for `icmp` or `udp`. mtu_bytes: of the interface by which packets leave.
    """
    result = OneWay()
    for kind in ("icmp", "udp"):
        burst: Sent = getattr(result, kind)
        try:
            with opened(kind) as (sender, receiver):
                wait_s = _burst(sender, receiver, burst)
                if burst.arrived and result.mtu is None:
                    result.mtu = _mtu(sender, receiver, mtu_bytes, burst.lost_share, wait_s)
        except OSError as error:
            burst.said = error.strerror or str(error)
    return result


def _burst(sender: Sender, receiver: Receiver, result: Sent) -> float:
    """Send a burst; return how long a packet may take: LAST_S more than the first one took."""
    begun = time.monotonic()
    said = sender.send(number=0, length_bytes=SMALL_BYTES)  # this one asks for the neighbour
    numbers, result.sent = set(receiver.arrived(wait_s=FIRST_S, wanted=1)), 1
    wait_s = LAST_S + (time.monotonic() - begun if numbers else 0.0)
    if numbers or not said:
        count = BURST if numbers else BLOCKED_BURST
        sender.burst(count=count)
        result.sent += count
        numbers |= set(receiver.arrived(wait_s=wait_s, wanted=result.sent - len(numbers)))
    result.arrived = len(numbers)
    result.said = said or sender.told()[0]
    return wait_s


def _mtu(sender: Sender, receiver: Receiver, full_bytes: int, lost_share: float, wait_s: float) -> Mtu | None:
    """Find the largest packet that passes: the full one, or by halving. None if what passes changes, as on a machine
    that is busy for a while."""
    number, told_bytes = 1 << 20, None
    tries = TRIES if lost_share < 0.05 else 4 * TRIES

    def passes(length_bytes: int) -> bool:
        nonlocal number, told_bytes
        for _ in range(tries):
            number += 1
            said = sender.send(number=number, length_bytes=length_bytes)
            if number in receiver.arrived(wait_s=wait_s if not said else 0.01, wanted=1):
                return True
            told_bytes = sender.told()[1] or told_bytes
        return False

    if passes(full_bytes):
        return Mtu(full_bytes, full_bytes, None)
    low, high = SMALL_BYTES, full_bytes
    if told_bytes and low < told_bytes < high and passes(told_bytes):
        low = told_bytes
        if not passes(low + 1):
            return Mtu(full_bytes, low, told_bytes)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    if not passes(low) or passes(full_bytes):
        return None
    return Mtu(full_bytes, low, told_bytes)


def stream(end: End) -> socket.socket:
    """Return a socket of TCP with the address of an end."""
    one = end.opened(socket.SOCK_STREAM)
    try:
        one.bind((end.address, 0))
    except OSError:
        one.close()
        raise
    one.settimeout(FIRST_S)
    return one


def tcp(here: End, there: End) -> Connection:
    """Connect with TCP from one end to the other, and carry TCP_BYTES."""
    with ExitStack() as stack:
        begun = time.monotonic()
        try:
            listener = stack.enter_context(stream(there))
            listener.listen(1)
            client = stack.enter_context(stream(here))
            client.connect((there.address, listener.getsockname()[1]))
            server = stack.enter_context(listener.accept()[0])
        except OSError as error:
            return Connection(False, 0, time.monotonic() - begun, error.strerror or str(error))
        carried = carry(client, server)
        return Connection(True, carried, time.monotonic() - begun)


def refused(here: End, address: str, port: int) -> str:
    """Connect with TCP from an end to a port at which a program listens, and close; return the error, "" if none."""
    try:
        with stream(here) as one:
            one.connect((address, port))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def carry(client: socket.socket | None, server: socket.socket | None) -> int:
    """Carry TCP_BYTES through the ends of a connection that are on this machine; return how many left or arrived."""
    ends = [one for one in (client, server) if one is not None]
    for one in ends:
        one.setblocking(False)
    sent = carried = 0
    until = time.monotonic() + TCP_S
    while (sent if server is None else carried) < TCP_BYTES and time.monotonic() < until:
        writers = [client] if client and sent < TCP_BYTES else []
        readable, writable, _ = select.select([server] if server else [], writers, [], 0.2)
        with suppress(OSError):
            if writable and client:
                sent += client.send(bytes(min(1 << 16, TCP_BYTES - sent)))
            if readable and server:
                carried += len(server.recv(1 << 16))
    return sent if server is None else carried


def round_trips_ms(here: End, there: End, count: int = 20) -> list[float]:
    """Return round-trip times of echo requests, in ms; empty without an answer or the right."""
    result = []
    answer = ECHO[here.version][1]
    with suppress(OSError), closing(_socket("icmp", here, answer)) as one:
        one.connect((there.address, 0))
        token = os.urandom(8)
        for number in range(count):
            begun = time.monotonic()
            one.send(_echo_request(here.version, number, token + struct.pack("!I", number)))
            while (left := begun + FIRST_S - time.monotonic()) > 0:
                one.settimeout(left)
                data = one.recv(2048)
                head = data if here.version == 6 else data[(data[0] & 15) * 4 :]
                if head[0] == answer and token + struct.pack("!I", number) in data:
                    result.append((time.monotonic() - begun) * 1e3)
                    break
    return result
