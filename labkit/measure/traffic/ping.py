"""ping as a traffic generator: round-trip times, closed-loop; and whether ends reach each other.

Closed-loop: at intervals below 10 ms, ping waits up to 10 ms for an answer before it sends the next request (iputils,
main_loop). So a stall of the path counts less often than it would at a fixed schedule.
"""

import math
import os
import re
import select
import socket
import statistics
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from labkit.common import errors, units
from labkit.common.errors import Failed
from labkit.common.packets import internet_checksum
from labkit.measure.endpoints import Endpoint, Pair, RemotePair
from labkit.measure.traffic.base import (
    NOT_COUNTED,
    Capabilities,
    LatencyGenerator,
    LoadParameters,
    latency_columns,
    unanswered,
)
from labkit.system import netlink, process

# The kernel reports carriers to bridges for 100 devices at a time, a second apart (net/core/link_watch.c): with
# hundreds of new ports the last one may begin to forward late.
PATIENCE_S = 15
INTERVAL_S = 0.002  # the shortest interval that iputils allows without privilege
WAIT_S = 0.01  # how long ping waits for an answer before it sends the next request
# The steps in which ping prints times below these limits (iputils, ping_common.c, gather_statistics).
STEPS_S = ((1e-3, 1e-6), (1e-2, 1e-5), (1e-1, 1e-4))
LAST_STEP_S = 1e-3
# If this share of the times is in one step, and the step is at least this share of a time, the row has a doubt.
NEARLY_ALL, COARSE = 0.95, 1e-3
ECHO_S = 0.2  # between two echo requests of this process
REQUEST, REPLY = {4: 8, 6: 128}, {4: 0, 6: 129}
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PMTUDISC_DO, IPV6_DONTFRAG = 10, 23, 2, 62  # linux/in.h, linux/in6.h
SO_TIMESTAMPNS = 35  # asm-generic/socket.h
SEQUENCES = 1 << 16
HEADER = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence number
_RTT = re.compile(r"time=([0-9.]+) ms(?! \(DUP!\))")  # without duplicates: each request counts once
_NUMBER = re.compile(r"icmp_seq=(\d+) .*time=[0-9.]+ ms(?! \(DUP!\))")  # modulo SEQUENCES


def reachable(
    pairs: Sequence[Pair | RemotePair], mtu_bytes: int, family: int, patience_s: int = PATIENCE_S
) -> str | None:
    """Ping every pair with packets that fill the MTU and must not be fragmented, for up to `patience_s`.

    Returns None if every pair answers, else one sentence about the first pair that does not.
    """
    size = mtu_bytes - (28 if family == 4 else 48)
    in_namespaces = [pair for pair in pairs if pair.client.runtime is None]
    in_runtimes = [pair for pair in pairs if pair.client.runtime is not None]
    lost = _unanswered(in_namespaces, size + 8, patience_s) if in_namespaces else None
    lost = lost or _unanswered_by_program(in_runtimes, size, patience_s)
    if lost is None:
        return None
    pair, words = lost
    return f"{pair.client.name} gets no answer from {pair.server.name} to a ping of {mtu_bytes} bytes" + (
        f" ({words})" if words else ""
    )


class TimedSocket:
    """A connected socket, with the time at which the kernel received each message."""

    def __init__(
        self, own: socket.socket, to: tuple[str, int], options: Iterable[tuple[int, int, int]] = ()
    ) -> None:
        self._socket, self._sequence = own, 0
        try:
            for option in (*options, (socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)):
                own.setsockopt(*option)
            own.setblocking(False)
            own.connect(to)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the socket's descriptor, which becomes readable when something arrives."""
        return self._socket.fileno()

    def received(self) -> tuple[bytes, int] | None:
        """Return a message and when the kernel received it, in nanoseconds since 1970; None if no more have arrived.

        Raises OSError for an error that came back.
        """
        try:
            data, about, _flags, _from = self._socket.recvmsg(1 << 16, 64)
        except BlockingIOError:
            return None
        seconds, nanoseconds = struct.unpack("qq", about[0][2][:16])
        return data, seconds * 1_000_000_000 + nanoseconds

    def close(self) -> None:
        self._socket.close()


class Echo(TimedSocket):
    """A socket that sends echo requests of `length_bytes` (with the ICMP header) to an address, never fragmented.

    It belongs to the network namespace that the calling thread is in. Raises OSError without a route.
    """

    def __init__(self, address: str, length_bytes: int) -> None:
        self._family = 6 if ":" in address else 4
        self._identifier = int.from_bytes(os.urandom(2))
        self._length_bytes = length_bytes
        self.ttl: int | None = None  # of the last answer, with IPv4
        if self._family == 4:
            own = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            options = [(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_DO)]
        else:
            own = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
            options = [(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_DO)]
            options += [(socket.IPPROTO_IPV6, IPV6_DONTFRAG, 1)]
        super().__init__(own, (address, 0), options)

    def send(self) -> None:
        """Send one request. Raises OSError if the kernel refuses it, for example because it exceeds the MTU."""
        self._sequence = (self._sequence + 1) % SEQUENCES
        words = (REQUEST[self._family] << 8, self._identifier, self._sequence)  # the payload is all zeros
        checksum = (
            internet_checksum(sum(words)) if self._family == 4 else 0
        )  # the kernel makes that of ICMPv6
        header = HEADER.pack(REQUEST[self._family], 0, checksum, self._identifier, self._sequence)
        self._socket.send(header + bytes(self._length_bytes - HEADER.size))

    def answer(self) -> tuple[int, int] | None:
        """Return the number of an answered request (from 1, modulo SEQUENCES), and when the kernel received the answer,
        in nanoseconds since 1970; None if no more answers have arrived. Raises OSError for an error that came back."""
        while (message := self.received()) is not None:
            data, received_ns = message
            begin = 4 * (data[0] & 15) if self._family == 4 else 0  # IPv4 delivers its own header as well
            kind, _, _, identifier, sequence = HEADER.unpack_from(data, begin)
            if (kind, identifier) == (REPLY[self._family], self._identifier):
                self.ttl = data[8] if begin else None
                return sequence, received_ns
        return None


def _unanswered(
    pairs: Sequence[Pair | RemotePair], length_bytes: int, patience_s: float
) -> tuple[Pair | RemotePair, str] | None:
    """Send echo requests (RFC 792, RFC 4443) from the client of every pair to its server, each ECHO_S until the first
    answer. Starting ping(8) for them takes 0.15 s on an emulated CPU.

    Returns None if every pair got an answer, else one pair that got none, with the kernel's message or "".
    """
    waiting: dict[int, tuple[Pair | RemotePair, Echo]] = {}
    poll, now = select.poll(), time.monotonic()
    deadline, again = now + patience_s, now
    pair = pairs[0]
    try:
        for pair in pairs:
            with netlink.inside(pair.client.namespace.fd):
                one = Echo(pair.server_address, length_bytes)
            waiting[one.fileno()] = pair, one
            poll.register(one, select.POLLIN)
        while waiting and now < deadline:
            if now >= again:
                again = now + ECHO_S
                for pair, one in waiting.values():  # noqa: B007 (the handler below names the pair)
                    one.send()
            for descriptor, _event in poll.poll(1e3 * max(0.0, min(again, deadline) - now)):
                pair, one = waiting[descriptor]
                if one.answer():
                    poll.unregister(descriptor)
                    del waiting[descriptor]
                    one.close()
            now = time.monotonic()
        return (next(iter(waiting.values()))[0], "") if waiting else None
    except OSError as error:
        return pair, error.strerror or str(error)
    finally:
        for _pair, one in waiting.values():
            one.close()


def _unanswered_by_program(
    pairs: Sequence[Pair | RemotePair], length_bytes: int, patience_s: int
) -> tuple[Pair | RemotePair, str] | None:
    """Ping from containers and guests, whose sockets this process cannot open; return as `_unanswered`."""
    options = ["-c1", "-i0.2", f"-w{patience_s}", "-Mdo", f"-s{length_bytes}"]
    programs = [pair.client.start(argv(pair.server_address, options)) for pair in pairs]
    with process.all_ended(programs):
        process.wait(programs, time.monotonic() + patience_s + 2)
        for pair, program in zip(pairs, programs, strict=True):
            program.kill()
            if program.ended().returncode != 0:
                return pair, " ".join(program.ended().stderr.split())
    return None


def silent(pair: Pair | RemotePair) -> bool:
    """Return whether small pings of one pair get no answer within 0.6 s."""
    words = argv(pair.server_address, ["-c3", "-i0.2", "-W0.2"])
    return process.run([*pair.client.prefix, *words]).returncode == 1


def answered(client: Endpoint, address: str, count: int, length_bytes: int) -> None:
    """Send `count` pings with this payload length, each after the answer to the one before. Raises Failed without an
    answer within PATIENCE_S."""
    # With a deadline (-w), or with a count above one, ping sends more requests while an answer is on its way.
    command = [*client.prefix, *argv(address, ["-c1", f"-W{PATIENCE_S}", f"-s{length_bytes}"])]
    for _ in range(count):
        ended = process.run(command)
        if ended.returncode:
            raise Failed(f"{client.name} lost a ping to {address}: {ended.message()}")


def step_s(rtt_s: float) -> float:
    """Return the step in which ping prints round-trip times of this length."""
    return next((step for limit, step in STEPS_S if rtt_s < limit), LAST_STEP_S)


def _step_doubt(times: Sequence[float], middle: float, step: float) -> str | None:
    """Return a doubt if nearly all round-trip times are in one step, so that their median shows no smaller
    difference."""
    share = times.count(middle) / len(times)
    if step < COARSE * middle or share < NEARLY_ALL:
        return None
    return (
        f"ping printed {units.percent(share)} of the round-trip times as {units.si(middle, 's')}, because it prints"
        f" such times in steps of {units.si(step, 's')}: smaller differences do not show"
    )


@errors.reading("the output of ping")
def round_trip_times(text: str) -> list[float]:
    """Parse the round-trip times that ping (iputils) printed; return them in seconds."""
    return [float(value) / 1e3 for value in _RTT.findall(text)]


def _sent_by_all(texts: Iterable[str]) -> int | None:
    """Return how many requests all pings sent, or None if one was ended before it printed its summary."""
    result = [re.search(r"(\d+) packets transmitted", text) for text in texts]
    return None if None in result else sum(int(one[1]) for one in result if one)


def argv(address: str, options: list[str]) -> list[str]:
    """Return the command line of a ping, without the prefix that enters its namespace."""
    return ["ping", "-n", *options, address]


def _count(seconds: int) -> int:
    return round(seconds / INTERVAL_S)


def _ended(pairs: Sequence[Pair | RemotePair], seconds: int, length_bytes: int) -> list[process.Ended]:
    """Ping from all clients at once for so long, and return how each program ended."""
    options = [f"-c{_count(seconds)}", f"-i{INTERVAL_S}", f"-w{seconds + 2}", f"-s{length_bytes}"]
    with process.all_ended([]) as programs:
        for pair in pairs:
            programs.append(pair.client.start(argv(pair.server_address, options)))
        process.wait(programs, time.monotonic() + seconds + 5)
        for program in programs:
            program.kill()
        return [program.ended() for program in programs]


class Ping(LatencyGenerator):
    """ping as a traffic generator."""

    name = "ping"
    capabilities = Capabilities(
        length_bytes={"ping": (16, 65507)}, metric="latency_p50_s", higher_is_better=False
    )

    def version(self) -> str:
        return process.output(["ping", "-V"]).split()[-1]

    def latency(
        self,
        pairs: Sequence[Pair | RemotePair],
        parameters: LoadParameters,
        counting: AbstractContextManager[object] = NOT_COUNTED,
    ) -> dict[str, Any]:
        """Measure the round-trip times of all pairs at once, with a request every 2 ms for each pair.

        Raises Failed with ping's error message if one of them fails or gets no answer at all.
        """
        length_bytes = 56 if parameters.length_bytes is None else parameters.length_bytes
        if parameters.omit_s:
            _ended(pairs, parameters.omit_s, length_bytes)
        with counting:
            ended = _ended(pairs, parameters.duration_s, length_bytes)
        times: list[float] = []
        lost = 0
        for one in ended:
            own = round_trip_times(one.stdout)
            if not own:
                raise Failed(one.message())
            times += own
            # Not those on their way as ping ended: with the last answer that it waits for, or at its deadline. Where
            # times vary, that answer may have been the quickest. They are among the last that it sent.
            on_their_way = int(max(own) / WAIT_S) + (len(own) < _count(parameters.duration_s))
            sent_count = _sent_by_all([one.stdout]) or 0
            last = range(max(1, sent_count - int(max(own) / INTERVAL_S)), sent_count + 1)
            answered = map(int, _NUMBER.findall(one.stdout)[-len(last) :])
            missing = {number % SEQUENCES for number in last}.difference(answered)
            lost += max(0, sent_count - len(own) - min(on_their_way, len(missing)))
        times.sort()
        middle = times[len(times) // 2]
        step = step_s(middle)
        doubt = _step_doubt(times, middle, step)
        columns, sent = latency_columns(times, lost), _sent_by_all(one.stdout for one in ended)
        if columns["latency_p50_s"] is not None:
            # Without interpolation, 4 µs against 5 µs would look like 25 %.
            columns["latency_p50_s"] = statistics.median_grouped([*times, *[math.inf] * lost], step)
        return {
            "loop": "closed",
            "received_count": len(times),
            "sent_count": sent,
            "lost_count": None if sent is None else lost,
            **columns,
            "doubts": [*([] if doubt is None else [doubt]), *unanswered(lost, len(times) + lost)],
        }


PING = Ping()
