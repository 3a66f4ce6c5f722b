"""The experiment `datapaths` with several loads: in every round each load runs between the ends of all arms."""

from typing import Annotated, Any, ClassVar

from labkit.common.errors import BadInput
from labkit.common.limits import UNIQUE
from labkit.measure.experiments import datapaths
from labkit.measure.experiments.datapaths_parameters import TWO_HOSTS, DatapathParameters
from labkit.measure.experiments.measuring_loop import Plan
from labkit.measure.topologies import Network
from labkit.measure.traffic import registry
from labkit.measure.traffic.base import RequestGenerator

Compared = Annotated[tuple[str | Network, ...], "topologies to compare; the first is the baseline"]


class SeveralLoads(DatapathParameters, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths`, and the loads."""

    ABSENT: ClassVar[tuple[str, ...]] = (
        "generator", "protocol", "length_bytes", "response_bytes", "half_width", *TWO_HOSTS,
    )  # fmt: skip

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

    def _check_load(self) -> None:
        """Check nothing: each load is checked, also with each change."""

    _check_changes = _check_load

    @property
    def guest_files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one for load in self.loads for one in self.for_load(load).guest_files))

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
        generator, usual, own = registry.default_generator(protocol), DatapathParameters(), dict[str, Any]()
        if not isinstance(generator, RequestGenerator):  # what UDP and ping lack, is for the other loads
            own |= {name: getattr(usual, name) for name in generator.ignored_parameters(protocol)}
        # sockperf has one connection with one request in flight and no options, and does not run in guests.
        lacked = {"streams", "outstanding", "response_bytes", "socket"}
        changed = lacked & {name for one in self.change for name in one.parameters}
        if not protocol.endswith("_rr"):
            own |= {"outstanding": None}
        elif self.streams > 1 or self.outstanding or self.socket or self.in_guests or changed:
            own |= {"generator": "sockets"}
        if not generator.capabilities.sliced:
            own |= {"slices": 0, "whole_runs": None}
        length_bytes = int(size) if colon else None
        return DatapathParameters.like(self, **own, protocol=protocol, length_bytes=length_bytes)


def plan(parameters: SeveralLoads, seed: int, *, observes_all: bool = True) -> Plan:
    """Return the plan; `seed` decides the random orders. `observes_all`: the profiles are of every load, not only of
    the first."""
    loads = {load: parameters.for_load(load) for load in parameters.loads}
    return datapaths.plan_of_loads(parameters, seed, loads, observes_all=observes_all)
