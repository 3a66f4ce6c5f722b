"""The packet generator agrees with interface counters and a planted rate limit, and reports the end of its process."""

import functools
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from sandbox import also, printed

from labkit.measure.traffic.rates import IMIX

pytestmark = pytest.mark.needs("namespaces", "ip", "nft", "veth", "bridge")


VMS = {"vm0", "vm1", "vm2", "vm3"}


# What needs no more than this module does. A start of the program takes longer than most of them.
TOGETHER = (
    ("exact", "veth_bridge"), ("ipv6", "veth_routed"), ("captured", "5000", "0", "1"), ("captured", "30", "5", "3"),
    ("bursts", "16"), ("tagged",), ("agents",), ("jumbo",), ("too_large",), ("limited", "40mbit"), ("latency",),
    ("planted_loss", "2"), ("together", "4"), ("killed",),
)  # fmt: skip


@functools.cache
def results(*scenarios: tuple[str, ...]) -> dict[tuple[str, ...], Any]:
    """Return the results of generate_packets.py."""
    program = Path(__file__).with_name("generate_packets.py")
    return dict(zip(scenarios, printed(program, json.dumps(scenarios), timeout_s=300), strict=True))


def tried(*scenario: str) -> Any:
    return results(*TOGETHER if scenario in TOGETHER else [scenario])[scenario]


@pytest.mark.parametrize(
    "topology",
    [
        pytest.param("loopback", marks=pytest.mark.long),
        pytest.param("veth", marks=pytest.mark.long),
        "veth_bridge",
        pytest.param("veth_routed", marks=pytest.mark.long),
        pytest.param("macvlan_bridge", marks=[pytest.mark.needs("macvlan"), pytest.mark.long]),
        pytest.param("ipvlan_l2", marks=[pytest.mark.needs("ipvlan"), pytest.mark.long]),
        pytest.param("vxlan", marks=pytest.mark.needs("vxlan")),
    ],
)
def test_sent_frames_match_interface_counters(topology: str) -> None:
    for trial in tried("exact", topology):
        sent, received = trial["hops"].values()
        assert trial["sent_count"] == trial["offered_count"] == trial["received_count"] > 0
        # Interfaces also count other frames: bridge ports report their multicast groups (IGMP).
        assert 0 <= sent - trial["sent_count"] < 5
        assert 0 <= received - trial["received_count"] < 5
        assert (trial["lost_count"], trial["loss_ratio"]) == (0, 0)
        if not trial["generator_limited"] and trial["rate_pps"]:
            # A generator that a busy machine keeps waiting sends the same frames later, but never faster.
            assert trial["offered_count"] == pytest.approx(trial["rate_pps"] * trial["duration_s"], rel=0.02)
            assert trial["offered_pps"] < 1.02 * trial["rate_pps"]


def test_trials_of_ipv6() -> None:
    """The shortest frames have room for the headers only, and probes are longer."""
    for trial in tried("ipv6", "veth_routed"):
        assert trial["sent_count"] == trial["offered_count"] == trial["received_count"] > 0
        latency = trial["latency"]
        assert (latency["sent_count"], latency["lost_count"], latency["duplicated_count"]) == (200, 0, 0)
        assert latency["clock"] == "kernel"


@pytest.mark.parametrize(
    ("flows", "block", "repeats", "first"),
    [(5000, 0, 1, list(range(12))), (30, 5, 3, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1])],
)
def test_flows_are_sent_in_turn_or_in_blocks(flows: int, block: int, repeats: int, first: list[int]) -> None:
    result = tried("captured", str(flows), str(block), str(repeats))
    assert result == {"sent": flows * repeats, "flows": flows, "times": [repeats], "first": first}


def test_bursts() -> None:
    """At 20 kpps a burst of 16 frames leaves every 0.8 ms; a busy machine delays some of them."""
    result = tried("bursts", "16")
    assert statistics.mode(result["sizes"]) == 16
    assert result["counted"] == pytest.approx(20, abs=5)


@pytest.mark.long
def test_a_million_flows_of_mixed_sizes() -> None:
    """Each flow sends one frame, so every prepared frame leaves once. Interfaces do not count FCS."""
    trial = tried("mixed", "1000000")
    assert trial["offered_count"] == trial["sent_count"] == trial["received_count"] == 1_000_000
    sizes = itertools.islice(itertools.cycle(IMIX), 1_000_000)
    assert trial["bytes"] == sum(sizes) - 4 * 1_000_000


def test_frames_have_a_vlan_tag() -> None:
    """Frames that fill the MTU too. The receiving interface counts a tag's 4 bytes; both hooks see through it."""
    result = tried("tagged")
    assert result["sent_count"] == result["received_count"] > 0
    assert result["bytes"] == result["sent_count"] * (1514 + 4)
    assert result["seen"] == {"9": [7], "10": [7]}
    assert (result["latency"]["lost_count"], result["latency"]["clock"]) == (0, "kernel")


def test_programs_for_guests_count_exactly() -> None:
    """The counter sees the flows of other MAC addresses than the receiver's too."""
    result = tried("agents")
    assert result["sent"]["sent_count"] == 4321
    counted, interface_count = result["counted"]
    assert counted == 4321
    assert 0 <= interface_count - counted < 5


def test_jumbo_frames() -> None:
    result = tried("jumbo")
    assert result["received_count"] == result["sent_count"] > 0
    assert result["bytes"] == result["sent_count"] * 9014


def test_frame_above_the_mtu_is_one_sentence() -> None:
    assert tried("too_large") == "the packet generator at client0 failed: Message too long"


def test_loss_above_a_planted_rate_limit() -> None:
    below, above = tried("limited", "40mbit")  # 9,881 frames of 506 bytes a second, as tbf counts them
    assert below["lost_count"] == 0
    assert above["lost_count"] > 0.5 * above["offered_count"]
    # The bucket holds 20,000 bytes at the start, and the queue another 20,000 at the end.
    assert above["received_count"] / above["elapsed_s"] == pytest.approx(40e6 / 8 / 508, rel=0.1)


def test_latency_beside_a_load() -> None:
    for trial in tried("latency"):
        result = trial["latency"]
        assert result["clock"] == "kernel"
        assert (result["sent_count"], result["lost_count"], result["duplicated_count"]) == (500, 0, 0)
        p50, p90, p99, p999, longest_s = result["percentiles_s"].values()
        assert 0 < p50 <= p90 <= p99 <= p999 < 1
        assert longest_s == pytest.approx(p999, rel=10) or longest_s > p999
        assert p50 < 1e-3
        assert result["histogram"]
        assert trial["sent_count"] == trial["received_count"]


@pytest.mark.needs("openvswitch", "ping", "ethtool")
@pytest.mark.parametrize(
    ("words", "vary", "receivers", "endpoint"),
    [
        ("case=net_to_vm", "target_mac", VMS, "namespace"),
        pytest.param(
            "case=net_to_vm", "target_mac", VMS, "container",
            marks=[pytest.mark.long, pytest.mark.needs("root", "runc")],
        ),
        pytest.param("case=vm_to_net+rules=l3", "target_ip", {"network"}, "namespace", marks=pytest.mark.long),
        pytest.param("case=vm_to_vm+rules=l3", "target_ip", VMS, "namespace", marks=pytest.mark.long),
        pytest.param(
            "case=net_to_vm+rules=l3+tunnel=vxlan", "target_ip", VMS, "namespace",
            marks=[pytest.mark.needs("vxlan"), pytest.mark.long],
        ),
    ],
)  # fmt: skip
def test_use_cases_of_the_test_plan(words: str, vary: str, receivers: set[str], endpoint: str) -> None:
    result = tried("use_case", f"ovs_netdev+{words}", vary, endpoint)
    assert result["reachable"] is None
    assert len(result["used"]) == 1000
    assert min(result["used"]) > 0  # every rule matched packets
    by = result["received_by"]
    assert set(by) == receivers
    # A switch in user space loses packets on a busy machine.
    assert sum(by.values()) == result["received_count"] > 0.1 * result["offered_count"]
    assert min(by.values()) > 0.5 * max(by.values())
    assert result["latency"]["received_count"] > 0


@pytest.mark.needs("openvswitch", "ping", "ethtool")
def test_rules_that_do_not_fit_are_one_sentence() -> None:
    result = tried("full_table")
    assert result["words"].startswith("Open vSwitch refused 1000 rules: ")
    assert "\n" not in result["words"]
    assert result["rules"] == 1000  # no rule of the bundle was added


@pytest.mark.parametrize(("permille", "passing"), [(2, {0.005, 0.05}), *also("long", (10, {0.05}))])
def test_planted_loss_is_found(permille: int, passing: set[float]) -> None:
    """Goals below the planted loss fail at the lowest load. Goals above it have no upper bound."""
    result = tried("planted_loss", str(permille))
    assert result["ratio"] == pytest.approx(permille / 1000, rel=0.05)
    for one in result["bounds"]:
        if one["loss_ratio"] in passing:
            assert one["rate_pps"] is not None, one
            assert one["upper_pps"] is None, one
        else:
            assert one["rate_pps"] is None, one
            assert one["upper_pps"] == pytest.approx(20e3), one


def test_several_senders_at_once() -> None:
    """Senders that share a CPU count as one load that lasts as long as all of them together."""
    result = tried("together", "4")
    assert result["pids"] == 4
    fastest = result["trial"]
    assert fastest["sent_count"] == fastest["received_count"]
    # Each sends for 0.1 s. The load lasts at least as long as one of them and at most as long as the call.
    assert 0.1 <= fastest["elapsed_s"] <= result["took_s"]
    assert set(fastest["received_by"]) == {"server0", "server1", "server2", "server3"}
    for trial in result["paced"]:
        assert trial["sent_count"] == trial["received_count"] == trial["offered_count"]
        assert trial["slip_s"] >= 0
    assert any(trial["offered_count"] == pytest.approx(2400, rel=0.02) for trial in result["paced"])


def test_killed_generator_is_one_sentence() -> None:
    result = tried("killed")
    assert result["words"] == "the packet generator at client0 was killed by signal 9"
    assert result["took_s"] < 1.5
    assert not result["alive"]
    assert result["left"] == ""
