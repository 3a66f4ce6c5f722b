"""The OVS test plan (Netronome, OVS Test Plan): 1,000 wildcard rules, 64,000 flows, three use cases.

Every switch (datapath, use case, set of rules, tunnel) is an arm, and every arm is searched for NDR and PDR as by the
experiment `throughput`. The VMs of the plan are namespaces, containers or guests here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from labkit.common.errors import BadInput
from labkit.common.limits import UNIQUE, Offered, OneOf, Within
from labkit.common.switch_options import (
    ANY_NAME,
    CASES,
    KINDS,
    MAX_RULES,
    MIN_RULES,
    NAMES,
    PLAN_TUNNELS,
    SwitchOptions,
    options,
)
from labkit.measure.experiments import measuring_loop
from labkit.measure.experiments.datapaths_parameters import TWO_HOSTS
from labkit.measure.experiments.measuring_loop import Plan
from labkit.measure.experiments.throughput_search import experiment
from labkit.measure.experiments.throughput_search.parameters import Throughput
from labkit.measure.traffic import packet_sender

VARY = {"l2": "target_mac", "l3": "target_ip"}  # what the rules match, so what flows differ in
SIZES = ("64", "128", "256", "512", "1024", "1514")


class OvsTestPlanParameters(Throughput, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `throughput`, and the plan's."""

    HAS_OTHER_ARMS: ClassVar[bool] = True
    ABSENT: ClassVar[tuple[str, ...]] = (
        *Throughput.ABSENT, "vary", "vlan", *TWO_HOSTS, "server", "ports", "force",
    )  # fmt: skip
    INSTEAD: ClassVar[Mapping[str, str]] = {"vlan": "tunnel"}

    topology: Annotated[
        tuple[str, ...],
        f"the datapaths, {ANY_NAME}; each is compared with every use case, set of rules and tunnel",
        OneOf(NAMES),
        UNIQUE,
    ] = ("ovs_netdev",)
    case: Annotated[
        tuple[str, ...], f"use cases: {', '.join(CASES)}; the first is the baseline", OneOf(CASES), UNIQUE
    ] = CASES
    rules: Annotated[
        tuple[str, ...],
        "sets of rules: l2 (low bits of the destination MAC address), l3 (of the IP address)",
        OneOf(KINDS),
        UNIQUE,
    ] = KINDS
    rules_count: Annotated[
        tuple[int, ...],
        f"numbers of rules, {MIN_RULES} to {MAX_RULES}; the plan has 1000",
        Within(MIN_RULES, MAX_RULES),
        UNIQUE,
    ] = (1000,)
    tunnel: Annotated[
        tuple[str, ...],
        f"how the network reaches the switch: {', '.join(PLAN_TUNNELS)}; vm_to_vm has only off",
        OneOf(PLAN_TUNNELS),
        UNIQUE,
    ] = PLAN_TUNNELS
    pairs: Annotated[
        tuple[int, ...],
        "numbers of VMs; the plan has 4",
        Within(1, 500, "a Linux bridge has 1,023 ports"),
        UNIQUE,
    ] = (4,)
    frame_bytes: Annotated[tuple[str, ...], Offered(SIZES)] = SIZES
    flows: Annotated[
        tuple[int, ...],
        f"numbers of flows of each sender, 1 to {packet_sender.CAPACITY['target_ip']}; the plan has 64000",
        Within(1, packet_sender.CAPACITY["target_ip"]),
        UNIQUE,
    ] = (64000,)
    flow_profile: str = "test_plan"

    def check(self) -> None:
        """Raise BadInput, with one sentence, for parameters that cannot be measured."""
        self.check_values()
        if not self.arms:
            raise BadInput("case=vm_to_vm has no network behind a tunnel: add tunnel=off")
        self.switch_parameters().check()

    @property
    def arms(self) -> tuple[str, ...]:
        """The switches under comparison, as topologies with options."""
        return tuple(
            SwitchOptions(topology, case=case, rules=rules, rules_count=count, tunnel=tunnel).name
            for tunnel in self.tunnel
            for count in self.rules_count
            for rules in self.rules
            for case in self.case
            for topology in self.topology
            if case != "vm_to_vm" or tunnel == "off"
        )

    def switch_parameters(self) -> SwitchSearch:
        """Return the parameters of `throughput` with the switches as topologies."""
        return SwitchSearch.like(self, topology=self.arms)


class SwitchSearch(Throughput, frozen=True, kw_only=True):
    """Parameters of the searches of the plan's switches."""

    def for_topology(self, topology: str) -> Self:
        """Return the parameters for a switch: flows differ in the field that the rules match."""
        return type(self).like(super().for_topology(topology), vary=(VARY[options(topology).rules],))


def plan(parameters: OvsTestPlanParameters, seed: int) -> Plan:
    """Return the plan of the searches of all arms; `seed` decides the random orders."""
    return experiment.plan(parameters.switch_parameters(), seed)


EXPERIMENT = measuring_loop.experiment(
    OvsTestPlanParameters,
    plan,
    about="the packet rate at which loss begins in Open vSwitch with 1,000 rules and 64,000 flows",
)
