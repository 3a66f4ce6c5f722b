"""What a virtual TAP costs: one switch with different mirrors and readers of their copies, as arms side by side.

The question is Senanayake's (Performance on Virtualization Environments with Virtual TAP, University of Colombo 2024).
All arms of a round exist at once, and each load runs through every arm, in random order, before they are removed.
"""

import re
from typing import Annotated, Any, ClassVar

from labkit.common.errors import BadInput
from labkit.common.limits import UNIQUE, Offered, OneOf, Within
from labkit.common.switch_options import (
    ANY_NAME,
    MAX_MIRRORS,
    NAMES,
    OPTIONS,
    OUTPUTS,
    READERS,
    TUNNELS,
    SwitchOptions,
)
from labkit.measure.experiments import datapaths, measuring_loop
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.measuring_loop import Plan

LOADS = ("tcp:64", "tcp", "udp:64", "udp:512", "udp:1472")  # the first is the thesis' own
LOAD = r"(tcp|udp)(?::(\d{1,6}))?(?:@(\d+(?:\.\d+)?(?:e\d{1,2})?))?"

USUAL = DatapathParameters.help()
# Presets of CPUs: that of the switch, and those of client and server as `affinity` has them
CORES: dict[str, tuple[int | None, str | None]] = {"any": (None, None), "thesis": (0, "0,1")}


class VirtualTapParameters(DatapathParameters, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths`, the mirrors, and the loads."""

    HAS_OTHER_ARMS: ClassVar[bool] = True
    ABSENT: ClassVar[tuple[str, ...]] = (
        "generator", "protocol", "length_bytes", "response_bytes", "rate_bps", "outstanding", "whole_runs",
        "half_width",
    )  # fmt: skip

    topology: Annotated[
        tuple[str, ...],
        f"the switches, {ANY_NAME}; each is compared with every number of mirrors",
        OneOf(NAMES),
        UNIQUE,
    ] = ("ovs_netdev",)
    mirrors: Annotated[
        tuple[int, ...],
        f"numbers of mirrors, 0 to {MAX_MIRRORS}; the first is the baseline",
        Within(0, MAX_MIRRORS, "what Open vSwitch takes"),
        UNIQUE,
    ] = (0, 1, 2, 4, 8)
    readers: Annotated[
        tuple[str, ...],
        f"{OPTIONS['readers'].help}; several are compared; an empty list is none",
        OneOf(READERS),
    ] = ("none", "count")
    select: Annotated[str, OPTIONS["select"].help] = "client0"
    output: Annotated[str, OPTIONS["output"].help, OneOf(OUTPUTS)] = "veth"
    uplink_bps: Annotated[float | None, OPTIONS["uplink_bps"].help] = None
    uplink_mtu: Annotated[int | None, OPTIONS["uplink_mtu"].help] = None
    cores: Annotated[
        str,
        "any, or thesis: the switch and the clients on CPU 0, the servers on CPU 1, as taskset bound them there",
        OneOf(CORES),
    ] = "any"
    also: Annotated[
        tuple[str, ...],
        "further arms: topologies with options, such as ovs_netdev+mirrors=1+snaplen=96, or without",
    ] = ()
    loads: Annotated[
        tuple[str, ...],
        "loads through the switch, one after the other: udp or tcp, each with or without :BYTES; with @RATE (bit/s)"
        " in a whole run at that rate instead of slices",
        Offered(LOADS),
        UNIQUE,
    ] = LOADS
    nodes: Annotated[
        str,
        "one, or two: the far ends of the mirrors' tunnels are on a second host, and all else on the first",
    ] = "one"
    peer: Annotated[
        str | None, "host of the tunnels' far ends with nodes=two; none: a second lab VM like that of where"
    ] = None
    observe: Annotated[tuple[str, ...], USUAL["observe"] + "; with the first load"] = ()
    rounds: int = 5
    slices: int = 4
    duration_s: int = 2

    def check(self) -> None:
        """Raise BadInput, with one sentence, for parameters that cannot be measured."""
        self.check_values()
        if self.cores != "any" and self.affinity is not None:
            raise BadInput(
                f"affinity={self.affinity}: cores={self.cores} already binds the ends: leave one of them out"
            )
        self._check_two_nodes()
        self.switch_parameters().check()
        if not self.slices and (full := [load for load in self.loads if "@" not in load]):
            raise BadInput(
                f"slices=0: nothing would measure loads={full[0]}: give slices, or a load with @RATE"
            )
        for load in self.loads:
            self.for_load(load).check()

    def _check_two_nodes(self) -> None:
        """Raise BadInput if a second host would get no copies, or other packets than the switch copies."""
        if self.nodes != "two":
            return
        if self.output not in TUNNELS or not any(self.mirrors):
            raise BadInput(
                f"nodes=two needs mirrors whose copies leave the host: add mirrors=0,1 and output={'|'.join(TUNNELS)}"
            )
        for load in self.loads:
            if load.startswith("tcp"):
                raise BadInput(
                    f"loads={load}: on the way to a second host large TCP packets are divided, so copies cannot be"
                    " compared with what should have been copied: use udp:BYTES@RATE"
                )
            if "@" not in load:
                raise BadInput(
                    f"loads={load}: reading a second host's counters takes too long for slices: use {load}@RATE"
                )

    @property
    def arms(self) -> tuple[str, ...]:
        """The topologies under comparison, with their options."""
        result: dict[str, None] = {}
        for topology in self.topology:
            for count in self.mirrors:
                for reader in self.readers if count and self.readers else ("none",):
                    result[self._switch(topology, count, reader).name] = None
        return (*result, *(name for name in self.also if name not in result))

    def _switch(self, topology: str, count: int, reader: str) -> SwitchOptions:
        cpu, _ = CORES[self.cores]
        if not count:
            return SwitchOptions(topology, cpu=cpu)
        given = {name: getattr(self, name) for name in ("select", "output", "uplink_bps", "uplink_mtu")}
        return SwitchOptions(topology, mirrors=count, readers=reader, cpu=cpu, **given)

    def switch_parameters(self, **changed: Any) -> DatapathParameters:
        """Return the parameters of `datapaths` with the switches as topologies."""
        affinity = {} if self.cores == "any" else {"affinity": CORES[self.cores][1]}
        whole = {"slices": 0, "protocol": "udp"} if self.nodes == "two" else {}
        return DatapathParameters.like(self, **affinity | whole | {"topology": self.arms} | changed)

    def for_load(self, load: str) -> DatapathParameters:
        """Return the parameters of `datapaths` for one load. Raises BadInput for an invalid load."""
        if not (found := re.fullmatch(LOAD, load)):
            raise BadInput(
                f"loads={load}: a load is tcp or udp, each with or without :BYTES and @RATE: udp:512@1e8"
            )
        protocol, size, rate = found.groups()
        way = {"rate_bps": float(rate), "slices": 0} if rate else {"whole_runs": 0}
        return self.switch_parameters(protocol=protocol, length_bytes=int(size) if size else None, **way)


def plan(parameters: VirtualTapParameters, seed: int) -> Plan:
    """Return the plan of the experiment; `seed` decides the random orders."""
    loads = {load: parameters.for_load(load) for load in parameters.loads}
    return datapaths.plan_of_loads(parameters.switch_parameters(), seed, loads)


EXPERIMENT = measuring_loop.experiment(
    VirtualTapParameters, plan, about="what mirrors of Open vSwitch cost the traffic that they copy"
)
