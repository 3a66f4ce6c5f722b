"""Time round trips before, during and after a load between the same ends.

Probes run at a fixed rate all the time: echo requests, requests of UDP, or both. The load is iperf3's: TCP as fast as
the path allows, or UDP at a rate, from clients to servers, back, or both ways at once. One row has the round-trip times
of one probe in all three phases.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import msgspec

from labkit.common import run_folder, units
from labkit.common.errors import BadInput, Failed
from labkit.common.limits import OneOf, Within
from labkit.common.schema import LATENCIES
from labkit.measure import topologies
from labkit.measure.endpoints import Endpoint, Pair, RemotePair
from labkit.measure.experiments import datapaths, measuring_loop, server_counters
from labkit.measure.experiments import datapaths_parameters as usual
from labkit.measure.experiments.built_arm import BuiltArm
from labkit.measure.experiments.changes import Change
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.measurement_point import Load, Record
from labkit.measure.experiments.measuring_loop import Plan
from labkit.measure.experiments.profiled_runs import Profile, profiles
from labkit.measure.experiments.rows import Measured
from labkit.measure.experiments.whole_runs import Counting
from labkit.measure.observers.counters.receive_counters import receivers
from labkit.measure.topologies.registry import ON_ONE_PORT
from labkit.measure.traffic import sockets
from labkit.measure.traffic.base import LatencyGenerator, latency_columns, percentiles
from labkit.measure.traffic.iperf3 import IPERF3
from labkit.measure.traffic.ping import PING
from labkit.system import machine
from studies.latency_under_load.course import COLUMNS, PHASES, Course, Interval
from studies.probes import LENGTH_BYTES, LINGER_S, MOST_RPS, Probe, Probing, probing

START_S = 5.0  # until every flow carries data
PROBE_PORTS = 1000  # from the load's port to that of probes, beyond those of arms that share an end
PROBE_BYTES = 128  # of a frame with a probe, or with its answer
MANY_LATE = 0.01  # of the probes: their times then leave out what the stalled sender did not see
SETTLE_S = 0.3  # for the probes to begin
OFFERED = 0.98  # below this share of what was requested, the sender was the limit
# Of iperf3's report: what does not describe the probes.
REPORTED = (
    "forward_bps", "reverse_bps", "retransmits_count", "rtt_s", "sender_congestion", "client_cpu_s",
    "server_cpu_s",
)  # fmt: skip


def _shaped(*qdiscs: str) -> str:
    """Return these queueing disciplines at both ports of a bridge, so that both directions of a link are shaped."""
    return " and ".join(f"qdisc {one} at between:port{port}" for port in (0, 1) for one in qdiscs)


RATE = "rate 20mbit burst 10kb"
_LINK = f"handle 1: tbf {RATE} limit 1mb"
# A bottleneck of 20 Mbit/s with another queue in each arm.
BLOAT = (
    f"pfifo-1000: {_shaped(_LINK, 'parent 1: pfifo limit 1000')}",
    f"tbf: {_shaped(f'tbf {RATE} latency 50ms')}",
    f"fq_codel: {_shaped(_LINK, 'parent 1: fq_codel')}",
    f"cake: {_shaped('cake bandwidth 20mbit')}",
)
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "rrul": {"streams": 4, "direction": "both"},
    "bloat": {"streams": 4, "topology": "veth_bridge", "change": BLOAT, "baseline": "pfifo-1000"},
}


class LatencyUnderLoad(DatapathParameters, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths` for iperf3's load, and the probe's."""

    ABSENT: ClassVar[tuple[str, ...]] = (
        *usual.REPETITION, *usual.TWO_HOSTS, "endpoint", "guest", "generator", "length_bytes", "response_bytes",
        "outstanding", "placement",
    )  # fmt: skip

    preset: Annotated[
        str | None,
        "values of other parameters, where these are none: rrul (four TCP streams each way) or bloat (one way over a"
        " link of 20 Mbit/s: tbf with a pfifo of 1,000 packets, alone, and with fq_codel, and cake)",
        OneOf(PRESETS),
    ] = None
    protocol: Annotated[
        str,
        "the probe: ping (echo requests, which the kernel answers), udp_rr (requests that a program answers, timed from"
        " when each was due), or both, each with rows of its own",
        OneOf(("ping", "udp_rr", "both")),
    ] = "ping"
    rate_rps: Annotated[int, "probes per second of each pair", Within(1, MOST_RPS)] = 100
    load: Annotated[str, "what loads the path: tcp, or udp at rate_bps", OneOf(("tcp", "udp"))] = "tcp"
    idle_s: Annotated[int, "how long probes run before the load, and after it", Within(1, 600)] = 2
    interval_s: Annotated[
        float, "the time between two readings of the throughput over time", Within(0.1, 1)
    ] = 0.1
    baseline: Annotated[
        str | None,
        "the change whose arm is the baseline; the unchanged topology is then not measured; none: that topology",
    ] = None
    rounds: int = 5
    placement: str = "scheduler"  # the load's flows are not moved
    omit_s: Annotated[int, "the beginning of the load, in which round-trip times do not count"] = 2

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the parameters from names and values, with those of a preset where none is given."""
        name = given.get("preset")
        chosen = PRESETS.get(name, {}) if isinstance(name, str) else {}
        settable = {one for preset in PRESETS.values() for one in preset}
        own = {one: value for one, value in given.items() if one not in settable or not _is_none(value)}
        return super().of({**chosen, **own})

    def check(self) -> None:
        """Raise BadInput, with one sentence, for parameters that cannot be measured."""
        super().check()
        IPERF3.check(self.load_parameters)
        if self.preset == "bloat" and self.pairs != (1,):
            raise BadInput("preset=bloat shapes the link of one pair: use pairs=1")
        if self.load == "udp" and self.rate_bps is None:
            raise BadInput(
                "load=udp needs rate_bps: without a rate UDP fills every queue, and its sender a CPU"
            )
        published = [one for one in self.topology if topologies.kind_of(one).generators == ON_ONE_PORT]
        if self.has_own_port and published:
            raise BadInput(f"{published[0]} publishes one port, which the load needs: use load=tcp")
        if self.observe and self.protocol == "udp_rr":
            raise BadInput(
                "observe: the CPU time of the load would count as that of requests: use protocol=ping, or both"
            )
        if self.baseline not in (None, *(one.name for one in self.change)):
            raise BadInput(f"baseline={self.baseline}: name one of the changes, or none")

    def _check_load(self) -> None:
        """Check nothing: the probe's rate is not that of requests."""

    def check_programs(self) -> None:
        """Raise Unsupported where a program that the experiment cannot do without is missing or too old."""
        super().check_programs()
        IPERF3.version()

    def with_change(self, change: Change | None) -> Self:
        """Return the parameters of an arm with this change, which may set some of them. Raises BadInput."""
        if change is None or not change.parameters:
            return self
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name not in self.ABSENT}
        return type(self).of(given | {"preset": None, "baseline": None, "change": ()} | change.parameters)

    @property
    def load_generator(self) -> LatencyGenerator:
        """What makes the probes, as rows name it."""
        return sockets.REQUESTS if self.protocol == "udp_rr" else PING

    @property
    def baseline_change(self) -> str | None:
        return self.baseline

    @property
    def probes(self) -> tuple[Self, ...]:
        """The parameters of each probe alone."""
        names = ("ping", "udp_rr") if self.protocol == "both" else (self.protocol,)
        return tuple(msgspec.structs.replace(self, protocol=one) for one in names)

    @property
    def run_s(self) -> float:
        """About how long the load and the time around it take."""
        return super().run_s + 2 * self.idle_s + SETTLE_S + LINGER_S

    @property
    def has_own_port(self) -> bool:
        """Whether requests go to another port of UDP than that of the load."""
        return self.protocol != "ping" and self.load == "udp"

    @property
    def load_parameters(self) -> DatapathParameters:
        """The parameters of the load."""
        return DatapathParameters.like(self, protocol=self.load, rate_rps=None, change=())

    @property
    def probe_parameters(self) -> DatapathParameters:
        """The parameters of the servers that answer probes of UDP."""
        return DatapathParameters.like(
            self, length_bytes=LENGTH_BYTES, streams=1, congestion=None, socket=None
        )


def _is_none(value: Any) -> bool:
    return value in (None, (), [], "") or (isinstance(value, str) and value.lower() in ("none", "null"))


@dataclass(frozen=True)
class Beside(Load):
    """A load with probes beside it."""

    parameters: LatencyUnderLoad

    def rows(self, measured: Measured) -> list[Measured]:
        """Return what is not yet of one probe as a row of each."""
        arm, metrics = measured
        if "protocol" in metrics:
            return [measured]
        return [
            (arm, metrics | {"protocol": one.protocol, "generator": one.load_generator.name})
            for one in self.parameters.probes
        ]

    def trial(self, built_arm: BuiltArm, artefacts: Path, record: Record) -> None:
        """Measure one arm and record its rows. Raises LabkitError for what fails."""
        for one in measure(self.parameters, built_arm, artefacts / built_arm.arm.stem):
            record(one)


@dataclass(frozen=True)
class LoadedProfile(Profile):
    """A profile of the load, with the round-trip times of one probe beside it."""

    parameters: LatencyUnderLoad

    def run(self, built_arm: BuiltArm, artefacts: Path, counting: Counting | None, suffix: str) -> Measured:
        [row] = measure(self.parameters, built_arm, artefacts / f"{built_arm.arm.stem}{suffix}", counting)
        return row


def plan(parameters: LatencyUnderLoad, seed: int) -> Plan:
    """Return the plan of the experiment; `seed` decides the random orders."""
    measured, one = datapaths.points(parameters, seed, [Beside(parameters)]), parameters.probes[0]
    points = [*measured, *profiles(one, lambda _name: [("", one)], LoadedProfile)]
    columns = {"load": parameters.load} | dict.fromkeys(one.name for one in COLUMNS)
    finished = f"all {units.counted(parameters.rounds, 'round')} were measured"
    return Plan(parameters, points, finished, parameters.probes, columns=columns)


class Recording:
    """The bytes that the interfaces of all servers and of all clients have received, at the end of each interval."""

    def __init__(self, pairs: Sequence[Pair | RemotePair], interval_s: float) -> None:
        servers = [pair.server for pair in pairs if isinstance(pair.server, Endpoint)]
        self._ends = servers, [pair.client for pair in pairs]
        self._interval_s = interval_s
        self._readings: list[tuple[float, list[int]]] = []

    def until(self, end_s: float, runs: Callable[[float], bool] | None = None) -> None:
        """Read until `end_s` (time.monotonic()), or until `runs`, which sleeps until a time, returns False."""
        while (now := time.monotonic()) < end_s:
            received = [sum(one.counters().received_bytes for one in each) for each in self._ends]
            self._readings.append((now, received))
            following = min(end_s, now + self._interval_s)
            if runs is None:
                time.sleep(max(0.0, following - time.monotonic()))
            elif not runs(following):
                return

    def course(
        self, begun_s: float, probes: Sequence[Probe], phases: Mapping[str, tuple[float, float]]
    ) -> Course:
        """Return the course of a load that began at `begun_s` (time.monotonic(), as all times here)."""
        return Course(
            list(self._intervals(begun_s)),
            [(one.sent_s - begun_s, one.rtt_s) for one in probes],
            {name: (begin - begun_s, end - begun_s) for name, (begin, end) in phases.items()},
        )

    def _intervals(self, begun_s: float) -> Iterator[Interval]:
        for (before_s, before), (now_s, now) in itertools.pairwise(self._readings):
            if (passed_s := now_s - before_s) >= self._interval_s / 2:  # phases end with a shorter one
                forward, reverse = (8 * (new - old) / passed_s for old, new in zip(before, now, strict=True))
                yield Interval(now_s - begun_s, forward, reverse)


class CountsWithProbes:
    """The first counts, and what each probe has added since: probes alone do not begin a flow."""

    def __init__(self, counts: list[int], *probes: tuple[Probing, int]) -> None:
        self._counts = counts
        self._probes = [(one, of_probe, one.sent_counts) for one, of_probe in probes]

    def __iter__(self) -> Iterator[int]:
        added = [
            [of_probe * (now - then) for now, then in zip(one.sent_counts, before, strict=True)]
            for one, of_probe, before in self._probes
        ]
        # With direction=both, clients and servers receive.
        return map(sum, zip(self._counts, *map(itertools.cycle, added), strict=False))


def _at_another_port(pair: Pair | RemotePair) -> Pair | RemotePair:
    offset = pair.server.port_offset + PROBE_PORTS
    assert isinstance(pair, Pair)
    return dataclasses.replace(pair, server=dataclasses.replace(pair.server, port_offset=offset))


def measure(
    parameters: LatencyUnderLoad, built_arm: BuiltArm, stem: Path, counting: Counting | None = None
) -> list[Measured]:
    """Measure round trips before, during and after the load of one arm; return a row of each probe.

    The path of its course begins with `stem`. `counting` is open under load. Raises Failed if load or probes fail.
    """
    parameters = parameters.with_change(built_arm.arm.change)
    load, pairs, phases = parameters.load_parameters, built_arm.pairs, {}
    recording, each = Recording(pairs, parameters.interval_s), list[tuple[LatencyUnderLoad, bool, Probing]]()
    probed = list(map(_at_another_port, pairs)) if parameters.has_own_port else pairs
    with built_arm.serving(load, IPERF3) as (flows, there), ExitStack() as stack:
        for one in parameters.probes:
            if udp := one.protocol == "udp_rr":
                stack.enter_context(sockets.serving(probed, one.probe_parameters))
            each.append((one, udp, stack.enter_context(probing(probed, one.rate_rps, udp))))
        idle_s = time.monotonic() + SETTLE_S
        recording.until(idle_s + parameters.idle_s)
        phases["idle"] = idle_s, time.monotonic()
        own = [pair for pair in pairs if isinstance(pair, Pair)]
        counters = receivers(own, load.protocol, load.datagram_bytes, load.direction)
        # An interface counts the probes, too, and the kernel those of UDP, both ways where it has both ends.
        ways = 1 + (pairs[0].client.kernel is getattr(pairs[0].server, "kernel", None))
        of_probes = [
            (probes, ways * (PROBE_BYTES if load.protocol == "tcp" else int(udp))) for _, udp, probes in each
        ]
        before = CountsWithProbes(counters.per_server(), *of_probes)
        flows.stage()
        flows.go()
        if not there.carrying(START_S) or not server_counters.carrying(
            counters, before, START_S, lambda: bool(flows.early_end())
        ):
            raise Failed(flows.early_end() or f"not every flow carried data within {START_S:.0f} s")
        begun_s = time.monotonic()
        recording.until(begun_s + load.omit_s, flows.wait)
        with (counting or nullcontext)():
            metered, times, loaded_s = built_arm.metered(), machine.cpu_times(), time.monotonic()
            recording.until(begun_s + load.omit_s + load.duration_s, flows.wait)
            used, joined = machine.cpu_times() - times, metered()
            phases["loaded"] = loaded_s, time.monotonic()
        recording.until(time.monotonic() + IPERF3.grace_s, flows.wait)
        reports, problem = flows.finish(time.monotonic(), there.pages)
        if problem:
            raise Failed(problem)
        phases["after"] = time.monotonic(), time.monotonic() + parameters.idle_s
        recording.until(phases["after"][1])
    window_s = phases["loaded"][1] - phases["loaded"][0]
    reported, result = IPERF3.metrics(reports, load.protocol), list[Measured]()
    for one, udp, probes in each:
        artefact = Path(f"{stem}-{one.protocol}-course.json.gz")
        run_folder.write_artefact(artefact, recording.course(begun_s, probes.probes, phases))
        row = {
            "protocol": one.protocol, "generator": one.load_generator.name, "method": "whole", "window_s": window_s,
            "artefact": str(artefact.relative_to(artefact.parents[2])),
            **{name: reported[name] for name in REPORTED if name in reported},
            **used.columns, **joined, **round_trips(probes, phases),
        }  # fmt: skip
        doubts = [*machine.stolen(used.steal_s, window_s), *_doubts(one, row, reported, len(pairs))]
        late = late_probes(probes, phases, udp)
        result.append(built_arm.measured(row, [*doubts, *late]))
    return result


def late_probes(probes: Probing, phases: Mapping[str, tuple[float, float]], udp: bool) -> Iterator[str]:
    """Yield a doubt for each phase in which the sender was late: the increase compares two of them."""
    for name, window in phases.items():
        if (late := probes.late_share(*window)) > MANY_LATE:
            yield (
                f"{units.percent(late)} of the probes {PHASES[name]} were sent late: their sender waited for a CPU"
                + ", which the round-trip times include" * udp
            )


def round_trips(probes: Probing, phases: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """Return the columns of the probes: of the load, before it, after it, and the increase.

    Raises Failed if none got an answer before the load. Under it all may be lost: they are then slower than all others.
    """
    seen = {name: probes.within(*window) for name, window in phases.items()}
    if not seen["idle"][0]:
        raise Failed(f"none of {seen['idle'][1]} probes got an answer before the load")
    columns = {name: percentiles(*of) for name, of in seen.items()}
    times, lost = seen["loaded"]
    row: dict[str, Any] = {**latency_columns(times, lost), "loop": "open"}
    for name in LATENCIES:
        of = {phase: columns[phase][f"latency_{name}_s"] for phase in columns}
        before, during = of["idle"], of["loaded"]
        row[f"idle_{name}_s"], row[f"after_{name}_s"] = before, of["after"]
        row[f"increase_{name}_s"] = None if before is None or during is None else during - before
    return row | {"received_count": len(times), "lost_count": lost, "sent_count": len(times) + lost}


def _doubts(
    parameters: LatencyUnderLoad, row: Mapping[str, Any], reported: Mapping[str, Any], pairs: int
) -> Iterator[str]:
    """Yield what weakens a row: too few probes, and a load that was not as requested."""
    planned = parameters.rate_rps * row["window_s"] * pairs
    if row["sent_count"] < OFFERED * planned - pairs:
        yield f"{row['sent_count']} of {planned:.0f} probes were sent during the load: the sender waited for a CPU"
    if row["lost_count"]:
        share = units.percent(row["lost_count"] / row["sent_count"])
        yield f"{share} of the probes during the load got no answer, and count as slower than all others"
    ways = 2 if parameters.direction == "both" else 1
    offered = (parameters.rate_bps or 0) * parameters.streams * pairs * ways
    if reported["sent_bps"] < OFFERED * offered:
        yield f"the load sent {units.si(reported['sent_bps'], 'bit/s')} of the requested {units.si(offered, 'bit/s')}"
    if reported.get("lost_count"):
        yield f"{units.percent(reported['lost_count'] / reported['sent_count'])} of the load's datagrams were lost"


EXPERIMENT = measuring_loop.experiment(
    LatencyUnderLoad,
    plan,
    about="round-trip times while the path is loaded: which queue keeps them short",
)
