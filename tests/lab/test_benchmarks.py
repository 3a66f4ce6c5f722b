"""The cheap promises of `make bench` with tolerance for a busy machine, and the arithmetic behind the expensive
ones."""

import os
from dataclasses import replace

import pytest

from benchmarks import imports, packets, promise, requests, search, set_up
from labkit.measure import topologies
from labkit.measure.endpoints import Pair

SLACK = 1.5


@pytest.mark.alone
@pytest.mark.needs("namespaces", "ip", "veth", "bridge")
def test_set_up_speed_and_result_against_ip() -> None:
    result = promise.inside("benchmarks.set_up", 8, 3, set_up.BRIDGE, set_up.IP)
    assert result["differ"] is None
    assert len(result[set_up.BRIDGE]) == len(result[set_up.IP]) == 3
    assert promise.median(result[set_up.BRIDGE]) <= SLACK * set_up.BOUND * promise.median(result[set_up.IP])


@pytest.mark.long  # CPU time is nearly the same beside other programs
def test_imports_are_quick() -> None:
    results = list(imports.promises(quick=True))
    for each, result in zip(imports.TABLE, results, strict=True):
        assert result.what == each.what
        assert result.ratio is not None
        assert 0.1 < result.ratio <= SLACK * each.bound, result


@pytest.mark.alone
@pytest.mark.needs("root", "veth", "sockperf")
def test_open_loop_keeps_its_times_as_a_loop_that_only_waits() -> None:
    """At 20,000 requests a second, within 50 µs; another program on a CPU delays both."""
    cpus = sorted(os.sched_getaffinity(0))
    with topologies.build("veth", topologies.Spec()) as net:
        [pair] = net.pairs
        placed = Pair(replace(pair.client, cpu=cpus[0]), replace(pair.server, cpu=cpus[-1]))
        shares = [(requests.punctual_share(placed), requests.busy_share(cpus[0])) for _ in range(3)]
    punctual, busy = map(max, zip(*shares, strict=True))  # what each can when nothing else disturbs it
    assert punctual >= requests.PUNCTUAL_SHARE / SLACK * busy > 0, shares


def test_searches_and_rates_of_benchmarks() -> None:
    def row(loss: float, pps: float | None, role: str = "baseline") -> dict[str, object]:
        status = "ok" if pps else "invalid"
        return {
            "role": role, "status": status, "reason": "generator-limited", "loss_goal_ratio": loss,
            "throughput_pps": pps,
        }  # fmt: skip

    rows = [row(0.0, 185e3), row(0.0, 200e3), row(0.0, 250e3), row(0.005, 1e5), row(0.0, 9e9, "control")]
    assert search.rates([*rows, row(0.005, None)]) == {0.0: [185e3, 200e3, 250e3], 0.005: [1e5]}
    assert search.spread([185e3, 200e3, 250e3]) == pytest.approx(0.25)
    with pytest.raises(promise.NotMeasuredError, match="no search found a rate: generator-limited"):
        search.rates([row(0.0, None)])
    # The median over all rates would hide it: three of four are exact.
    exact = [0.0] * len(packets.RATES_PPS)
    assert packets.worst([*exact, 0.2] * 3) == 0.2
    assert packets.worst([*exact, 0.2, *exact, 0.0, *exact, 0.0]) == 0.0


def test_different_end_state_is_reported() -> None:
    one = {"count": 17, "client0": {"links": [{"mtu": 1500}], "ipv6 off": "1"}}
    assert set_up.difference(one, one) is None
    assert "count" in str(set_up.difference(one, one | {"count": 16}))
    other = one | {"client0": {"links": [{"mtu": 9000}], "ipv6 off": "1"}}
    assert "{'mtu': 1500} by labkit, {'mtu': 9000} by ip" in str(set_up.difference(one, other))
