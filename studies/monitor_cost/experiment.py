"""Measure what programs that watch an interface cost.

Each reader is compared with no reader and with a bare packet socket. The readers run one after the other. The packet
generator offers many flows at several rates, and a reader at the server's interface looks for one of them.
The arms are the readers; the one topology is the same for all. Each load of a round is measured with every reader, in
random order, and twice without any (A/A control). CPU time is that of the whole machine, from the first frame until
the reader has handled all, because the kernel does a part of a reader's work in the sender's context.
"""

import dataclasses
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from labkit.common import schema, units
from labkit.common.errors import BadInput
from labkit.common.limits import UNIQUE, Offered, OneOf, Within
from labkit.measure.endpoints import Endpoint
from labkit.measure.experiments import datapaths_parameters as usual
from labkit.measure.experiments import measuring_loop
from labkit.measure.experiments.built_arm import BuiltArm, LocalArm
from labkit.measure.experiments.changes import Change
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.measurement_point import Built, Load, MeasurementPoint, Record
from labkit.measure.experiments.measuring_loop import Plan, Running
from labkit.measure.experiments.rows import Arm, Measured
from labkit.measure.observers.capture import CapturePoint
from labkit.measure.observers.monitor import sampler
from labkit.measure.traffic import packet_ends, packet_generator, rates, registry
from labkit.measure.traffic.base import TrialGenerator, Trials
from labkit.measure.traffic.packet_sender import FIRST_PORT, PORT, Mix
from labkit.system import machine
from studies.monitor_cost.readers import READERS

MAX_LOAD = "most"  # the load that is as much as the machine can do
# After the traffic, for every reader: tcpdump's kernel hands over a block that is not full after 1 s.
SETTLE_S = 1.2
QUIET_S, QUIET_SHARE = 0.1, 0.05  # a reader that used less of a CPU for so long has handled all
START_S = 1.0  # about how long a reader takes to start and to end
OBSERVED_TABLE = "labkit_observed"
COLUMNS = schema.names(writer=("throughput", "reader"))


class MonitorCost(DatapathParameters, frozen=True, kw_only=True):
    """Parameters of the experiment."""

    HAS_OTHER_ARMS: ClassVar[bool] = True
    ABSENT: ClassVar[tuple[str, ...]] = (
        *usual.LOAD, *usual.REPETITION, *usual.OBSERVATION, *usual.TWO_HOSTS, "change", "without_effect", "generator",
        "pairs",
    )  # fmt: skip

    topology: Annotated[tuple[Any, ...], "the one topology whose server's interface is watched"] = ("veth",)
    endpoint: Annotated[tuple[str, ...], "where programs run: namespace or container"] = ("namespace",)
    protocol: str = "udp"
    readers: Annotated[
        tuple[str, ...],
        f"who watches: {', '.join(READERS)}; the run without a reader is always measured, as the baseline",
        OneOf(READERS),
        UNIQUE,
    ] = ("socket", "tcpdump", "dumpcap", "tshark", "monitor", "monitor_sampled")
    loads: Annotated[
        tuple[str, ...],
        f"rates of frames that are offered: 10kpps, 100Mbit/s …, or {MAX_LOAD} (what the machine can do)",
        Offered((MAX_LOAD,)),
        UNIQUE,
    ] = ("10kpps", "50kpps", "200kpps", MAX_LOAD)
    flows: Annotated[
        int, "numbers of flows; readers select one of them", Within(2, packet_generator.MAX_FLOWS)
    ] = 1000
    frame_bytes: Annotated[int, "size of a frame with FCS, 64 to 9018"] = 64
    sample: Annotated[
        str, "what the reader monitor_sampled samples: one_in:N, random:P, interval:N:S, first:B"
    ] = "one_in:100"
    rounds: int = 5
    duration_s: Annotated[int, "duration of the traffic in each measurement"] = 1
    patience_s: Annotated[float, "how long a reader may continue after the traffic", Within(1, 600)] = 30.0

    def check(self) -> None:
        """Raise BadInput, with one sentence, for parameters that cannot be measured."""
        self.check_values()
        if len(self.topology) != 1 or len(self.endpoint) != 1:
            raise BadInput("topology and endpoint need one value each: the arms are the readers")
        for load in self.loads:
            self.pps(load)
        sampler(self.sample)
        super().check()
        self.refuse_guests("the packet generator")
        packet_generator.check_mix(self.mix, self.mtu_bytes, self.family)

    def _check_load(self) -> None:
        """Check nothing: this experiment does not use the load of datapaths."""

    @property
    def mix(self) -> Mix:
        """The frames that are sent."""
        return Mix((self.frame_bytes,), self.flows)

    def pps(self, load: str) -> float | None:
        """Return the rate of a load in frames per second; None for as many as possible. Raises BadInput."""
        return None if load == MAX_LOAD else rates.pps("loads", load, (self.frame_bytes,), rates.Line())

    @property
    def load_generator(self) -> TrialGenerator:
        """The generator of the load."""
        return registry.find_trial(packet_generator.PacketGenerator.name)


@dataclass
class Session:
    """What the measurements of one round share.

    The generator, the counter of the observed flow at the receiving end, and the frames offered so far.
    """

    trials: Trials
    observed: Callable[[], int]
    offered_count: int = 0


@dataclass(frozen=True, kw_only=True)
class WatchedArm(LocalArm):
    """The built topology with a reader at its server's interface."""

    session: Session


@dataclass(frozen=True)
class FramesLoad(Load):
    """Frames at a rate; its name. A trial of an arm is a reader beside them."""

    parameters: MonitorCost

    def columns(self, _arm: Arm) -> dict[str, Any]:
        """Return the columns of the load."""
        return dict.fromkeys(COLUMNS) | {
            "part": "cost",
            "method": self.method,
            "frame": str(self.parameters.frame_bytes),
            "frame_bytes": self.parameters.frame_bytes,
            "flows_count": self.parameters.flows,
            "load_pps": self.parameters.pps(self.name),
            "length_bytes": None,
        }

    def trial_s(self, pairs: int) -> float:
        """Estimate the duration beside one reader in seconds."""
        return START_S + self.parameters.duration_s + SETTLE_S

    def trial(self, built_arm: BuiltArm, artefacts: Path, record: Record) -> None:
        """Measure the load beside one reader. Raises LabkitError for what fails or is missing."""
        assert isinstance(built_arm, WatchedArm)
        record(measure(self.parameters, built_arm, self.parameters.pps(self.name)))


@dataclass(frozen=True)
class Round(MeasurementPoint):
    """One round: a fresh set-up of the topology, and every load beside every reader."""

    parameters: MonitorCost

    def arms(self, usable: list[Arm]) -> list[Arm]:
        """Return an arm for each reader: nobody first, and again as the control."""
        [built] = usable
        return [
            dataclasses.replace(built, role="baseline"),
            dataclasses.replace(built, role="control"),
            *(
                dataclasses.replace(built, role="variant", change=Change(name, ()))
                for name in self.parameters.readers
                if name != "none"
            ),
        ]

    @contextmanager
    def built(self, running: Running, rng: random.Random) -> Iterator[Built]:
        """Build the topology, and keep the generator and a counter of the observed flow while all readers run."""
        arms = self.arms(running.usable)
        with super().built(running, rng) as (built_arms, failed), ExitStack() as stack:
            for one in built_arms:
                assert isinstance(one, LocalArm)
                pairs, parameters = one.topology.pairs, self.parameters
                trials = stack.enter_context(parameters.load_generator.trials(pairs, parameters.mix))
                session = Session(trials, stack.enter_context(observed_flow(pairs[0].server)))
                yield [WatchedArm(**{**vars(one), "arm": arm}, session=session) for arm in arms], []
                return
            yield [], [(arm, failed[0][1]) for arm in arms]


def plan(parameters: MonitorCost, seed: int) -> Plan:
    """Return the plan of the experiment: all rounds. The orders in a round are random."""
    loads = [FramesLoad(parameters, load) for load in parameters.loads]
    rounds = [
        Round(f"1-r{number}", 1, number, loads, f"round {number + 1} of {parameters.rounds}", parameters)
        for number in range(parameters.rounds)
    ]
    return Plan(parameters, rounds, f"all {units.counted(parameters.rounds, 'round')} were measured")


def measure(parameters: MonitorCost, built_arm: WatchedArm, pps: float | None) -> Measured:
    """Measure frames at a rate beside one reader. Raises LabkitError for what fails or is missing."""
    session, server = built_arm.session, built_arm.topology.pairs[0].server
    change = built_arm.arm.change
    reader = "none" if change is None else change.name
    hop = CapturePoint(server.namespace, server.interface)
    with READERS[reader](hop, FIRST_PORT, parameters.sample) as running:
        # Without a reader this process stands in, so that looking costs the same.
        pids = frozenset({running.pid, *machine.descendants(running.pid)} if running.pid else {os.getpid()})
        before, begun_cpu_s = machine.cpu_times(), machine.cpu_s(pids)
        received_count = session.observed()
        trial = session.trials.trial(pps, float(parameters.duration_s))
        received_count = session.observed() - received_count
        before_count = session.offered_count
        session.offered_count += trial.offered_count
        late_s = wait_until_idle(pids, parameters.patience_s)
        reader_cpu_s = machine.cpu_s(pids) - begun_cpu_s
        used = machine.cpu_times() - before
        counted = running.stop()
        start_s = running.start_s
    wanted = wanted_count(before_count, trial.offered_count, parameters.flows)
    doubts = []
    if late_s is None:
        doubts.append(f"the reader was still busy {parameters.patience_s:g} s after the traffic")
    if trial.generator_limited:
        reached = units.si(trial.offered_pps, "pps")
        doubts.append(f"generator-limited: {reached} of {units.si(trial.rate_pps, 'pps')} were sent")
    metrics = {
        **trial.columns,
        "throughput_bps": trial.columns["throughput_pps"] * parameters.frame_bytes * 8,
        "sent_count": trial.sent_count,
        "slip_s": trial.slip_s,
        **used.columns,
        "cpu_per_sent_s": used.busy_s / trial.offered_count if trial.offered_count else None,
        "reader_cpu_s": reader_cpu_s if running.pid else None,
        "reader_start_s": start_s if running.pid else None,
        "reader_late_s": late_s if running.pid else None,
        "reader_taken_count": counted.taken,
        "reader_dropped_count": counted.dropped,
        "wanted_count": wanted,
        "wanted_found_count": counted.wanted_found,
        "wanted_received_count": received_count,
        "wanted_throughput_pps": received_count / trial.elapsed_s if trial.elapsed_s else None,
    }
    return built_arm.measured(metrics, doubts)


def observed_flow(server: Endpoint) -> AbstractContextManager[Callable[[], int]]:
    """Count the frames of the flow that readers look for where they arrive, before the receiver drops the load."""
    match = f"udp sport {FIRST_PORT} udp dport {PORT}"
    return packet_ends.frame_counter(server, OBSERVED_TABLE, match, priority=-1)


def wanted_count(before: int, count: int, flows: int) -> int:
    """Return how many of the next `count` frames are of the first flow, after `before` frames: flows take turns."""
    return math.ceil((before + count) / flows) - math.ceil(before / flows)


def wait_until_idle(pids: frozenset[int], patience_s: float, settle_s: float = SETTLE_S) -> float | None:
    """Wait `settle_s`, and longer until the reader has handled all.

    Returns how long after `settle_s` it was busy; None if it still is.
    """
    time.sleep(settle_s)
    begun, before = time.monotonic(), machine.cpu_s(pids)
    while (now := time.monotonic()) - begun < patience_s:
        time.sleep(QUIET_S)
        used = machine.cpu_s(pids)
        if used - before < QUIET_SHARE * QUIET_S:
            return now - begun
        before = used
    return None


EXPERIMENT = measuring_loop.experiment(
    MonitorCost,
    plan,
    about="what programs that watch an interface cost: tcpdump, dumpcap, tshark, the monitor",
)
