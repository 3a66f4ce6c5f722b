"""Traffic generators: parameters choose one, and its capabilities limit what can be requested."""

import itertools
import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.analysis import protocols
from labkit.common.errors import Unsupported
from labkit.measure.endpoints import Pair
from labkit.measure.endpoints.namespace import directed
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.traffic import base, iperf3, registry
from labkit.measure.traffic.base import FlowGenerator, LatencyGenerator, TrialGenerator
from studies.container_vs_vm.experiment import ContainerVsVmParameters
from studies.packet_size.experiment import PacketSizeParameters
from studies.requests.experiment import Requests


def test_default_generator() -> None:
    for given, generator, protocol in (
        ({}, "iperf3", "tcp"),
        ({"protocol": "udp"}, "iperf3", "udp"),
        ({"protocol": "ping", "slices": 0}, "ping", "ping"),
        ({"generator": "ping", "protocol": "ping", "slices": 0}, "ping", "ping"),
        ({"generator": "iperf3"}, "iperf3", "tcp"),
    ):
        made = DatapathParameters.of(given)
        assert (made.load_generator.name, made.protocol) == (generator, protocol)


@pytest.mark.parametrize(
    ("loads", "given"),
    [
        ("tcp_rr,tcp_crr,http,tcp", {"outstanding": 8}),
        ("udp_rr", {"change": "deep: parameter outstanding=8"}),
        ("tcp_rr,tcp", {"change": "more: parameter streams=4"}),
        ("tcp_rr,tcp_crr", {"change": "fast: socket quickack=on"}),
    ],
)
def test_load_has_the_parameters_that_it_supports(loads: str, given: dict[str, Any]) -> None:
    made = Requests.of({"topology": "veth", "streams": 1, "loads": loads, **given})
    made.check()
    first, *others = [made.for_load(load) for load in made.loads]
    assert first.load_generator.name == "sockets"
    assert first.outstanding == given.get("outstanding")
    assert not any(one.outstanding for one in others)


def test_generators_of_loads() -> None:
    assert PacketSizeParameters.of({"generator": "iperf3"}).protocol == "udp"
    made = ContainerVsVmParameters.of({"endpoint": "namespace"})
    assert [made.for_load(load).load_generator.name for load in made.loads] == ["iperf3", "iperf3", "ping"]
    for one in registry.GENERATORS.values():
        kinds = (FlowGenerator, LatencyGenerator, TrialGenerator)
        assert sum(isinstance(one, kind) for kind in kinds) == 1, one.name
        assert isinstance(one, FlowGenerator) or not one.capabilities.sliced
    assert set(registry.PROTOCOLS) == set(protocols.PROTOCOLS)


def test_rate_that_was_not_kept() -> None:
    """Up to 1 % of the requests may be late, and up to 2 % may be lacking."""
    for late, offered_rps, doubts, status in (
        (10, 980, 0, "ok"), (11, 1000, 1, "ok"), (10, 979, 0, "invalid"), (500, 900, 1, "invalid"),
    ):  # fmt: skip
        row = base.kept_rate(late, 1000, offered_rps, 1000, "labkit")
        assert (len(row["doubts"]), row.get("status", "ok")) == (doubts, status)
        assert ("reason" in row) == (status == "invalid")
        assert all(f"labkit sent {late / 10:.2g} %" in one for one in row["doubts"]), row


def test_whoever_sends_is_held() -> None:
    """A receiver goes on, and takes what is on its way."""
    for direction, held in (("forward", "c"), ("reverse", "s"), ("both", "sc")):
        calls = list[str]()
        server, client = (
            SimpleNamespace(hold=partial(calls.append, name), go=partial(calls.append, f"{name} goes"))
            for name in "sc"
        )
        servers: Any = SimpleNamespace(programs=[server])
        flows = base.Flows(iperf3.IPERF3, [], servers, DatapathParameters(direction=direction))
        flows.clients.append(client)  # type: ignore[arg-type]
        flows.hold()
        assert calls == [*held]
        flows.go()
        assert {f"{name} goes" for name in held} <= {*calls[len(held) :]}


def test_frames_go_in_the_directions_of_distinct_ends() -> None:
    ends: Any = [SimpleNamespace(kernel=object()) for _ in range(4)]
    pairs = [Pair(*ends[:2]), Pair(*ends[2:])]
    back = [(pair.server, pair.client) for pair in pairs]
    for direction, expected in (("forward", []), ("reverse", back), ("both", back)):
        made = directed(pairs, direction)
        assert [(pair.client, pair.server) for pair in made if pair not in pairs] == expected
        assert len(made) == (4 if direction == "both" else 2)
    shared = [pairs[0], Pair(pairs[0].client, pairs[1].server)]
    assert directed(shared, "forward") is shared
    with pytest.raises(Unsupported, match="ends share a namespace"):
        directed(shared, "reverse")


def test_histogram_has_each_latency_in_a_narrow_bucket() -> None:
    times_s = sorted(1e-5 * 1.001**number for number in range(10_000))
    buckets = iter(times_s)
    counts = base.histogram(times_s)
    assert list(counts) == sorted(counts, key=int)
    for edge_ns, count in counts.items():
        for time_s in itertools.islice(buckets, count):
            assert int(edge_ns) / 1.0294 - 1 < 1e9 * time_s < int(edge_ns) + 1
    assert next(buckets, None) is None
    assert base.histogram([0.0]) == {"102": 1}


def test_a_row_has_one_logarithm_for_each_distinct_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row may have millions of latencies of few lengths."""
    calls, log2 = list[float](), math.log2

    def counted(value: float) -> float:
        calls.append(value)
        return log2(value)

    monkeypatch.setattr(math, "log2", counted)
    row = base.request_columns([1e-5] * 900 + [2e-5] * 100, 1e3, DatapathParameters(), None, 1)
    assert [*row["latency_histogram"].values()] == [900, 100]
    assert len(calls) == 2
