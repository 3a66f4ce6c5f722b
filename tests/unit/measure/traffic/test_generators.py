"""Traffic generators: parameters choose one, and its capabilities limit what can be requested."""

from typing import Any

import pytest

from labkit.analysis import protocols
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.traffic import registry
from labkit.measure.traffic.base import FlowGenerator, LatencyGenerator, TrialGenerator
from studies.container_vs_vm.experiment import ContainerVsVmParameters
from studies.packet_size.experiment import PacketSizeParameters


@pytest.mark.parametrize(
    ("given", "generator", "protocol"),
    [
        ({}, "iperf3", "tcp"),
        ({"protocol": "udp"}, "iperf3", "udp"),
        ({"protocol": "ping", "slices": 0}, "ping", "ping"),
        ({"generator": "ping", "protocol": "ping", "slices": 0}, "ping", "ping"),
        ({"generator": "iperf3"}, "iperf3", "tcp"),
    ],
)
def test_default_generator(given: dict[str, Any], generator: str, protocol: str) -> None:
    made = DatapathParameters.of(given)
    assert (made.load_generator.name, made.protocol) == (generator, protocol)


def test_generators_of_loads() -> None:
    assert PacketSizeParameters.of({"generator": "iperf3"}).protocol == "udp"
    made = ContainerVsVmParameters.of({"endpoint": "namespace"})
    assert [made.for_load(load).load_generator.name for load in made.loads] == ["iperf3", "iperf3", "ping"]
    for one in registry.GENERATORS.values():
        kinds = (FlowGenerator, LatencyGenerator, TrialGenerator)
        assert sum(isinstance(one, kind) for kind in kinds) == 1, one.name
        assert isinstance(one, FlowGenerator) or not one.capabilities.sliced
    assert set(registry.PROTOCOLS) == set(protocols.PROTOCOLS)
