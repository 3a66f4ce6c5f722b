"""Echo requests at a fixed rate, whatever comes back: when each was sent, and its round-trip time.

labkit sends them itself, because ping(8) has no fixed rate: it adds up to two ticks of the kernel's clock to each
interval. A round trip is from just before the send call to the kernel's time stamp of the answer, so the sender's wait
for a CPU does not count.
"""

import select
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from labkit.common.errors import Failed
from labkit.measure.endpoints import Pair, RemotePair
from labkit.measure.traffic.ping import SEQUENCES, Echo
from labkit.system import netlink

MOST_RPS = 1000
LENGTH_BYTES = 64  # with the header of ICMP, as ping's
LINGER_S = 1.0  # how long answers are waited for after the last probe that counts
LATE_S = 0.005  # a probe that is sent later than this was delayed by its sender
CLOCK_S = 0.005  # the machine's clock may be set by this much during a measurement


@dataclass(frozen=True)
class Probe:
    """When a probe was sent (time.monotonic()), its round-trip time in seconds (None: no answer came), and how late it
    was sent."""

    sent_s: float
    rtt_s: float | None
    late_s: float = 0.0


@dataclass
class Probing:
    """Probes that are sent while their block is open; `probes` are there when it has ended."""

    probes: list[Probe] = field(default_factory=list)

    def within(self, begin_s: float, end_s: float) -> tuple[list[float], int]:
        """Return the sorted round-trip times of the probes that were sent in this window, and how many got no answer.

        Raises Failed if none got one.
        """
        times = [one.rtt_s for one in self.probes if begin_s <= one.sent_s < end_s]
        answered = sorted(one for one in times if one is not None)
        if not answered:
            raise Failed(f"none of {len(times)} probes got an answer in {end_s - begin_s:.3g} s")
        return answered, len(times) - len(answered)

    def late_share(self, begin_s: float, end_s: float) -> float:
        """Return the share of the probes sent in this window that were sent late."""
        late = [one.late_s > LATE_S for one in self.probes if begin_s <= one.sent_s < end_s]
        return sum(late) / len(late) if late else 0.0


class Prober(threading.Thread):
    """A thread that sends echo requests from a client by a schedule. One that is late catches up."""

    def __init__(self, pair: Pair | RemotePair, rate_rps: int) -> None:
        super().__init__(daemon=True)
        try:
            with netlink.inside(pair.client.namespace.fd):
                self._echo = Echo(pair.server.address, LENGTH_BYTES)
        except OSError as error:
            raise Failed(f"{pair.client.name} cannot probe {pair.server.name}: {error.strerror}") from None
        self._rate_rps = rate_rps
        self._sent: list[tuple[float, int]] = []  # time.monotonic(), and nanoseconds since 1970
        self._rtts_s: dict[int, float] = {}
        self._begin_s, self._until_s = 0.0, float("inf")

    def run(self) -> None:
        """Send and receive until LINGER_S after `stop`."""
        self._begin_s = time.monotonic()
        while (now_s := time.monotonic()) < self._until_s:
            due_s = self._begin_s + len(self._sent) / self._rate_rps
            if due_s <= now_s:
                self._sent.append((now_s, time.time_ns()))
                with suppress(OSError):  # an error of an earlier request: that one got no answer
                    self._echo.send()
            elif select.select([self._echo], [], [], due_s - now_s)[0]:
                self._receive()

    def _receive(self) -> None:
        with suppress(OSError):
            while answer := self._echo.answer():
                sequence, received_ns = answer
                number = len(self._sent) - (len(self._sent) - sequence) % SEQUENCES
                self._rtts_s.setdefault(number, (received_ns - self._sent[number - 1][1]) / 1e9)

    def stop(self) -> None:
        """End when the last answers may have come."""
        self._until_s = time.monotonic() + LINGER_S

    def ended(self) -> list[Probe]:
        """Wait for its end after `stop`, and return the probes."""
        self.join()
        self._echo.close()
        due = (self._begin_s + number / self._rate_rps for number in range(len(self._sent)))
        return [
            Probe(sent_s, self._rtts_s.get(number), sent_s - due_s)
            for number, ((sent_s, _), due_s) in enumerate(zip(self._sent, due, strict=True), 1)
        ]


@contextmanager
def probing(pairs: Sequence[Pair | RemotePair], rate_rps: int) -> Iterator[Probing]:
    """Send probes from all clients at a rate until the block ends, and wait for the last answers.

    Raises Failed if the machine's clock is set meanwhile.
    """
    result = Probing()
    offset_s = time.time() - time.monotonic()
    probers: list[Prober] = []
    try:
        for pair in pairs:
            probers.append(Prober(pair, rate_rps))
            probers[-1].start()
        yield result
    finally:
        for one in probers:
            one.stop()
        for one in probers:
            result.probes += one.ended()
    if abs(time.time() - time.monotonic() - offset_s) > CLOCK_S:
        raise Failed("the machine's clock was set during the measurement: repeat it")
