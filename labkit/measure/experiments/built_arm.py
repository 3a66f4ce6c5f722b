"""How the interfaces of an arm look: offloads and queueing discipline, and what is to be doubted where they differ."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from labkit.common.errors import Unsupported
from labkit.measure import topologies
from labkit.measure.endpoints import Endpoint, FarPair, Pair
from labkit.measure.experiments import changes, rows
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import Arm, Measured
from labkit.measure.experiments.server_counters import LocalServer, ServerSide, guests_cpu
from labkit.measure.observers.counters.receive_counters import receivers
from labkit.measure.traffic.base import FlowGenerator, Flows
from labkit.system import machine, netlink
from labkit.system.netlink import ethtool

# The offloads that change what TCP and UDP datapaths do; VLAN, SCTP and tunnel ones differ between kinds of
# link and do not.
MATTERING = [
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
    """An arm that stands, and what the interfaces of its first pair say of themselves.

    `offloads` and `qdisc` are of the client, where segmentation and queueing take place; `server_offloads` are
    of the other end.
    """

    arm: Arm
    offloads: dict[str, bool]
    server_offloads: dict[str, bool]
    qdisc: str
    emulated: bool = False  # the CPUs that its programs run on
    endpoint_columns: dict[str, Any] = field(default_factory=dict)  # what rows tell of what programs run in
    effects: Sequence[dict[str, Any]] = ()  # of its change (`changes.apply`)
    doubts: list[str] = field(default_factory=list)

    @property
    @abc.abstractmethod
    def pairs(self) -> Sequence[Pair | FarPair]:
        """What load is run between."""

    @abc.abstractmethod
    def serving(
        self, parameters: DatapathParameters, generator: FlowGenerator
    ) -> AbstractContextManager[tuple[Flows, ServerSide]]:
        """Flows whose servers listen, and what the servers' side counts."""

    def elsewhere(self) -> Callable[[float], dict[str, Any]]:
        """From now on, the CPU time of the other host, where there is one: what is called afterwards, with the seconds
        that counted, gives columns."""
        return lambda _window_s: {}

    def while_measured(self) -> AbstractContextManager[object]:
        """What has to be so only while this arm is measured (`changes.while_measured`)."""
        return nullcontext()

    def metered(self) -> Callable[[], dict[str, Any]]:
        """From now on, what joins the ends counts (`Topology.meter`): what is called afterwards gives columns."""
        return dict

    def measured(self, metrics: dict[str, Any], doubts: list[str] | None = None) -> Measured:
        """Metrics of this arm, with what is to be doubted about them."""
        doubtful = [*self.doubts, *(doubts or [])]
        report = {
            **rows.now(),
            "qdisc": self.qdisc,
            "offloads": _short(self.offloads) or None,
            **self.endpoint_columns,
            "changed": self.changed(),
            "doubts": "; ".join(doubtful) or None,
        }
        return self.arm, {"status": "ok", **report, **metrics}

    def changed(self) -> list[dict[str, Any]] | None:
        """The effects of its change; None without a change."""
        return None if self.arm.change is None else list(self.effects)

    def compare(self, baseline: BuiltArm) -> None:
        """Doubt what is offloaded otherwise than in the baseline, queued otherwise, or run by another kind of CPU."""
        if self.emulated != baseline.emulated:
            this, that = ("emulated" if one.emulated else "not emulated" for one in (self, baseline))
            words = f"its CPUs are {this}, those of {baseline.arm.label} {that}"
            self.doubts.append(f"{words}: the emulation differs as well")
        for end, own, usual in (
            ("client", self.offloads, baseline.offloads),
            ("server", self.server_offloads, baseline.server_offloads),
        ):
            meant = {
                one["setting"] for one in (*self.effects, *baseline.effects) if one["at"] in (end, "both")
            }
            differ = [
                name
                for name in sorted({*MATTERING} - meant)
                if own.get(name, False) != usual.get(name, False)
            ]
            if differ:
                words = ", ".join(f"{name} {'on' if own.get(name) else 'off'}" for name in differ)
                self.doubts.append(f"offloads of the {end} differ from {baseline.arm.label}: {words}")
        if self.qdisc != baseline.qdisc and "qdisc" not in {one["setting"] for one in self.effects}:
            self.doubts.append(f"qdisc {self.qdisc}, where {baseline.arm.label} has {baseline.qdisc}")

    def stands_in(self, parameters: DatapathParameters) -> None:
        """Doubt a baseline that is not the one that was asked for."""
        first = Arm(parameters.topology_names[0], "baseline", parameters.endpoint[0])
        if self.arm.role == "baseline" and self.arm != first:
            self.doubts.append(f"{first.name} cannot be measured here, so this is the baseline instead")


@dataclass(frozen=True, kw_only=True)
class LocalArm(BuiltArm):
    """An arm whose two sides are on this host."""

    topology: topologies.Topology

    @property
    def pairs(self) -> Sequence[Pair]:
        """What load is run between."""
        return self.topology.pairs

    @contextmanager
    def serving(
        self, parameters: DatapathParameters, generator: FlowGenerator
    ) -> Iterator[tuple[Flows, ServerSide]]:
        """Flows whose servers listen, and what the servers' side counts."""
        with (
            receivers(self.pairs, parameters.protocol, parameters.datagram_bytes) as counters,
            generator.flows(self.pairs, parameters, emulated=self.emulated) as flows,
        ):
            yield flows, LocalServer(flows, counters, self._ends)

    def elsewhere(self) -> Callable[[float], dict[str, Any]]:
        """From now on, the CPU time of guests: what is called afterwards, with the seconds that counted, gives
        columns."""
        return guests_cpu(self._ends)

    def while_measured(self) -> AbstractContextManager[object]:
        """What has to be so only while this arm is measured (`changes.while_measured`)."""
        return changes.while_measured(self.arm.change, self.topology)

    def metered(self) -> Callable[[], dict[str, Any]]:
        """From now on, what joins the ends counts (`Topology.meter`): what is called afterwards gives columns."""
        return dict if self.topology.meter is None else self.topology.meter()

    @property
    def _ends(self) -> list[Endpoint]:
        return [end for pair in self.pairs for end in (pair.client, pair.server)]


def live(
    arm: Arm, topology: topologies.Topology, accelerator: str | None, effects: Sequence[dict[str, Any]] = ()
) -> LocalArm:
    """An arm whose two sides are on this host, which `accelerator` runs; `effects` are those of its change."""
    client, server = topology.pairs[0].client, topology.pairs[0].server
    endpoint_columns = {} if client.box is None else client.box.report
    return LocalArm(
        endpoint_columns=endpoint_columns,
        emulated=endpoint_columns.get("guest_accelerator", accelerator) == "tcg",
        arm=arm,
        topology=topology,
        effects=effects,
        offloads=offloads(client),
        server_offloads=offloads(server),
        qdisc=qdisc(client),
        doubts=list(topology.doubts),
    )


def offloads(end: Endpoint) -> dict[str, bool]:
    """The features of an end's interface that are on or off, by the names of ethtool; empty where neither the kernel
    nor a program tells them. Raises Failed when there is no such interface."""
    if not _in_guest(end):  # by netlink: to start a program takes long on an emulated CPU
        with suppress(Unsupported), netlink.inside(end.namespace.fd):
            return ethtool.features(end.interface)
    return machine.offloads(end.prefix, end.interface)


def qdisc(end: Endpoint) -> str:
    """The root queueing discipline of an end's interface. Raises Failed when there is no such interface."""
    if not _in_guest(end):
        return netlink.qdisc(end.namespace.netlink, end.index)
    return machine.qdisc(end.prefix, end.interface)


def _in_guest(end: Endpoint) -> bool:
    """Whether another kernel has the end's interface."""
    return end.box is not None and end.box.kernel is not None


def _short(features: dict[str, bool]) -> str:
    return " ".join(sorted(name for name, on in features.items() if on))
