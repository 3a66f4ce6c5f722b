"""Extreme loads: both ends in one namespace, slow pacing, and more pairs than CPUs."""

import pytest
from sandbox import Sandbox, also

pytestmark = pytest.mark.needs("user namespaces", "iperf3", "ping", "ip")


def test_both_ends_in_one_namespace(machine: Sandbox) -> None:
    [row] = machine.rows("topology=loopback", "protocol=udp", "family=6", "duration_s=1", "omit_s=0")
    assert row["status"] == "ok", row["reason"]


@pytest.mark.long
@pytest.mark.parametrize("words", [("protocol=udp", "rate_bps=100000"), ("rate_bps=1e6",)])
def test_slow_load_window(words: tuple[str, ...], machine: Sandbox) -> None:
    [row] = machine.rows(*words, "duration_s=2", "omit_s=0")
    assert row["status"] == "ok", row["reason"]
    assert row["doubts"] is None or "hypervisor" in row["doubts"], row["doubts"]
    assert row["window_s"] > 1.5
    assert row["throughput_bps"] == pytest.approx(row["rate_bps"], rel=0.2)
    assert row["received_bytes"] > 0


@pytest.mark.parametrize("protocol", ["udp", *also("long", "tcp")])
def test_each_direction_has_its_own_throughput(protocol: str, machine: Sandbox) -> None:
    """Only the way to the server is a bottleneck."""
    narrow = "change=narrow: qdisc tbf rate 20mbit burst 10kb latency 20ms at between:port1"
    words = (narrow, "topology=veth_bridge", f"protocol={protocol}", "rate_bps=40e6", "duration_s=1")
    rows = {row["arm"]: row for row in machine.rows(*words, "direction=both")}
    row, free = rows["veth_bridge+narrow"], rows["veth_bridge"]
    assert row["forward_bps"] == pytest.approx(19e6, rel=0.1)
    for bps in (row["reverse_bps"], free["forward_bps"], free["reverse_bps"]):
        assert bps == pytest.approx(40e6, rel=0.1)
    assert row["throughput_bps"] == pytest.approx(row["forward_bps"] + row["reverse_bps"])


@pytest.mark.long
def test_throughput_of_64_pairs(machine: Sandbox) -> None:
    [row] = machine.rows("pairs=64", "duration_s=3", "omit_s=0")
    if row["status"] == "invalid":
        assert "ran together for only" in row["reason"]
    else:
        assert row["throughput_bps"] == pytest.approx(row["received_bytes"] * 8 / row["window_s"])
        assert row["window_s"] >= 1.5


@pytest.mark.long
@pytest.mark.needs("veth", "bridge", "macvlan", "vxlan")
def test_five_arms_of_128_pairs(machine: Sandbox) -> None:
    """The machine's neighbour table has room for four arms if its entries are learned (neigh.default.gc_thresh3)."""
    topologies = "veth_bridge,veth,macvlan_bridge,macvlan_vepa,vxlan"
    rows = machine.rows(f"topology={topologies}", "pairs=128", "protocol=ping", "duration_s=1")
    assert {(row["status"], row["reason"]) for row in rows} == {("ok", None)}
    assert len(rows) == 6
