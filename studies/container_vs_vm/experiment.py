"""Containers against virtual machines: the experiment `datapaths` over kinds of endpoints, with several loads per
round.

Guests take long to boot. Therefore all arms of a round exist at once, and each load runs between the ends of every
arm, in random order, before they are removed.
"""

import functools
from typing import Annotated, ClassVar

from labkit.common.errors import BadInput
from labkit.measure.experiments import measuring_loop, several_loads
from labkit.measure.experiments.datapaths_parameters import REPETITION, TWO_HOSTS, DatapathParameters
from labkit.measure.topologies import Network

USUAL = DatapathParameters.help()


class ContainerVsVmParameters(several_loads.SeveralLoads, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths`, and the loads."""

    ABSENT: ClassVar[tuple[str, ...]] = (
        "generator", "protocol", "length_bytes", "response_bytes", "outstanding", *REPETITION, *TWO_HOSTS,
    )  # fmt: skip

    topology: Annotated[tuple[str | Network, ...], "the topology between the endpoints, exactly one"] = (
        "veth_bridge",
    )
    endpoint: tuple[str, ...] = ("namespace", "container", "guest", "shared_guest")
    protocol: str = "udp"
    loads: tuple[str, ...] = ("udp:800", "tcp", "ping")
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


EXPERIMENT = measuring_loop.experiment(
    ContainerVsVmParameters,
    functools.partial(several_loads.plan, observes_all=False),
    about="containers against virtual machines, and the boundary between machines alone",
    observers_may_lack=True,
)
