"""A built arm: its pairs, its interfaces' offloads and queueing discipline, and doubts where these differ from the
baseline."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from labkit.measure import topologies
from labkit.measure.endpoints import Kernel, Namespace, Pair, RemotePair
from labkit.measure.endpoints.namespace import directed
from labkit.measure.experiments import changes, consistency, rows
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import Arm, Measured
from labkit.measure.experiments.server_counters import LocalServer, ServerSide, guests_cpu
from labkit.measure.observers.counters.receive_counters import receivers
from labkit.measure.traffic.base import FlowGenerator, Flows, TrialGenerator, Trials

if TYPE_CHECKING:
    from labkit.measure.topologies.open_vswitch.switch import Switch
    from labkit.measure.traffic.packet_sender import Mix

# The offloads that change TCP and UDP datapaths. VLAN, SCTP and tunnel offloads differ between kinds of links without
# an effect here.
COMPARED_OFFLOADS = [
    "rx-checksumming",
    "tx-checksumming",
    "scatter-gather",
    "tcp-segmentation-offload",
    "generic-segmentation-offload",
    "generic-receive-offload",
    "large-receive-offload",
    "tx-udp-segmentation",
    "rx-gro-list",
    "rx-udp-gro-forwarding",
]


@dataclass(frozen=True, kw_only=True)
class BuiltArm(abc.ABC):
    """A built arm with the settings of its first pair's interfaces.

    `pairs`: those between which the load runs. `namespaces`: those on this host. `offloads` and `qdisc` are the
    client's, where segmentation and queueing happen; `server_offloads` are the server's.
    """

    arm: Arm
    pairs: Sequence[Pair | RemotePair]
    namespaces: Sequence[Namespace]
    topology: topologies.Topology | topologies.BuiltSide | None = None  # what joins the ends on this host
    offloads: dict[str, bool]
    server_offloads: dict[str, bool]
    qdisc: str
    emulated: bool = False  # whether its programs run on emulated CPUs
    endpoint_columns: dict[str, Any] = field(default_factory=dict)  # columns that describe where programs run
    effects: Sequence[dict[str, Any]] = ()  # of its change (`changes.apply`)
    doubts: list[str] = field(default_factory=list)

    @abc.abstractmethod
    def serving(
        self, parameters: DatapathParameters, generator: FlowGenerator
    ) -> AbstractContextManager[tuple[Flows, ServerSide]]:
        """Start servers; yield the flows and the servers' counters."""

    @abc.abstractmethod
    def trials(self, generator: TrialGenerator, mix: Mix, direction: str) -> AbstractContextManager[Trials]:
        """Start a generator of trials between the ends, whose frames go in this direction."""

    @property
    def own_kernels(self) -> Sequence[Kernel]:
        """The namespaces and guests that labkit made, so that it may change them."""
        return self.namespaces

    @property
    def switch(self) -> Switch | None:
        """The Open vSwitch that joins the ends, if any."""
        return None if self.topology is None else self.topology.switch

    @property
    def shares_a_clock(self) -> bool:
        """Whether all ends have this host's clock, so that times of different ends can be compared."""
        return all(isinstance(pair, Pair) and pair.shares_a_clock for pair in self.pairs)

    def remote_cpu(self) -> Callable[[float], dict[str, Any]]:
        """Start measuring the CPU time of the other host, if any.

        Returns a function; call it with the counted seconds to get columns.
        """
        return lambda _window_s: {}

    def while_measured(self) -> AbstractContextManager[object]:
        """Return a context in which machine-wide changes of this arm are active (`changes.while_measured`)."""
        return nullcontext()

    def metered(self) -> Callable[[], dict[str, Any]]:
        """Start the counters of what joins the ends (`Topology.meter`); return a function that returns their
        columns."""
        meter = None if self.topology is None else self.topology.meter
        return dict if meter is None else meter()

    def counted_losses(self, _family: int, _direction: str) -> Callable[[], list[dict[str, Any]]]:
        """Start counting; return a function that returns the loss of each pair by hop (`packet_loss`), if known."""
        return list

    def measured(self, metrics: dict[str, Any], doubts: list[str] | None = None) -> Measured:
        doubtful = [*self.doubts, *(doubts or []), *consistency.doubts(metrics)]
        report = {
            **rows.now(),
            "qdisc": self.qdisc,
            "offloads": " ".join(sorted(name for name, on in self.offloads.items() if on)) or None,
            **self.endpoint_columns,
            "changed": self.changed(),
            "doubts": "; ".join(doubtful) or None,
        }
        return self.arm, {"status": "ok", **report, **metrics}

    def changed(self) -> list[dict[str, Any]] | None:
        """Return the effects of its change; None without a change."""
        return None if self.arm.change is None else list(self.effects)

    def compare(self, baseline: BuiltArm) -> None:
        """Add doubts where offloads, queueing discipline or kind of CPU differ from the baseline's."""
        if self.emulated != baseline.emulated:
            verbs = ("runs", "does not") if self.emulated else ("does not run", "does")
            text = f"this arm {verbs[0]} on emulated CPUs and {baseline.arm.label} {verbs[1]}"
            self.doubts.append(f"{text}: the ratio includes the emulation")
        for end, own, usual in (
            ("client", self.offloads, baseline.offloads),
            ("server", self.server_offloads, baseline.server_offloads),
        ):
            meant = {
                one["setting"] for one in (*self.effects, *baseline.effects) if one["at"] in (end, "both")
            }
            differ = [
                name
                for name in sorted({*COMPARED_OFFLOADS} - meant)
                if own.get(name, False) != usual.get(name, False)
            ]
            if differ:
                text = ", ".join(f"{name} {'on' if own.get(name) else 'off'}" for name in differ)
                self.doubts.append(f"offloads of the {end} differ from {baseline.arm.label}: {text}")
        if self.qdisc != baseline.qdisc and "qdisc" not in {one["setting"] for one in self.effects}:
            self.doubts.append(f"qdisc {self.qdisc}, where {baseline.arm.label} has {baseline.qdisc}")

    def mark_as_replacement(self, parameters: DatapathParameters) -> None:
        """Add a doubt if this arm replaces the requested baseline."""
        change = next((one for one in parameters.change if one.name == parameters.baseline_change), None)
        first = Arm(parameters.topology_names[0], "baseline", parameters.endpoint[0], change=change)
        if self.arm.role == "baseline" and self.arm != first:
            self.doubts.append(f"{first.name} cannot be measured here, so this is the baseline instead")


@dataclass(frozen=True, kw_only=True)
class LocalArm(BuiltArm):
    """An arm with both sides on this host."""

    topology: topologies.Topology
    pairs: Sequence[Pair]
    # The CPUs of each turn of a whole run (`Flows.move_ends`); None: the scheduler chooses.
    placements: Callable[[], Iterator[Sequence[tuple[int, int]]]] | None = None
    # The CPUs of each pair's client and server in round trips; None: the scheduler chooses.
    cpus: Sequence[tuple[int, int]] | None = None
    ends_on: str | None = None  # the column: where requests have their ends

    @property
    def placed_pairs(self) -> Sequence[Pair]:
        """The pairs, with programs on `cpus`."""
        if self.cpus is None:
            return self.pairs
        return [
            Pair(replace(pair.client, cpu=client), replace(pair.server, cpu=server))
            for pair, (client, server) in zip(self.pairs, self.cpus, strict=True)
        ]

    @contextmanager
    def serving(
        self, parameters: DatapathParameters, generator: FlowGenerator
    ) -> Iterator[tuple[Flows, ServerSide]]:
        load = parameters.protocol, parameters.datagram_bytes, parameters.direction
        counters = receivers(self.pairs, *load)
        with generator.flows(self.pairs, parameters, emulated=self.emulated) as flows:
            if self.placements is not None:
                flows.move_ends(self.placements())
            yield flows, LocalServer(flows, counters, self.topology.ends)

    def trials(self, generator: TrialGenerator, mix: Mix, direction: str) -> AbstractContextManager[Trials]:
        return generator.trials(directed(self.pairs, direction), mix)

    @property
    def own_kernels(self) -> Sequence[Kernel]:
        if self.topology.shown is not None:
            return []
        # Not by the guest's name: several ends may have namespaces of their own in one guest.
        guests = dict.fromkeys(one.kernel for one in self.topology.ends if not one.kernel.is_here)
        return [*self.namespaces, *guests]

    def remote_cpu(self) -> Callable[[float], dict[str, Any]]:
        """Start measuring the CPU time of guests; return a function of the counted seconds that returns columns."""
        return guests_cpu(self.topology.ends)

    def while_measured(self) -> AbstractContextManager[object]:
        return changes.while_measured(self.arm.change, self.topology)

    def counted_losses(self, family: int, direction: str) -> Callable[[], list[dict[str, Any]]]:
        from labkit.measure.observers.counters import packet_loss  # only datagrams are followed

        return packet_loss.counted_losses(self.topology, family, direction)


def local_arm(
    arm: Arm, topology: topologies.Topology, accelerator: str | None, effects: Sequence[dict[str, Any]] = ()
) -> LocalArm:
    """Return the arm of a topology on this host; `accelerator` runs the host, `effects` are those of the arm's
    change."""
    client, server = topology.pairs[0].client, topology.pairs[0].server
    # Only one end may be a guest: the network of a use case of the OVS test plan is a namespace.
    runtime = client.runtime or server.runtime
    endpoint_columns = {} if runtime is None else runtime.report
    return LocalArm(
        endpoint_columns=endpoint_columns,
        emulated=endpoint_columns.get("guest_accelerator", accelerator) == "tcg",
        arm=arm,
        topology=topology,
        pairs=topology.pairs,
        namespaces=topology.namespaces,
        effects=effects,
        offloads=client.kernel.offloads(client.interface),
        server_offloads=server.kernel.offloads(server.interface),
        qdisc=client.kernel.qdisc(client.interface, client.index),
        doubts=list(topology.doubts),
    )
