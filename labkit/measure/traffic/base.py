"""The interface of a traffic generator: what it can do, and how experiments use it.

An experiment asks a generator's `capabilities` and never its name. There are three ways to make load, and each is a
class: flows that carry data from clients to servers (`FlowGenerator`), round trips that are timed one by one
(`LatencyGenerator`), and trials at a rate (`TrialGenerator`). A new generator is one module and one line in
`labkit.measure.traffic.registry`.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from labkit.common.errors import BadInput
from labkit.measure.endpoints import Endpoint, FarPair, Pair
from labkit.measure.traffic.packet_sender import Mix
from labkit.system import process

# Each end of a flow leaves out the warm-up by its own clock. A busy machine makes one of them this late.
SKEW_S, LEAST_SKEW = 0.2, 0.02

Page = dict[str, Any]  # what one end of a flow reports, as the generator wrote it


def skew(duration_s: float) -> float:
    """The share by which the counts of a flow's two ends may differ: each leaves out the warm-up by its own clock."""
    return max(LEAST_SKEW, SKEW_S / duration_s) if duration_s > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a generator can do.

    `length_bytes`: for each protocol the least and the greatest length of a write, datagram or payload. `paced`: it
    keeps a rate. `sliced`: its senders can be held and continued, so slices of several arms can alternate. `streams`:
    parallel streams of a pair at most. `metric`: the column that arms are compared by; `higher_is_better` says which
    way.
    """

    length_bytes: Mapping[str, tuple[int, int]]
    metric: str
    higher_is_better: bool = True
    paced: bool = False
    sliced: bool = False
    streams: int = 1

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols that it speaks; the first is the one that it takes by itself."""
        return tuple(self.length_bytes)


class LoadParameters(Protocol):
    """The parameters of an experiment that a generator reads (`experiments.datapaths_parameters` says what each is)."""

    @property
    def protocol(self) -> str: ...
    @property
    def length_bytes(self) -> int | None: ...
    @property
    def datagram_bytes(self) -> int: ...
    @property
    def rate_bps(self) -> float | None: ...
    @property
    def streams(self) -> int: ...
    @property
    def duration_s(self) -> int: ...
    @property
    def omit_s(self) -> int: ...
    @property
    def slices(self) -> int: ...
    @property
    def mss_bytes(self) -> int | None: ...
    @property
    def congestion(self) -> str | None: ...
    @property
    def zerocopy(self) -> bool: ...
    @property
    def affinity(self) -> str | None: ...


class Generator(abc.ABC):
    """A program that makes load between endpoints."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    @abc.abstractmethod
    def version(self) -> str:
        """The version of the program. Raises Unsupported where it is missing or too old."""

    def check(self, parameters: LoadParameters) -> None:
        """Raises BadInput, in one sentence, for parameters that this generator cannot meet."""
        can = self.capabilities
        if parameters.protocol not in can.protocols:
            known = ", ".join(can.protocols)
            raise BadInput(f"protocol={parameters.protocol}: the generator {self.name} has {known}")
        least, most = can.length_bytes[parameters.protocol]
        length = parameters.length_bytes
        if length is not None and not least <= length <= most:
            what = f"what {parameters.protocol} by {self.name} takes"
            raise BadInput(f"length_bytes={length} is outside {least} to {most}: {what}")
        if parameters.slices and (not can.sliced or parameters.rate_bps is not None):
            raise BadInput(
                "slices measure senders that send as fast as they can: with ping or rate_bps say slices=0"
            )
        if not can.paced and (parameters.rate_bps is not None or parameters.streams > can.streams):
            raise BadInput(f"{self.name} takes neither rate_bps nor streams")


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The one-way latency of probe packets beside the load, in seconds; counts are exact, by sequence numbers.

    `clock`: `kernel` is from the kernel's send timestamp to its receive timestamp, `sender` from just before the send
    call. `histogram`: an HDR histogram of nanoseconds, as text (HdrHistogram V2, compressed, base64).
    """

    sent_count: int
    received_count: int
    reordered_count: int
    duplicated_count: int
    clock: str
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    p999_s: float | None
    max_s: float | None
    histogram: str | None

    @property
    def lost_count(self) -> int:
        """Probes that did not arrive."""
        return self.sent_count - self.received_count


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial: a load at a rate for a time, and what arrived.

    `rate_pps` and `duration_s` are what was asked for. `offered_count` is what the generator handed to the device
    under test: `sent_count`, and what the first hop refused. `received_count` is of these frames alone; `hops` are all
    frames that interfaces on the path counted, the sender's first, the receiver's last. `elapsed_s` is how long it
    sent, `slip_s` by how much its schedule moved because it was late.
    """

    rate_pps: float | None
    duration_s: float
    offered_count: int
    sent_count: int
    received_count: int
    hops: Mapping[str, int]
    elapsed_s: float
    slip_s: float
    generator_cpu_s: float
    latency: Latency | None = None

    @property
    def lost_count(self) -> int:
        """Offered and not received; a device that duplicates frames has lost none."""
        return max(0, self.offered_count - self.received_count)

    @property
    def loss_ratio(self) -> float:
        """Lost, of what was offered."""
        return self.lost_count / self.offered_count if self.offered_count else 0.0

    @property
    def offered_pps(self) -> float:
        """The rate that the generator reached."""
        return self.offered_count / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def generator_limited(self) -> bool:
        """Whether the generator stayed more than 1 % below the rate that was asked for."""
        return self.rate_pps is not None and self.offered_count < 0.99 * self.rate_pps * self.duration_s - 1


class Trials(Protocol):
    """A generator that is ready between the ends of a topology."""

    def trial(self, rate_pps: float | None, duration_s: float, *, latency: bool = False) -> Trial:
        """Offer so many frames a second in all (None: as many as it can) for so long. Raises Failed when the generator
        ends or does not answer."""


class TrialGenerator(Generator):
    """A generator that offers frames at a rate, counts exactly, and can be asked again and again."""

    @abc.abstractmethod
    def trials(self, pairs: Sequence[Pair], mix: Mix) -> AbstractContextManager[Trials]:
        """Senders and receivers of these pairs, ready; nothing of them is left afterwards. Raises Unsupported, in one
        sentence, for ends that it cannot send from, and BadInput for frames that do not fit."""


class LatencyGenerator(Generator):
    """A generator that times round trips."""

    @abc.abstractmethod
    def latency(self, pairs: Sequence[Pair | FarPair], parameters: LoadParameters) -> dict[str, Any]:
        """The columns of a row: the round-trip times of all pairs at once. Raises Failed when one gets no answer."""


class Servers(Protocol):
    """Servers that listen, one for each pair. `programs` are their processes."""

    programs: list[process.Running]

    def finish(self, deadline: float) -> list[Page]:
        """Wait for their ends, kill those that still run at the deadline (time.monotonic()), return what each
        reports."""


class Flows(Protocol):
    """The flows of one topology: started, held, continued and ended together."""

    def stage(self) -> None:
        """Make all clients ready for `go`."""

    def go(self) -> None:
        """Let all senders send."""

    def hold(self) -> None:
        """Stop all senders where they are."""

    def wait(self, until: float) -> bool:
        """Sleep until then (time.monotonic()), or until all clients have ended; whether some still run."""

    def early_end(self) -> str | None:
        """The words of a flow that has ended although it should be running, or None."""

    def interrupt(self) -> None:
        """End all flows before their time; `finish` still returns what they counted."""

    def finish(
        self, deadline: float, served: Callable[[], list[Page]] | None = None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Wait until the flows have ended; what both ends of each report, and what went wrong first, or None.
        `served` gives the reports of servers on another host."""

    def server_pages(self) -> list[Page]:
        """What the servers report, where they are on this host."""


class FlowGenerator(Generator):
    """A generator whose clients carry data to servers."""

    reported_bps: ClassVar[str]  # the column with the throughput that the generator itself reports
    grace_s: ClassVar[float]  # beyond its planned time, until a run is ended by force
    last_words_s: ClassVar[float]  # for the other end to report, once one has ended

    @abc.abstractmethod
    def flows(
        self,
        pairs: Sequence[Pair],
        parameters: LoadParameters,
        *,
        emulated: bool = False,
        endless: bool = False,
    ) -> AbstractContextManager[Flows]:
        """Flows whose servers listen; none of the processes is left afterwards. `emulated`: the CPUs are, so they need
        longer to start. `endless`: they run until they are interrupted, for slices."""

    @abc.abstractmethod
    def far_flows(
        self, pairs: Sequence[FarPair], parameters: LoadParameters
    ) -> AbstractContextManager[Flows]:
        """Flows to servers that listen on another host."""

    @abc.abstractmethod
    def servers(self, ends: Sequence[Endpoint], *, emulated: bool = False) -> AbstractContextManager[Servers]:
        """Servers that listen at these ends; none of them is left afterwards."""

    @abc.abstractmethod
    def metrics(self, reports: Sequence[Page], protocol: str) -> dict[str, Any]:
        """The columns of a row, from what both ends of each flow report. Raises Failed when one lacks what a row
        needs."""

    @abc.abstractmethod
    def block_bytes(self, parameters: LoadParameters) -> int:
        """What a sender sends at a time: so much of a rate can be missing at the end."""
