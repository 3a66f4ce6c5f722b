"""A search through a device that labkit did not build, between the ports of a TRex server that runs elsewhere."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from labkit.common.errors import Unsupported
from labkit.measure.experiments.built_arm import BuiltArm
from labkit.measure.experiments.context import RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import OUTSIDE, Measured
from labkit.measure.experiments.server_counters import ServerSide
from labkit.measure.experiments.throughput_search.parameters import Throughput
from labkit.measure.traffic.base import FlowGenerator, Flows, TrialGenerator, Trials
from labkit.measure.traffic.packet_sender import Mix
from labkit.measure.traffic.trex.client import Client, connected
from labkit.measure.traffic.trex.generator import TrexTrials, check_mix
from labkit.measure.traffic.trex.streams import OUTSIDE as ENDS

# What this machine does meanwhile, which is neither the device's work nor the generator's
LOCAL_COLUMNS = (
    "cpu_s", "softirq_s", "steal_s", "datapath_cpu_s", "datapath_wait_s", "generator_cpu_s", "cpu_per_packet_s",
    "softnet_drops_count", "socket_drops_count", "offloads", "qdisc",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OutsideArm(BuiltArm):
    """A device between the ports of a server. labkit knows nothing of it but what the ports count.

    It has no pairs, because the ends are ports, and neither the device nor the server is in a namespace of labkit's.
    """

    client: Client
    line_bps: float

    def with_line(self, parameters: Throughput) -> Throughput:
        """Return the parameters with the rate of the ports' line. Raises BadInput for a rate that it cannot carry."""
        # Rates are of all senders together: of one port of each two.
        line_rate_bps = parameters.line_rate_bps or self.line_bps * (len(self.client.ports) // 2)
        with_line = msgspec.structs.replace(parameters, line_rate_bps=line_rate_bps)
        for frame in with_line.frame_bytes:
            with_line.check_bounds(frame)
        return with_line

    def serving(
        self, parameters: DatapathParameters, generator: FlowGenerator
    ) -> AbstractContextManager[tuple[Flows, ServerSide]]:
        """Raise Unsupported: there are no ends for servers."""
        raise Unsupported("no program of labkit runs beside a TRex server that runs elsewhere")

    @contextmanager
    def trials(self, generator: TrialGenerator, mix: Mix, _direction: str) -> Iterator[Trials]:
        """Give the ports the frames of this mix. Raises Unsupported for flows that TRex's streams cannot have."""
        check_mix(mix)
        yield TrexTrials(self.client, ENDS * (len(self.client.ports) // 2), mix, self.line_bps)

    def measured(self, metrics: dict[str, Any], doubts: list[str] | None = None) -> Measured:
        """Return the metrics with their doubts, without what this machine did meanwhile."""
        return super().measured(metrics | dict.fromkeys(LOCAL_COLUMNS), doubts)


@contextmanager
def outside(parameters: Throughput, run_context: RunContext) -> Iterator[OutsideArm]:
    """Take the server's ports until the block ends.

    Raises the errors of `Client.connect`, and BadInput for rates that the ports' line cannot carry.
    """
    at = parameters.address
    taken = connected(run_context.companion_fd, at, parameters.ports, "STL", force=parameters.force)
    with taken as (client, about):
        line_bps = min(about.line_bps)
        arm = OutsideArm(
            arm=OUTSIDE,
            pairs=(),
            namespaces=(),
            client=client,
            line_bps=line_bps,
            offloads={},
            server_offloads={},
            qdisc="",
            endpoint_columns={"trex_server": str(at), "trex": about.version},
            doubts=list(about.doubts),
        )
        arm.with_line(parameters)
        yield arm
