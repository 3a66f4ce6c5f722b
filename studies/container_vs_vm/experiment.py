"""Containers against virtual machines: the experiment `datapaths` over kinds of endpoints, with several loads per
round.

Guests take long to boot. Therefore all arms of a round exist at once, and each load runs between the ends of every
arm, in random order, before they are removed.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from labkit.common.errors import BadInput
from labkit.common.limits import EACH_ONCE
from labkit.measure.experiments import datapaths, measuring_loop
from labkit.measure.experiments.datapaths_parameters import REPETITION, TWO_HOSTS, DatapathParameters
from labkit.measure.experiments.measuring_loop import Plan
from labkit.measure.topologies import Network

LOADS = ("udp:800", "tcp", "ping")
USUAL = DatapathParameters.help()


class ContainerVsVmParameters(DatapathParameters, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths`, and the loads."""

    ABSENT: ClassVar[tuple[str, ...]] = ("generator", "protocol", "length_bytes", *REPETITION, *TWO_HOSTS)

    topology: Annotated[tuple[str | Network, ...], "the topology between the endpoints, exactly one"] = (
        "veth_bridge",
    )
    endpoint: tuple[str, ...] = ("namespace", "container", "guest", "shared_guest")
    protocol: str = "udp"
    loads: Annotated[
        tuple[str, ...],
        "loads between the endpoints, one after the other: udp:BYTES, tcp, ping, each with or without :BYTES",
        EACH_ONCE,
    ] = LOADS
    observe: Annotated[
        tuple[str, ...],
        USUAL["observe"]
        + "; with the first load. An observer that does not work here is reported, and the loads are still measured",
    ] = ()
    rounds: int = 3
    duration_s: int = 2
    profile_rounds: int = 3

    def check(self) -> None:
        """Raise BadInput, with one sentence, for parameters that cannot be measured."""
        if len(self.topology) > 1:
            raise BadInput(
                f"topology={','.join(self.topology_names)}: endpoint kinds are compared on one topology; name one"
            )
        super().check()
        for load in self.loads:
            self.for_load(load).check()


def plan(parameters: ContainerVsVmParameters, seed: int) -> Plan:
    """Return the plan of the experiment; `seed` decides the random orders."""
    return datapaths.plan_of_loads(
        parameters, seed, {load: parameters.for_load(load) for load in parameters.loads}
    )


EXPERIMENT = measuring_loop.experiment(
    ContainerVsVmParameters,
    plan,
    about="containers against virtual machines, and the boundary between machines alone",
    observers_may_lack=True,
)
