"""The experiment `datapaths` with several loads: in every round each load runs between the ends of all arms."""

from typing import Annotated, ClassVar

from labkit.common.errors import BadInput
from labkit.common.limits import UNIQUE
from labkit.measure.experiments import datapaths
from labkit.measure.experiments.datapaths_parameters import TWO_HOSTS, DatapathParameters
from labkit.measure.experiments.measuring_loop import Plan
from labkit.measure.topologies import Network
from labkit.measure.traffic import registry

Compared = Annotated[tuple[str | Network, ...], "topologies to compare; the first is the baseline"]


class SeveralLoads(DatapathParameters, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths`, and the loads."""

    ABSENT: ClassVar[tuple[str, ...]] = ("generator", "protocol", "length_bytes", "half_width", *TWO_HOSTS)

    loads: Annotated[
        tuple[str, ...],
        f"loads between the endpoints, one after the other: {', '.join(registry.PROTOCOLS)}, each with or without"
        " :BYTES",
        UNIQUE,
    ] = ("tcp", "udp:512")

    def check(self) -> None:
        super().check()
        for load in self.loads:
            self.for_load(load).check()

    def for_load(self, load: str) -> DatapathParameters:
        """Return the parameters of `datapaths` for one of the loads (`udp:800` or `tcp`). A load whose senders cannot
        be held has no slices, and a whole run in every round. Raises BadInput for an invalid load.
        """
        protocol, colon, size = load.partition(":")
        is_size = size.isascii() and size.isdigit() and len(size) < 7
        if protocol not in registry.PROTOCOLS or bool(colon) != is_size:
            raise BadInput(
                f"loads={load} is not a load: write {', '.join(registry.PROTOCOLS)}, or with a size,"
                " for example udp:800"
            )
        one = DatapathParameters.like(self, protocol=protocol, length_bytes=int(size) if colon else None)
        is_sliced = one.load_generator.capabilities.sliced
        return one if is_sliced else DatapathParameters.like(one, slices=0, whole_runs=None)


def plan(parameters: SeveralLoads, seed: int, *, observes_all: bool = True) -> Plan:
    """Return the plan; `seed` decides the random orders. `observes_all`: the profiles are of every load, not only of
    the first."""
    loads = {load: parameters.for_load(load) for load in parameters.loads}
    return datapaths.plan_of_loads(parameters, seed, loads, observes_all=observes_all)
