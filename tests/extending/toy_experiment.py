"""An experiment: how much does a larger MTU help? Each MTU is a point, with a fresh set-up of all arms."""

from __future__ import annotations

from typing import Annotated, ClassVar

from labkit.common.limits import UNIQUE
from labkit.measure.experiments import measuring_loop
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.measurement_point import Load, MeasurementPoint
from labkit.measure.experiments.measuring_loop import Plan


class Jumbo(DatapathParameters, frozen=True, kw_only=True):
    """Parameters of the experiment: those of `datapaths`, but several MTUs instead of one."""

    ABSENT: ClassVar[tuple[str, ...]] = ("mtu_bytes",)

    mtus: Annotated[tuple[int, ...], "MTUs in bytes, each measured with all arms", UNIQUE] = (1500, 9000)

    def check(self) -> None:
        """Raise BadInput for what `datapaths` cannot measure."""
        super().check()
        for mtu in self.mtus:
            self.at(mtu).check()

    def at(self, mtu: int) -> DatapathParameters:
        """The parameters of `datapaths` with this MTU."""
        return DatapathParameters.like(self, mtu_bytes=mtu)


def plan(parameters: Jumbo, seed: int) -> Plan:
    """Every MTU in every round, in this order. `seed` would decide a random one."""
    points = [
        MeasurementPoint(f"{mtu}-{pairs}-r{number}", pairs, number, [Load(parameters.at(mtu))], f"MTU {mtu}")
        for number in range(parameters.rounds)
        for mtu in parameters.mtus
        for pairs in parameters.pairs
    ]
    refused = [parameters.at(mtu) for mtu in parameters.mtus]
    return Plan(parameters, points, "all rounds were measured", refused)


EXPERIMENT = measuring_loop.experiment(Jumbo, plan, about="how much a larger MTU helps")
