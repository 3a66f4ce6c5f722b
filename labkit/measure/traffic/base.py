"""The interface of a traffic generator: what it can do, and how experiments use it.

An experiment relies on a generator's `capabilities`, not on its name. There are three ways to make load, and each is a
class: flows that carry data from clients to servers (`FlowGenerator`), round trips that are timed one by one
(`LatencyGenerator`), and trials at a rate (`TrialGenerator`). A new generator is one module and one line in
`labkit.measure.traffic.registry`.
"""

from __future__ import annotations

import abc
import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from labkit.common import units
from labkit.common.errors import BadInput, Failed
from labkit.common.limits import Within
from labkit.common.schema import LATENCIES
from labkit.measure.endpoints import Endpoint, Pair, RemotePair
from labkit.system import process

if TYPE_CHECKING:
    from labkit.measure.traffic.packet_sender import Mix

NOT_COUNTED = nullcontext()  # nobody counts while the load runs
OFFERED = 0.98  # below this share of the requested rate of requests the sender was the limit
LATE_NS, LATE_SHARE = 50_000, 0.01  # a row has a doubt if more than this share of the requests was sent later
HIDDEN = 10  # how many times the 99th percentile is longer at a fixed rate if a closed loop hides a stall
SATURATED = 0.95  # the share of a CPU that each sender uses when the generator is the limit
# Each end of a flow leaves out the warm-up by its own clock. On a busy machine one end can be late by this much.
SKEW_S, MIN_SKEW = 0.2, 0.02

LARGEST_DATAGRAM = 65507  # of UDP over IPv4: 65535 - 20 - 8

PORT = 5201  # of every server: iperf3's usual one, which published ports publish

Page = dict[str, Any]  # what one end of a flow reports, as the generator wrote it


def skew(duration_s: float) -> float:
    """Return the share by which the counts of a flow's two ends may differ.

    They differ because each end leaves out the warm-up by its own clock.
    """
    return max(MIN_SKEW, SKEW_S / duration_s) if duration_s > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a generator can do.

    `length_bytes`: for each protocol the smallest and the largest length of a write, datagram or payload. `responds`:
    the protocols whose responses may have another length than requests, in the same limits. `paced`: it
    can keep a given rate. `sliced`: its senders can be held and continued, so slices of several arms can alternate.
    `streams`: the maximum number of parallel streams of a pair. `requests`: it can keep a rate of requests. `turns`:
    servers can send, too. `connects`: it opens so many connections that ports could run out. `sockets`: the options of
    sockets that it can set. `metric`: the column by which arms are compared, with `higher_is_better` as its direction.
    """

    length_bytes: Mapping[str, tuple[int, int]]
    responds: tuple[str, ...] = ()
    metric: str
    higher_is_better: bool = True
    paced: bool = False
    sliced: bool = False
    streams: int = 1
    requests: bool = False
    turns: bool = False
    connects: bool = False
    sockets: tuple[str, ...] = ()

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols that it supports; the first is its default."""
        return tuple(self.length_bytes)


class LoadParameters(Protocol):
    """The parameters of an experiment that a generator reads (`experiments.datapaths_parameters` says what each is)."""

    @property
    def protocol(self) -> str: ...
    @property
    def length_bytes(self) -> int | None: ...
    @property
    def response_bytes(self) -> int | None: ...
    @property
    def datagram_bytes(self) -> int: ...
    @property
    def rate_bps(self) -> float | None: ...
    @property
    def rate_rps(self) -> int | None: ...
    @property
    def outstanding(self) -> int | None: ...
    @property
    def streams(self) -> int: ...
    @property
    def direction(self) -> str: ...
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
    def socket(self) -> str | None: ...
    @property
    def zerocopy(self) -> bool: ...
    @property
    def affinity(self) -> str | None: ...
    @property
    def family(self) -> int: ...
    @property
    def nodes(self) -> str: ...
    @property
    def endpoint(self) -> tuple[str, ...]: ...


class Generator(abc.ABC):
    """A program that makes load between endpoints.

    `guest_files`: the Python files that its ends in guests need.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    guest_files: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def version(self) -> str:
        """Return the version of the program. Raises Unsupported if it is missing or too old."""

    def companion(self) -> AbstractContextManager[process.Companion]:
        """Start the program that a run needs outside its own namespaces and that outlives its process.

        Raises NotImplementedError for a generator without one. Only a run whose parameters name it calls this.
        """
        raise NotImplementedError(f"the generator {self.name} has no companion")

    def ignored_parameters(self, protocol: str) -> Sequence[str]:
        """Return the names of parameters that would do nothing with this protocol, so that none may be given."""
        return ("outstanding",)

    def check(self, parameters: LoadParameters) -> None:
        """Raise BadInput, with one sentence, for parameters that this generator does not support."""
        can = self.capabilities
        if parameters.protocol not in can.protocols:
            known = ", ".join(can.protocols)
            raise BadInput(f"protocol={parameters.protocol}: the generator {self.name} supports {known}")
        minimum, maximum = can.length_bytes[parameters.protocol]
        what = f"the range of {parameters.protocol} with {self.name}"
        Within(minimum, maximum, what).check("length_bytes", parameters.length_bytes)
        if parameters.response_bytes is not None and parameters.protocol not in can.responds:
            way = ", or use generator=sockets" if parameters.protocol in ("udp_rr", "tcp_rr") else ""
            raise BadInput(
                f"response_bytes={parameters.response_bytes}: {parameters.protocol} with {self.name} has no length for"
                f" responses alone; leave it out{way}"
            )
        Within(minimum, maximum, what).check("response_bytes", parameters.response_bytes)
        if parameters.slices and (not can.sliced or parameters.rate_bps is not None):
            raise BadInput(
                "slices need senders without a rate limit: with round trips or rate_bps use slices=0"
            )
        if not can.paced and (parameters.rate_bps is not None or parameters.streams > can.streams):
            name = "streams" if parameters.rate_bps is None else "rate_bps"
            raise BadInput(
                f"{name}={getattr(parameters, name):.12g}: {self.name} has no {name}; leave it out"
            )
        if parameters.rate_rps is not None and not can.requests:
            raise BadInput(
                f"rate_rps={parameters.rate_rps}: {self.name} keeps no rate of requests; leave it out"
            )
        for name in self.ignored_parameters(parameters.protocol):
            if value := getattr(parameters, name):
                raise BadInput(
                    f"{name}={value}: {parameters.protocol} with {self.name} has no {name}; leave it out"
                )
        self._check_sockets(parameters)
        self.check_direction(parameters)

    def check_direction(self, parameters: LoadParameters) -> None:
        """Raise BadInput for a direction in which it cannot send."""
        if parameters.direction == "forward":
            return
        given = f"direction={parameters.direction}"
        if not self.capabilities.turns:
            raise BadInput(f"{given}: with {self.name} only clients send; leave it out")
        if parameters.nodes == "two":
            raise BadInput(f"{given} needs both ends on one host: use nodes=one")

    def _check_sockets(self, parameters: LoadParameters) -> None:
        """Raise BadInput for options of sockets that it cannot set."""
        if parameters.socket is None:
            return
        from labkit.measure.traffic import socket_options  # few loads have any

        can = self.capabilities
        for name in socket_options.parse(parameters.socket):
            if name not in can.sockets:
                known = f"only {', '.join(can.sockets)}" if can.sockets else "none"
                raise BadInput(
                    f"socket={name}: of the options of sockets {self.name} can set {known}: leave it out, or use"
                    " generator=sockets"
                )
            if name in socket_options.OF_TCP and parameters.protocol.startswith("udp"):
                raise BadInput(f"socket={name}: UDP has no such option; leave it out")


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The one-way latency of probe packets beside the load, in seconds; counts are exact, by sequence numbers.

    `clock`: `kernel` is from the kernel's send timestamp to its receive timestamp, `sender` from just before the send
    call. `percentiles_s`: by the names of LATENCIES. `jitter_s`: as in RFC 3550. `histogram`: an HDR histogram of
    nanoseconds, as text (HdrHistogram V2, compressed, base64).
    """

    sent_count: int
    received_count: int
    reordered_count: int
    duplicated_count: int
    clock: str
    percentiles_s: Mapping[str, float | None]
    mean_s: float | None
    jitter_s: float | None
    histogram: str | None

    @property
    def lost_count(self) -> int:
        """The number of probes that did not arrive; TRex's counts may differ by one."""
        return max(0, self.sent_count - self.received_count)

    @property
    def columns(self) -> dict[str, Any]:
        return {
            **{f"latency_{name}_s": self.percentiles_s[name] for name in LATENCIES},
            "latency_mean_s": self.mean_s,
            "jitter_s": self.jitter_s,
            "latency_clock": self.clock,
            "probes_sent_count": self.sent_count,
            "probes_lost_count": self.lost_count,
            "out_of_order_count": self.reordered_count,
            "duplicated_count": self.duplicated_count,
            "histogram": self.histogram,
            "loop": "open",
        }


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial: a load at a rate for a time, and what arrived.

    `rate_pps` and `duration_s` are the requested values. `offered_count` is the number of frames that the generator
    handed to the device under test: `sent_count` and those that the first hop refused. `received_count` counts only
    these frames, and `received_by` has them by the name of the receiver. `hops` has all frames that each interface on
    the path counted, from the sender's to the receiver's. `elapsed_s` is how long the generator sent. `slip_s` is by
    how much its schedule moved because it was late. `requested_count`: a trial of exactly so many frames; None: of as
    many as the rate and the time give. `fault`: how the generator itself spoilt the trial, or None. `burst_frames`: how
    many frames a sender sent back to back, on average; None: it kept no rate, or nobody knows. `drained_s`: how long
    frames still arrived after the load, beside the path's own delay; None: nobody knows.
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
    received_by: Mapping[str, int] = field(default_factory=dict)
    latency: Latency | None = None
    requested_count: int | None = None
    fault: str | None = None
    burst_frames: float | None = None
    drained_s: float | None = None

    @property
    def lost_count(self) -> int:
        """The number of frames offered but not received; 0 if the device duplicated frames."""
        return max(0, self.offered_count - self.received_count)

    @property
    def loss_ratio(self) -> float:
        """The share of the offered frames that was lost."""
        return self.lost_count / self.offered_count if self.offered_count else 0.0

    @property
    def offered_pps(self) -> float:
        """The rate that the generator reached, in frames per second."""
        return self.offered_count / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def generator_limited(self) -> bool:
        """Whether the generator stayed more than 1 % below the requested rate."""
        if self.rate_pps is None:
            return False
        if self.requested_count is not None:  # it sends all of them, but perhaps later than planned
            return self.offered_count < self.requested_count or self.offered_pps < 0.99 * self.rate_pps
        return self.offered_count < 0.99 * self.rate_pps * self.duration_s - 1

    @property
    def columns(self) -> dict[str, Any]:
        return {
            "requested_pps": self.rate_pps,
            "offered_pps": self.offered_pps,
            "throughput_pps": self.received_count / self.elapsed_s if self.elapsed_s else 0.0,
            "offered_count": self.offered_count,
            "received_frames_count": self.received_count,
            "lost_count": self.lost_count,
            "loss_ratio": self.loss_ratio,
            "window_s": self.elapsed_s,
            "generator_cpu_s": self.generator_cpu_s,
            "sent_burst_frames": self.burst_frames,
        }


class Trials(Protocol):
    """A generator that is ready between the ends of a topology."""

    def trial(
        self, rate_pps: float | None, duration_s: float, *, latency: bool = False, count: int | None = None
    ) -> Trial:
        """Offer `rate_pps` frames per second in total (None: as many as possible) for `duration_s`.

        `count`: offer exactly so many frames, which take about `duration_s`; only with `exact_counts`. Raises Failed if
        the generator ends or does not answer.
        """


@dataclass(frozen=True)
class Arrived:
    """What has arrived: frames of the load at each receiver, and all frames that their interfaces have received."""

    load: list[int]
    received_count: int

    @property
    def count(self) -> int:
        """The frames of the load at all receivers."""
        return sum(self.load)


class Receiving(Protocol):
    """The receivers of a load."""

    @property
    def names(self) -> Sequence[str]:
        """Their names."""

    @property
    def settle_s(self) -> float:
        """A load counts as over when nothing has arrived for so long."""

    def learn(self) -> None:
        """Send a frame from each receiver, from which switches learn its port."""

    def read(self) -> Arrived:
        """Return what has arrived since the receivers exist."""


class TrialGenerator(Generator):
    """A generator that offers frames at a rate, counts them exactly, and runs any number of trials.

    `min_trial_s`: a shorter trial would not be exact; a search uses longer ones. `exact_counts`: whether a trial can
    have an exact number of frames. Without `guest_files` it cannot run in guests. `across_hosts`: whether its two ends
    can be on two hosts.
    `moves_interfaces`: whether it moves the ends' interfaces away, so that a change there is lost. `skips_ip`: whether
    its frames leave by a driver and are dropped where they arrive, so that they meet no queue and no rule at the ends.
    """

    min_trial_s: ClassVar[float] = 0.0
    exact_counts: ClassVar[bool] = False
    across_hosts: ClassVar[bool] = False
    moves_interfaces: ClassVar[bool] = False
    skips_ip: ClassVar[bool] = False

    def check(self, parameters: LoadParameters) -> None:
        """Raise BadInput: these generators run trials, not the flows of a comparison."""
        raise BadInput(f"generator={self.name} works with `labkit run throughput` and load tests only")

    @abc.abstractmethod
    def trials(self, pairs: Sequence[Pair], mix: Mix) -> AbstractContextManager[Trials]:
        """Start the senders and receivers of these pairs; all of them end with the block.

        Raises Unsupported, with one sentence, for ends that it cannot send from, and BadInput for frames that do not
        fit into the MTU.
        """

    def receiving(
        self, reversed_pairs: Sequence[Pair | RemotePair], mix: Mix
    ) -> AbstractContextManager[Receiving]:
        """Count the load at the receivers.

        `reversed_pairs`: the pairs of the load with their ends swapped, so that `client` is the receiver.
        Raises NotImplementedError for a generator without `across_hosts`, as does `trials_to`.
        """
        raise NotImplementedError(f"the generator {self.name} has both ends on one host")

    def trials_to(
        self, pairs: Sequence[Pair | RemotePair], mix: Mix, receiving: Receiving
    ) -> AbstractContextManager[Trials]:
        """Start the senders of these pairs, whose load is counted by `receiving`; all of them end with the block."""
        raise NotImplementedError(f"the generator {self.name} has both ends on one host")


def histogram(times_s: Iterable[float]) -> dict[str, int]:
    """Return how many latencies are in each bucket, by its upper edge in nanoseconds: 24 buckets for each octave."""
    counts = Counter[int]()
    for time_s, count in Counter(times_s).items():
        counts[math.ceil(24 * math.log2(max(1e9 * time_s, 100)))] += count
    return {str(round(2 ** (number / 24))): counts[number] for number in sorted(counts)}


def percentiles(times_s: Sequence[float], lost_count: int = 0) -> dict[str, float | None]:
    """Return the columns of the percentiles and the maximum of sorted latencies in seconds.

    Lost requests count as slower than all others. A percentile that is one of them is None, and so is the maximum.
    """
    count = len(times_s) + lost_count
    ranks = {name: min(count - 1, int(share * count)) for name, (share, _) in LATENCIES.items() if share < 1}
    return {
        **{f"latency_{name}_s": times_s[at] if at < len(times_s) else None for name, at in ranks.items()},
        "latency_max_s": None if lost_count else times_s[-1],
    }


def latency_columns(times_s: Sequence[float], lost_count: int = 0) -> dict[str, Any]:
    """Return the columns of `percentiles`, and the histogram."""
    return {**percentiles(times_s, lost_count), "latency_histogram": histogram(times_s)}


def request_columns(
    times_s: Sequence[float],
    rate: float,
    parameters: LoadParameters,
    client_cpu_s: float | None,
    clients_count: int,
    lost_count: int = 0,
    within_s: float = 0.0,
    overtaken_count: int = 0,
) -> dict[str, Any]:
    """Return the columns of a row from sorted round-trip times in seconds, and the rate of responses.

    The loop is closed, unless the parameters have a rate (`kept_rate`).

    `lost_count` requests got no response within `within_s` (0: as long as the generator waited). The responses of
    `overtaken_count` have no time: these requests, too, count as slower than all others. Raises Failed without any
    round trip.
    """
    if not times_s:
        raise Failed("no request got a response")
    busy = client_cpu_s is not None and client_cpu_s > SATURATED * parameters.duration_s * clients_count
    closed = parameters.rate_rps is None
    received_count = len(times_s) + overtaken_count
    within = f" within {within_s:.0f} s" if within_s else ""
    return {
        "loop": "closed" if closed else "open",
        "received_count": received_count,
        "sent_count": received_count + lost_count,
        "lost_count": lost_count,
        "transaction_rate": rate,
        **latency_columns(times_s, lost_count + overtaken_count),
        "client_cpu_s": client_cpu_s,
        "doubts": [
            *["generator-limited: each client used a whole CPU"] * (closed and busy),
            *(hidden_stalls(times_s, lost_count, within_s) if closed else []),
            *unanswered(lost_count, received_count + lost_count, within),
        ],
    }


def kept_rate(
    late_count: int, sent_count: int, offered_rps: float, rate_rps: int, who: str
) -> dict[str, Any]:
    """Return the doubts of a row about when its requests were sent, and why it is invalid if its rate was not kept."""
    doubts: list[str] = []
    if late_count > LATE_SHARE * sent_count:
        doubts.append(
            f"{who} sent {units.percent(late_count / sent_count)} of the requests more than"
            f" {units.si(1e-9 * LATE_NS, 's')} late, which the round-trip times include: its sender needs a CPU"
        )
    if offered_rps >= OFFERED * rate_rps:
        return {"doubts": doubts}
    reason = f"generator-limited: {offered_rps:.4g} of the requested {rate_rps} requests a second were sent"
    return {"doubts": doubts, "status": "invalid", "reason": reason}


def hidden_stalls(times_s: Sequence[float], lost_count: int = 0, within_s: float = 0.0) -> list[str]:
    """Return the doubt that a closed loop hides a stall, from its sorted round-trip times in seconds.

    A client that waits sends nothing, so a stall is one request of many (coordinated omission; G. Tene, 2013). Requests
    that come at any time have another 99th percentile: the time t for which waits beyond t are 1 % of all waiting. For
    each of `lost_count` requests the client waited `within_s`.
    """
    at_fixed_rate_s = waited_s = 0.0
    waits_s = [*times_s, *[within_s] * lost_count]
    allowed_s = (1 - LATENCIES["p99"][0]) * sum(waits_s)
    for count, time_s in enumerate(reversed(waits_s), 1):
        if time_s <= at_fixed_rate_s:
            break
        waited_s += time_s
        at_fixed_rate_s = (waited_s - allowed_s) / count
    p99_s = percentiles(times_s, lost_count)["latency_p99_s"]
    if p99_s is None or at_fixed_rate_s < HIDDEN * p99_s:
        return []
    return [
        "a closed loop hides a stall, because a client that waits sends nothing: of requests at a fixed rate, the 99th"
        f" percentile would be {units.si(at_fixed_rate_s, 's')}, not {units.si(p99_s, 's')}"
    ]


def unanswered(lost_count: int, sent_count: int, how: str = "") -> list[str]:
    """Return the doubt about requests that got no response."""
    if not lost_count:
        return []
    share = units.percent(lost_count / sent_count)
    return [f"{share} of the requests got no response{how}, and count as slower than all others"]


class LatencyGenerator(Generator):
    """A generator that measures round-trip times."""

    def ignored_parameters(self, protocol: str) -> Sequence[str]:
        chooses = self.capabilities.sockets and not protocol.startswith("udp")
        own = ("mss_bytes", "zerocopy", "affinity", *["congestion"] * (not chooses))
        return (*super().ignored_parameters(protocol), *own)

    @abc.abstractmethod
    def latency(
        self,
        pairs: Sequence[Pair | RemotePair],
        parameters: LoadParameters,
        counting: AbstractContextManager[object] = NOT_COUNTED,
    ) -> Any:
        """Measure the round-trip times of all pairs at once; return columns of a row, or what `columns` makes them of.

        `counting` is entered while all of them run. `doubts`, if there are any, is a list of sentences. Raises Failed
        if a pair gets no answer.
        """

    def columns(self, measured: Any, _parameters: LoadParameters) -> dict[str, Any]:
        """Return the columns of a row. Counters and observers have ended, so what takes long is done here."""
        result: dict[str, Any] = measured
        return result


class RequestGenerator(LatencyGenerator):
    """A generator of requests, whose servers are started for each measurement. Without `guest_files` it cannot run in
    guests."""

    def check(self, parameters: LoadParameters) -> None:
        super().check(parameters)
        if parameters.nodes == "two":
            raise BadInput(
                f"nodes=two: labkit starts the servers of {self.name} on the clients' host only; use nodes=one"
            )
        others = {*parameters.endpoint} - {"namespace", "container"}
        if others and not self.guest_files:
            way = "generator=sockets, or " if parameters.protocol in ("udp_rr", "tcp_rr") else ""
            raise BadInput(
                f"endpoint={others.pop()}: {self.name} does not run in guests; use {way}endpoint=namespace or container"
            )


def local_ends(pairs: Sequence[Pair | RemotePair]) -> tuple[list[Pair], list[Endpoint]]:
    """Return the pairs with both ends on this host, and each of their servers once: pairs may share one."""
    own = [pair for pair in pairs if isinstance(pair, Pair)]
    return own, list({pair.server.name: pair.server for pair in own}.values())


def until_listening(
    name: str,
    ends: Sequence[Endpoint],
    programs: Sequence[process.Running],
    within_s: float,
    transport: str = "tcp",
) -> None:
    """Wait until the servers at these ends listen on PORT. Raises Failed if one ends before, or is late."""
    deadline = time.monotonic() + within_s
    for end, program in zip(ends, programs, strict=True):
        if not program.ready(partial(end.kernel.listens, PORT + end.port_offset, transport), deadline):
            if program.poll():
                raise Failed(f"{name} ended before it listened: {program.ended().message()}")
            raise Failed(f"{name} at {end.name} did not listen within {within_s:.0f} s")


def finished(
    clients: Sequence[process.Running],
    within_s: float,
    message: Callable[[process.Ended], str] = process.Ended.message,
) -> list[process.Ended]:
    """Return how these programs ended. Those that are late are killed. Raises Failed with the message of the first that
    failed."""
    late = process.wait(clients, time.monotonic() + within_s)
    for client in late:
        client.kill()
    ended = [client.ended(client in late) for client in clients]
    for one in ended:
        if one.returncode:
            raise Failed(message(one))
    return ended


# How long flows that move stay on their CPUs: at least this, and this much for each flow, because binding takes time
# that the flows do not have.
TURN_S, FLOW_TURN_S = 0.1, 0.01
# For a program to start; on an emulated CPU that may be stopped for long.
START_S, EMULATED_START_S = 10.0, 60.0


def _kill(programs: list[process.Running], within_s: float) -> None:
    """Kill programs, wait until they have ended, and remove them from the list."""
    for program in programs:
        program.kill()
    process.wait(programs, time.monotonic() + within_s)
    programs.clear()


class Servers:
    """Servers that listen, one for each end. `programs` are their processes."""

    def __init__(
        self,
        generator: FlowGenerator,
        programs: list[process.Running],
        ends: Sequence[Endpoint],
        start_s: float,
    ) -> None:
        # The caller's list has each server from its start, so that the caller can end it.
        self.programs = programs
        self._generator, self._ends, self._start_s = generator, ends, start_s
        self.start()

    def start(self) -> None:
        """Start the servers, and wait until they listen. Those that still run, for example those that wait for a lost
        datagram, are killed before."""
        _kill(self.programs, self._generator.last_words_s)
        for end in self._ends:
            self.programs.append(end.start(self._generator.server_argv(end.address, PORT + end.port_offset)))
        until_listening(f"the {self._generator.name} server", self._ends, self.programs, self._start_s)

    def finish(self, deadline: float) -> list[Page]:
        """Wait until the servers end, and return the report of each.

        Kills those that still run at the deadline (time.monotonic()).
        """
        for program in process.wait(self.programs, deadline):
            program.go()
            program.kill()
        return [self._generator.page(program.ended().stdout) for program in self.programs]


class Flows:
    """The flows of one topology: started, held, continued and ended together.

    `clients` are their processes on this host. `servers` is None where those are on another host.
    """

    def __init__(
        self,
        generator: FlowGenerator,
        pairs: Sequence[Pair | RemotePair],
        servers: Servers | None,
        parameters: LoadParameters,
        *,
        endless: bool = False,
        start_s: float = START_S,
    ) -> None:
        self._generator, self._pairs, self._parameters = generator, pairs, parameters
        self.servers, self._endless, self._start_s = servers, endless, start_s
        self.clients: list[process.Running] = []
        self._placements: Iterator[Sequence[tuple[int, int]]] | None = None

    def stage(self) -> None:
        """Prepare all clients for `go`: each is stopped as soon as it exists, so that none starts before the others.

        A single client starts at once, because to hold it takes one program more: 0.1 s on an emulated CPU.
        """
        held = len(self._pairs) > 1
        for pair in self._pairs:
            address, port = pair.server_address, PORT + pair.server.port_offset
            argv = self._generator.client_argv(self._parameters, address, port, endless=self._endless)
            self.clients.append(pair.client.start(argv, held=held))
        deadline = time.monotonic() + self._start_s
        for pair, client in zip(self._pairs, self.clients, strict=True) if held else ():
            # `finish` reports why a client has already ended.
            if not client.held(deadline) and not client.poll():
                what = f"the {self._generator.name} client at {pair.client.name}"
                raise Failed(f"{what} was not ready within {self._start_s:.0f} s")

    def again(self) -> bool:
        """Start all flows of UDP anew, and return True. Return False if they cannot be, or need not be."""
        if (
            self._parameters.protocol != "udp"
            or self.servers is None
            or not self._generator.udp_start_can_be_lost
        ):
            return False
        _kill(self.clients, self._generator.last_words_s)
        self.servers.start()
        self.stage()
        self.go()
        return True

    def go(self) -> None:
        """Let all senders send."""
        for program in (*self._sending_servers, *self.clients):
            program.go()

    def hold(self) -> None:
        """Pause all senders until the next `go`. Whoever only receives still takes what is on its way."""
        clients = [] if self._parameters.direction == "reverse" else self.clients
        for program in (*self._sending_servers, *clients):
            program.hold()

    @property
    def _sending_servers(self) -> list[process.Running]:
        if self.servers is None or self._parameters.direction == "forward":
            return []
        return self.servers.programs

    def bind(self, cpus: Sequence[tuple[int, int]]) -> None:
        """Bind the client and the server of each flow to these CPUs. Raises Failed for a program that has ended."""
        assert self.servers is not None
        for client, server, (near, far) in zip(self.clients, self.servers.programs, cpus, strict=True):
            client.bind(near)
            server.bind(far)

    def move_ends(self, placements: Iterator[Sequence[tuple[int, int]]]) -> None:
        """From now on, bind the flows to the next of these CPUs at every turn of `wait` (TURN_S, FLOW_TURN_S)."""
        self._placements = placements

    def wait(self, until: float) -> bool:
        """Sleep until `until` (time.monotonic()) or until all clients end. Return whether some still run."""
        turn_s = max(TURN_S, FLOW_TURN_S * len(self._pairs))
        while self._placements is not None and until - time.monotonic() > turn_s:
            with suppress(Failed):  # a program that has ended needs no CPU
                self.bind(next(self._placements))
            if not process.wait(self.clients, time.monotonic() + turn_s):
                return False
        return bool(process.wait(self.clients, until))

    def interrupt(self) -> None:
        """End the clients early; they then write what they counted."""
        for client in self.clients:
            client.signal(signal.SIGINT)
        self.go()

    def early_end(self) -> str | None:
        """Return the error message of a flow that ended too early, or None."""
        servers = [None] * len(self.clients) if self.servers is None else self.servers.programs
        for client, server in zip(self.clients, servers, strict=False):  # no client is there before `stage`
            if server is not None and server.poll():
                ended = server.ended()
                error = self._generator.page(ended.stdout).get("error")
                return f"{self._generator.name} server: {error}" if error else ended.message()
            if client.poll():
                ended = client.ended()
                problem = self._problem(ended, self._generator.page(ended.stdout), {})
                return problem or f"{self._generator.name} ended before its time"
        return None

    def _problem(self, ended: process.Ended, near: Page, far: Page) -> str | None:
        """Return the problem of a flow whose client has ended, from the reports of its two ends, or None."""
        name = self._generator.name
        if "error" in near:
            return f"{name}: {near['error']}"
        if "unreadable" in near:
            if ended.returncode:
                return ended.message()
            return f"{name} wrote invalid JSON: {' '.join(near['unreadable'].split())[:120]!r}"
        return f"{name} server: {far['error']}" if "error" in far else None

    def finish(
        self, deadline: float, served: Callable[[], list[Page]] | None = None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Wait until the flows end. Return the reports of both ends of each flow, and the first problem or None.

        `served` returns the reports of servers on another host. Clients that still run at the deadline are interrupted
        (they then write what they have), and killed a second later.
        """
        generator, late = self._generator, process.wait(self.clients, deadline)
        for program in late:
            program.signal(signal.SIGINT)
        words = f"{generator.name} did not end {generator.grace_s:.0f} s after its time and was ended"
        for program in process.wait(self.clients, time.monotonic() + generator.last_words_s):
            program.go()
            program.kill()
        far = (served or self.server_pages)()
        ended = [client.ended() for client in self.clients]
        near = [generator.page(one.stdout) for one in ended]
        problems: Iterable[str | None] = [words] if late else map(self._problem, ended, near, far)
        result = [{"client": one, "server": other} for one, other in zip(near, far, strict=True)]
        return result, next(filter(None, problems), None)

    def server_pages(self) -> list[Page]:
        """Return the reports of the servers that are on this host; kill those that are late."""
        if self.servers is None:
            return []
        return self.servers.finish(time.monotonic() + self._generator.last_words_s)


class FlowGenerator(Generator):
    """A generator whose clients carry data to servers: a program for each end of each pair."""

    reported_bps: ClassVar[str]  # the column with the throughput that the generator itself reports
    grace_s: ClassVar[float] = 5.0  # how long a run may exceed its planned time before it is killed
    last_words_s: ClassVar[float] = 1.0  # how long the other end may take to report after one end has ended
    udp_start_can_be_lost: ClassVar[bool] = False  # one datagram begins a flow of UDP, and is not sent again

    @abc.abstractmethod
    def client_argv(
        self, parameters: LoadParameters, address: str, port: int, *, endless: bool = False
    ) -> list[str]:
        """Return the client's command line. `endless`: it runs until it is interrupted."""

    @abc.abstractmethod
    def server_argv(self, address: str, port: int) -> list[str]:
        """Return the command line of a server that ends after one client."""

    @abc.abstractmethod
    def page(self, text: str) -> Page:
        """Return what one end wrote: with `error`, why it failed, and with `unreadable`, text of another form."""

    @abc.abstractmethod
    def metrics(self, reports: Sequence[Page], protocol: str) -> dict[str, Any]:
        """Compute the columns of a row from the reports of both ends of each flow.

        Raises Failed if a report lacks a value that a row needs.
        """

    @abc.abstractmethod
    def block_bytes(self, parameters: LoadParameters) -> int:
        """Return how many bytes a sender writes at once; this much of a rate can be missing at the end."""

    @contextmanager
    def flows(
        self,
        pairs: Sequence[Pair | RemotePair],
        parameters: LoadParameters,
        *,
        emulated: bool = False,
        endless: bool = False,
    ) -> Iterator[Flows]:
        """Start flows whose servers already listen, here or on another host; all processes here end with the block.

        `emulated`: programs need longer to start, because the CPUs are emulated. `endless`: the flows run until they
        are interrupted, as slices need.
        """
        start_s = EMULATED_START_S if emulated else START_S
        own = [pair.server for pair in pairs if isinstance(pair, Pair)]
        with self.servers(own, emulated=emulated) as ready:
            made = Flows(self, pairs, ready if own else None, parameters, endless=endless, start_s=start_s)
            with process.all_ended(made.clients):
                yield made

    @contextmanager
    def servers(self, ends: Sequence[Endpoint], *, emulated: bool = False) -> Iterator[Servers]:
        """Start servers that listen at these ends; all of them end with the block."""
        with process.all_ended([]) as programs:
            yield Servers(self, programs, ends, EMULATED_START_S if emulated else START_S)
