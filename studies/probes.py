"""Probes at a fixed rate, whatever comes back: when each was sent, and its round-trip time.

labkit sends them itself. ping(8) has no fixed rate: it adds up to two ticks of the kernel's clock to each interval. The
kernel answers echo requests, and their round trip is from just before the send call to the kernel's time stamp of the
answer, so the sender's wait for a CPU does not count. A program answers requests of UDP. Their round trip starts when
they were due, as in every open loop of labkit, so both programs' waits for a CPU count.
"""

from __future__ import annotations

import ctypes
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from labkit.common.errors import Failed
from labkit.measure.endpoints import Pair, RemotePair
from labkit.measure.traffic.base import PORT
from labkit.measure.traffic.packet_sender import PR_SET_TIMERSLACK
from labkit.measure.traffic.ping import SEQUENCES, Echo, TimedSocket
from labkit.system import netlink

MOST_RPS = 1000
LENGTH_BYTES = 64  # of ping with the header of ICMP, and of UDP without its own
LINGER_S = 1.0  # how long answers are waited for after the last probe that counts
LATE_S = 0.005  # a probe that is sent later than this was delayed by its sender
CLOCK_S = 0.005  # the machine's clock may be set by this much during a measurement


@dataclass(frozen=True)
class Probe:
    """When a probe began (time.monotonic()), its round-trip time in seconds (None: no answer came), and how late it was
    sent."""

    sent_s: float
    rtt_s: float | None
    late_s: float = 0.0


@dataclass
class Probing:
    """Probes that are sent while their block is open; `probes` are there when it has ended."""

    probers: list[Prober] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)

    @property
    def sent_counts(self) -> list[int]:
        """How many probes each client has sent so far."""
        return [len(one.sent) for one in self.probers]

    def so_far(self) -> list[Probe]:
        """Return the probes up to now. Some of them may still get an answer. Raises as `Prober.probes`."""
        return [probe for one in self.probers for probe in one.probes()]

    def within(self, begin_s: float, end_s: float) -> tuple[list[float], int]:
        """Return the sorted round-trip times of the probes that began in this window, and how many got no answer.
        Raises Failed if none was sent."""
        times = [one.rtt_s for one in self.probes if begin_s <= one.sent_s < end_s]
        if not times:
            raise Failed(f"no probe was sent in {end_s - begin_s:.3g} s")
        answered = sorted(one for one in times if one is not None)
        return answered, len(times) - len(answered)

    def late_share(self, begin_s: float, end_s: float) -> float:
        """Return the share of the probes of this window that were sent late."""
        late = [one.late_s > LATE_S for one in self.probes if begin_s <= one.sent_s < end_s]
        return sum(late) / len(late) if late else 0.0


class Datagrams(TimedSocket):
    """A socket that sends numbered requests of UDP and reads their responses, as `Echo` does with those of ICMP."""

    def __init__(self, address: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__(socket.socket(family, socket.SOCK_DGRAM), (address, port))

    def send(self) -> None:
        """Send one request. Raises OSError for an error that came back."""
        self._sequence += 1
        self._socket.send(self._sequence.to_bytes(LENGTH_BYTES))

    def answer(self) -> tuple[int, int] | None:
        """Return the number of an answered request, and when the kernel received the response, in nanoseconds since
        1970; None if no more have arrived. Raises OSError for an error that came back."""
        message = self.received()
        return None if message is None else (int.from_bytes(message[0]), message[1])


class Prober(threading.Thread):
    """A thread that sends probes from a client by a schedule: echo requests, or `udp`. One that is late catches up."""

    def __init__(self, pair: Pair | RemotePair, rate_rps: float, udp: bool) -> None:
        super().__init__(daemon=True)
        end, port = pair.server, PORT + pair.server.port_offset
        try:
            with netlink.inside(pair.client.namespace.fd):
                self._socket = (
                    Datagrams(pair.server_address, port) if udp else Echo(end.address, LENGTH_BYTES)
                )
        except OSError as error:
            raise Failed(f"{pair.client.name} cannot probe {end.name}: {error.strerror}") from None
        self._rate_rps, self._counts_delay = rate_rps, udp
        self.sent: list[tuple[float, int]] = []  # time.monotonic(), and nanoseconds since 1970
        self._rtts_s: dict[int, float] = {}
        self._begin_s, self._until_s = 0.0, float("inf")
        self._error: Exception | None = None  # what ended the thread early

    def run(self) -> None:
        """Send and receive until LINGER_S after `stop`. `probes` raises what goes wrong here."""
        try:
            self._send_and_receive()
        except Exception as error:
            self._error = error

    def _send_and_receive(self) -> None:
        if self._counts_delay:
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)  # of this thread
        self._begin_s = time.monotonic()
        while (now_s := time.monotonic()) < self._until_s:
            due_s = self._begin_s + len(self.sent) / self._rate_rps
            if due_s <= now_s:
                self.sent.append((now_s, time.time_ns()))
                with suppress(OSError):  # an error of an earlier request: that one got no answer
                    self._socket.send()
            elif select.select([self._socket], [], [], due_s - now_s)[0]:
                self._receive()

    def _receive(self) -> None:
        with suppress(OSError):
            while answer := self._socket.answer():
                sequence, received_ns = answer
                number = len(self.sent) - (len(self.sent) - sequence) % SEQUENCES
                self._rtts_s.setdefault(number, (received_ns - self.sent[number - 1][1]) / 1e9)

    def stop(self) -> None:
        """End when the last answers may have come."""
        self._until_s = time.monotonic() + LINGER_S

    def probes(self) -> Iterator[Probe]:
        """Yield the probes so far. Raises the error that ended the thread, after which nothing was sent."""
        if self._error is not None:
            raise self._error
        for number, (sent_s, _) in enumerate(self.sent[:]):
            late_s, rtt_s = sent_s - self._begin_s - number / self._rate_rps, self._rtts_s.get(number + 1)
            counted_s = late_s if self._counts_delay else 0.0
            yield Probe(sent_s - counted_s, None if rtt_s is None else rtt_s + counted_s, late_s)

    def close(self) -> None:
        """Wait for its end after `stop`."""
        self.join()
        self._socket.close()


@contextmanager
def probing(pairs: Sequence[Pair | RemotePair], rate_rps: float, udp: bool = False) -> Iterator[Probing]:
    """Send probes from all clients at a rate until the block ends, and wait for the last answers.

    `udp`: requests to the servers' port (PORT and `port_offset`), at which a program answers; otherwise echo requests.
    Raises Failed if the machine's clock is set meanwhile, and whatever error ended a thread early.
    """
    result = Probing()
    offset_s = time.time() - time.monotonic()
    try:
        for pair in pairs:
            result.probers.append(Prober(pair, rate_rps, udp))
            result.probers[-1].start()
        yield result
    finally:
        for one in result.probers:
            one.stop()
        for one in result.probers:
            one.close()
    result.probes = result.so_far()
    if abs(time.time() - time.monotonic() - offset_s) > CLOCK_S:
        raise Failed("the machine's clock was set during the measurement: repeat it")
