"""Traffic generators: parameters choose one, and its capabilities limit what can be requested."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.common.errors import BadInput
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
        ({"generator": "ping", "slices": 0}, "ping", "ping"),
        ({"generator": "ping", "protocol": "ping", "slices": 0}, "ping", "ping"),
        ({"generator": "iperf3"}, "iperf3", "tcp"),
        ({"generator": "none"}, "iperf3", "tcp"),
    ],
)
def test_default_generator(given: dict[str, Any], generator: str, protocol: str) -> None:
    made = DatapathParameters.of(given)
    assert (made.load_generator.name, made.protocol) == (generator, protocol)


def test_generator_keeps_the_protocol() -> None:
    assert PacketSizeParameters.of({"generator": "iperf3"}).protocol == "udp"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"generator": "hping3"}, "generator=hping3 is unknown: choose iperf3, ping, packets"),
        ({"generator": "packets"}, "generator=packets works with `labkit run throughput` only"),
        (
            {"generator": "ping", "protocol": "tcp", "slices": 0},
            "protocol=tcp: the generator ping supports ping",
        ),
        (
            {"generator": "iperf3", "protocol": "ping"},
            "protocol=ping: the generator iperf3 supports tcp, udp",
        ),
        ({"generator": "ping", "slices": 4}, "slices need senders"),
        (
            {"generator": "ping", "slices": 0, "rate_bps": 1e6},
            "rate_bps=1000000: ping has no rate_bps; leave it out",
        ),
        ({"generator": "ping", "slices": 0, "streams": 2}, "streams=2: ping has no streams; leave it out"),
        (
            {"protocol": "udp", "length_bytes": 8},
            "length_bytes=8 is outside 16 to 65507: the range of udp with iperf3",
        ),
    ],
)
def test_unsupported_loads_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        DatapathParameters.of(given)


def test_generator_of_each_load() -> None:
    made = ContainerVsVmParameters.of({"endpoint": "namespace"})
    assert [made.for_load(load).load_generator.name for load in made.loads] == ["iperf3", "iperf3", "ping"]
    with pytest.raises(BadInput, match="there is no parameter generator"):
        ContainerVsVmParameters.of({"endpoint": "namespace", "generator": "iperf3"})


def test_generators_implement_one_kind_of_load() -> None:
    for one in registry.GENERATORS.values():
        kinds = (FlowGenerator, LatencyGenerator, TrialGenerator)
        assert sum(isinstance(one, kind) for kind in kinds) == 1, one.name
        if one.capabilities.sliced:
            assert isinstance(one, FlowGenerator)
    assert registry.PROTOCOLS == ("tcp", "udp", "ping")


def test_search_needs_trials() -> None:
    assert registry.find_trial("packets").name == "packets"
    with pytest.raises(BadInput, match="generator=ping cannot run trials at a frame rate"):
        registry.find_trial("ping")
