"""What sends through a device from both of its sides: labkit's packet generator, or a TRex server.

A load test (`experiment`) asks for one step after the other, and does not know which of them it is.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from labkit.measure.endpoints.namespace import directed
from labkit.measure.experiments.built_arm import LocalArm
from labkit.measure.experiments.throughput_search.conditions import ConditionsMonitor
from labkit.measure.traffic import rates
from labkit.measure.traffic.base import Trial
from labkit.measure.traffic.packet_generator import PACKETS, PacketTrials
from labkit.measure.traffic.trex.readings import Direction, ring_drops
from labkit.measure.traffic.trex.streams import PROBE_FRAME_BYTES, PROBES_PPS
from labkit.system.netlink.ethtool import line_bps
from studies.load_test.devices import TrexPorts
from studies.load_test.parameters import MIXES, LoadTestParameters

REACHED = 0.99  # of the requested frames: less, and the generator is the limit
SUMMED = (
    "requested_pps", "offered_pps", "throughput_pps", "throughput_bps", "offered_count", "sent_count",
    "received_frames_count", "ring_drops_count", "refused_count", "lost_count", "generator_cpu_s",
)  # fmt: skip


@dataclass(frozen=True)
class Taken:
    """A step: the columns of each direction, why it says nothing about the device, and the columns of both together."""

    ways: list[dict[str, Any]]
    problem: str | None
    columns: dict[str, Any] = field(default_factory=dict)


class Sides(Protocol):
    """A generator at both sides of a device.

    `frame_bytes`: the mean length of the load's frames. `line_bps`: the rate that its ports report, if any.
    `on_kernel`: whether these are kernel interfaces. `senders_count`: the ports that send. `tries`: how often a step is
    measured at most, if the machine disturbs it each time.
    """

    frame_bytes: float
    line_bps: float | None
    on_kernel: bool
    senders_count: int
    tries: int

    def take(self, rate_pps: float, duration_s: float) -> Taken:
        """Send `rate_pps` frames per second from each port for `duration_s`, beside the latency probes; then wait until
        everything has arrived."""


def totals(ways: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the columns of all directions together."""
    whole: dict[str, Any] = {name: sum(one[name] for one in ways) for name in SUMMED if name in ways[0]}
    loss = whole["lost_count"] / whole["offered_count"] if whole["offered_count"] else 0.0
    return whole | {"loss_ratio": loss, "window_s": max(one["window_s"] for one in ways)}


class PacketSides:
    """labkit's packet generator at both ends of a topology's first pair."""

    on_kernel, tries = True, 5

    def __init__(
        self, arm: LocalArm, ways: Sequence[tuple[str, PacketTrials]], parameters: LoadTestParameters
    ) -> None:
        self._ways, self._mix = ways, MIXES[parameters.profile]
        self._probes_pps = round(PROBES_PPS) if parameters.latency else 0
        self.frame_bytes = rates.mean_bytes(self._mix.frame_bytes)
        self.senders_count = len(ways)
        ends = [end for pair in arm.pairs[:1] for end in (pair.client, pair.server)]
        self.line_bps = min(
            filter(None, (line_bps(end.namespace.fd, end.interface) for end in ends)), default=None
        )
        pids = frozenset(pid for _, one in ways for pid in one.pids)
        self._monitor = ConditionsMonitor(arm.namespaces, pids)
        self.scheduling = self._monitor.give_priority(arm.switch)

    def take(self, rate_pps: float, duration_s: float) -> Taken:
        """Send in all directions at once (`Sides.take`)."""
        for _, one in self._ways:
            one.prepare(latency=bool(self._probes_pps))
        self._monitor.begin()
        begun = [one.begun(rate_pps, duration_s, self._probes_pps) for _, one in self._ways]
        trials = [ended() for ended in begun]
        conditions = self._monitor.end(max(trials, key=lambda one: one.slip_s))
        problem = next(filter(None, map(conditions.problem, trials)), None)
        ways = [self._columns(name, trial) for (name, _), trial in zip(self._ways, trials, strict=True)]
        return Taken(ways, problem, conditions.row())

    def _columns(self, name: str, trial: Trial) -> dict[str, Any]:
        probes = 0 if trial.latency is None else trial.latency.sent_count
        load_bytes = self.frame_bytes * (trial.sent_count - probes) + PROBE_FRAME_BYTES * probes
        columns = trial.columns
        bps = 8 * columns["throughput_pps"] * load_bytes / trial.sent_count if trial.sent_count else 0.0
        return {
            "direction": name,
            **columns,
            "throughput_bps": bps,
            "sent_count": trial.sent_count,
            "hops": dict(trial.hops),
            **({} if trial.latency is None else trial.latency.columns),
            "latency_buckets": None if trial.latency is None else buckets(trial.latency.histogram),
        }

    def close(self) -> None:
        """Close the counters."""
        self._monitor.close()


@contextmanager
def packets(arm: LocalArm, parameters: LoadTestParameters) -> Iterator[PacketSides]:
    """Start the packet generator at both ends of the first pair, or at its client alone.

    Raises Unsupported for ends that share a namespace, where nobody can tell the directions apart.
    """
    ways = directed(arm.topology.pairs[:1], "both" if parameters.directions == "both" else "forward")
    with ExitStack() as stack:
        mix = MIXES[parameters.profile]
        made = [
            (f"{one.client.name}→{one.server.name}", stack.enter_context(PACKETS.trials([one], mix, number)))
            for number, one in enumerate(ways)
        ]
        yield stack.enter_context(closing(PacketSides(arm, made, parameters)))


def buckets(histogram: str | None) -> dict[str, int]:
    """Return the counts of an HDR histogram of nanoseconds in buckets like TRex's: by their lower edge of n·10^k µs,
    and below 10 µs by 0."""
    from hdrh.histogram import HdrHistogram  # takes 10 ms

    counts: Counter[int] = Counter()
    for one in HdrHistogram.decode(histogram).get_recorded_iterator() if histogram else ():
        microseconds = one.value_iterated_to // 1000
        power = 10 ** (len(str(microseconds)) - 1)
        counts[0 if power < 10 else microseconds // power * power] += one.count_at_value_iterated_to
    return {str(edge): counts[edge] for edge in sorted(counts)}


class TrexSides:
    """A TRex server with a stateless profile."""

    tries = 1

    def __init__(self, ports: TrexPorts, frame_bytes: float, probes_pps: float) -> None:
        self._ports, self.frame_bytes, self._probes_pps = ports, frame_bytes, probes_pps
        self.line_bps: float | None = min(ports.about.line_bps)
        self.on_kernel = ports.about.on_kernel
        self.senders_count = len(ports.client.senders)

    def take(self, rate_pps: float, duration_s: float) -> Taken:
        """Send from all ports that send (`Sides.take`)."""
        (directions, _raw), cpu_share = self._ports.with_cpu_share(
            lambda: self._ports.client.trial(rate_pps, duration_s)
        )
        each_pps = rate_pps + self._probes_pps
        ways = [{"requested_pps": each_pps, **trex_columns(one)} for one in directions]
        problem = problem_of(directions, each_pps * len(directions), duration_s)
        return Taken(ways, problem, {"trex_cpu_share": cpu_share})


def drops_of(directions: Sequence[Direction]) -> str | None:
    """Return a sentence about frames that TRex itself dropped or could not send, or None."""
    if drops := ring_drops(directions):
        return drops
    if refused := sum(one.refused_count for one in directions):
        return f"TRex's interfaces refused {refused} frames (oerrors): are they longer than the MTU allows?"
    return None


def problem_of(directions: Sequence[Direction], requested_pps: float, duration_s: float) -> str | None:
    """Return why a step says nothing about the device, or None."""
    if problem := drops_of(directions):
        return problem
    sent = sum(one.sent_count for one in directions)
    if sent < REACHED * requested_pps * duration_s - len(directions):
        reached = sum(one.sent_pps for one in directions)
        return f"generator-limited: TRex sent {reached:.0f} of {requested_pps:.0f} pps"
    return None


def trex_columns(one: Direction) -> dict[str, Any]:
    """Return the columns of one direction. Probes whose frames arrived after TRex had stopped are not lost."""
    columns: dict[str, Any] = {
        "direction": one.name,
        "offered_pps": one.sent_pps,
        "throughput_pps": one.received_pps,
        "throughput_bps": one.received_bps,
        "offered_count": one.sent_count,
        "sent_count": one.sent_count,
        "received_frames_count": one.received_count,
        "ring_drops_count": one.ring_drops_count,
        "refused_count": one.refused_count,
        "lost_count": one.lost_count,
        "loss_ratio": one.lost_count / one.sent_count if one.sent_count else 0.0,
        "window_s": one.window_s,
    }
    if (latency := one.latency) is None:
        return columns
    return columns | {
        **latency.columns,
        "latency_buckets": {str(edge): count for edge, count in sorted(latency.buckets.items())},
        "probes_lost_count": min(latency.lost_count, one.lost_count + one.ring_drops_count),
    }
