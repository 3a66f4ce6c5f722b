"""What a packet costs by its size: the experiment `datapaths` for datagrams of several sizes, measured side by side.

A round measures every size in random order, each with a fresh set-up of all arms. So a drift of the machine does not
look like a cost of bytes, and every round gives its own line (`studies.packet_size.cost_model`). Rounds of
profiles do the same.
"""

import random
from collections.abc import Mapping
from typing import Annotated, ClassVar

from labkit.common.errors import BadInput
from labkit.common.limits import UNIQUE, UNIQUE_OR_EMPTY, Within
from labkit.common.units import counted
from labkit.measure.experiments import measuring_loop
from labkit.measure.experiments.datapaths_parameters import TWO_HOSTS, DatapathParameters
from labkit.measure.experiments.measurement_point import Load, MeasurementPoint
from labkit.measure.experiments.measuring_loop import Plan, shuffled
from labkit.measure.experiments.profiled_runs import profiles
from labkit.measure.traffic.base import LARGEST_DATAGRAM

SIZES = (16, 64, 200, 400, 800, 1472, 1473, 4000, 16000, 65507)
USUAL = DatapathParameters.help()
MIN_PAYLOAD = 16  # the minimum of iperf3, and of a ping with a timestamp
RANGE = Within(MIN_PAYLOAD, LARGEST_DATAGRAM, "the range of iperf3's UDP datagrams, and of pings")


class PacketSizeParameters(DatapathParameters, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths`, and the sizes."""

    ABSENT: ClassVar[tuple[str, ...]] = ("length_bytes", "half_width", *TWO_HOSTS)
    INSTEAD: ClassVar[Mapping[str, str]] = {"length_bytes": "size_bytes"}

    protocol: Annotated[str, "udp, or ping (round-trip times, closed-loop)"] = "udp"
    size_bytes: Annotated[
        tuple[int, ...],
        f"payloads of datagrams (udp) or pings, {MIN_PAYLOAD} to {LARGEST_DATAGRAM}",
        RANGE,
        UNIQUE,
    ] = SIZES
    observe_bytes: Annotated[
        tuple[int, ...], "sizes that are observed; none: all of size_bytes", RANGE, UNIQUE_OR_EMPTY
    ] = ()
    observe: Annotated[
        tuple[str, ...],
        USUAL["observe"]
        + "; an observer that does not work here is reported, and the sizes are still measured",
    ] = ()
    rounds: int = 5
    slices: int = 4
    duration_s: int = 1

    def check(self) -> None:
        """Raise BadInput, with one sentence, for parameters that cannot be measured."""
        if self.protocol == "tcp":
            raise BadInput("protocol=tcp: TCP chooses the sizes of its segments itself; use udp or ping")
        super().check()

    def for_size(self, size_bytes: int) -> DatapathParameters:
        """Return the parameters of `datapaths` for one size."""
        return DatapathParameters.like(self, length_bytes=size_bytes)


def plan(parameters: PacketSizeParameters, seed: int) -> Plan:
    """Return the plan with this seed: round by round, shuffled within each."""
    measured = []
    both = [(pairs, size) for pairs in parameters.pairs for size in parameters.size_bytes]
    for number, (pairs, size) in shuffled(parameters.rounds, seed, both):
        of_pairs = "" if len(parameters.pairs) == 1 else f" for {counted(pairs, 'pair')}"
        what = f"{size} bytes{of_pairs}, round {number + 1} of {parameters.rounds}"
        loads = [Load(parameters.for_size(size))]
        measured.append(MeasurementPoint(f"{size}b-{pairs}-r{number}", pairs, number, loads, what))
    rounds, sizes = counted(parameters.rounds, "round"), counted(len(parameters.size_bytes), "size")
    finished = f"all {rounds} of {sizes} were measured"
    observed = parameters.observe_bytes or parameters.size_bytes

    def profiled(name: str) -> list[tuple[str, DatapathParameters]]:
        sizes = random.Random(f"{seed} {name}").sample(observed, len(observed))
        return [(f"{size}b", parameters.for_size(size)) for size in sizes]

    # An arm that cannot be measured has no size.
    points = [*measured, *profiles(parameters, profiled)]
    return Plan(parameters, points, finished, refused_columns={"length_bytes": None})


EXPERIMENT = measuring_loop.experiment(
    PacketSizeParameters,
    plan,
    about="what a datagram costs by its size: fixed, by the byte, by the fragment",
    observers_may_lack=True,
)
