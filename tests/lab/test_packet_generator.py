"""The packet generator against interface counters, a planted rate limit, and the end of its process."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from worlds import printed

pytestmark = pytest.mark.needs("namespaces", "ip", "nft", "veth")


def tried(what: str, *words: str) -> Any:
    """What generated.py finds."""
    return printed(Path(__file__).with_name("generated.py"), what, *words, timeout_s=120)


@pytest.mark.parametrize(
    "topology",
    [
        "loopback",
        "veth",
        pytest.param("veth_bridge", marks=pytest.mark.needs("bridge")),
        "veth_routed",
        pytest.param("macvlan_bridge", marks=pytest.mark.needs("macvlan")),
        pytest.param("ipvlan_l2", marks=pytest.mark.needs("ipvlan")),
        pytest.param("vxlan", marks=pytest.mark.needs("vxlan")),
    ],
)
def test_what_is_sent_is_what_interfaces_count(topology: str) -> None:
    for trial in tried("exact", topology):
        sent, received = trial["hops"].values()
        assert trial["sent_count"] == trial["offered_count"] == trial["received_count"] > 0
        # Interfaces count strays as well: a bridge's ports report the groups that they listen to (IGMP).
        assert 0 <= sent - trial["sent_count"] < 5
        assert 0 <= received - trial["received_count"] < 5
        assert (trial["lost_count"], trial["loss_ratio"]) == (0, 0)
        if not trial["generator_limited"] and trial["rate_pps"]:
            assert trial["offered_pps"] == pytest.approx(trial["rate_pps"], rel=0.02)


def test_flows_take_turns() -> None:
    found = tried("captured", "5000", "0", "1")
    assert (found["sent"], found["flows"], found["times"]) == (5000, 5000, [1])
    assert found["first"] == list(range(12))


def test_blocks_of_flows_are_repeated() -> None:
    found = tried("captured", "30", "5", "3")
    assert (found["sent"], found["flows"], found["times"]) == (90, 30, [3])
    assert found["first"] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_a_jumbo_frame() -> None:
    found = tried("jumbo")
    assert found["received_count"] == found["sent_count"] > 0
    assert found["bytes"] == found["sent_count"] * 9014


def test_a_frame_above_the_mtu_is_one_sentence() -> None:
    assert tried("too_large") == "the packet generator at client0 cannot send: Message too long"


@pytest.mark.needs("bridge")
def test_a_planted_rate_limit_loses_what_is_above_it() -> None:
    below, above = tried("limited", "40mbit")  # 9,881 frames of 506 bytes a second, as tbf counts them
    assert below["lost_count"] == 0
    assert above["lost_count"] > 0.5 * above["offered_count"]
    # The bucket holds 20,000 bytes at the beginning, and 20,000 wait at the end.
    assert above["received_count"] / above["elapsed_s"] == pytest.approx(40e6 / 8 / 508, rel=0.1)


@pytest.mark.needs("bridge")
def test_latency_beside_a_load() -> None:
    for trial in tried("latency"):
        found = trial["latency"]
        assert found["clock"] == "kernel"
        assert (found["sent_count"], found["lost_count"], found["duplicated_count"]) == (500, 0, 0)
        assert 0 < found["p50_s"] <= found["p90_s"] <= found["p99_s"] <= found["p999_s"] < 1
        assert found["max_s"] == pytest.approx(found["p999_s"], rel=10) or found["max_s"] > found["p999_s"]
        assert found["p50_s"] < 1e-3
        assert found["histogram"]
        assert trial["sent_count"] == trial["received_count"]


def test_a_killed_generator_is_one_sentence_and_leaves_nothing() -> None:
    found = tried("killed")
    assert found["words"] == "the packet generator at client0 was killed by signal 9"
    assert found["took_s"] < 1.5
    assert not found["alive"]
    assert found["left"] == ""


@pytest.mark.needs("iperf3")
def test_a_packet_costs_a_third_of_iperf3s() -> None:
    found = tried("against_iperf3")
    assert statistics.median(found["packets"]) > 3 * statistics.median(found["iperf3"])
