"""Extreme loads: slow pacing, one direction that is a bottleneck, and more pairs than CPUs."""

import statistics

import pytest
from sandbox import Sandbox, also

pytestmark = [pytest.mark.long, pytest.mark.needs("user namespaces", "iperf3", "ping", "ip")]


@pytest.mark.parametrize("words", [("protocol=udp", "rate_bps=100000"), ("rate_bps=1e6",)])
def test_slow_load_window(words: tuple[str, ...], machine: Sandbox) -> None:
    [row] = machine.rows(*words, "duration_s=2", "omit_s=0")
    assert row["status"] == "ok", row["reason"]
    assert row["doubts"] is None or "hypervisor" in row["doubts"], row["doubts"]
    assert row["window_s"] > 1.5
    assert row["throughput_bps"] == pytest.approx(row["rate_bps"], rel=0.2)
    assert row["received_bytes"] > 0


@pytest.mark.parametrize("protocol", ["udp", *also("exhaustive", "tcp")])
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


@pytest.mark.parametrize(
    ("protocol", "direction"),
    [("udp", "forward"), ("tcp", "both"),
     *also("exhaustive", ("tcp", "reverse"), ("udp", "reverse"), ("tcp", "forward"))],
)  # fmt: skip
def test_slices_of_each_direction(protocol: str, direction: str, machine: Sandbox) -> None:
    """Only the way to the server is a bottleneck, and whoever sends is held while the other arm has its slice."""
    narrow = "change=narrow: qdisc tbf rate 20mbit burst 10kb latency 20ms at between:port1"
    words = (narrow, "topology=veth_bridge", f"protocol={protocol}", f"direction={direction}")
    rows = machine.rows(*words, "slices=8", "whole_runs=0")
    assert {(row["method"], row["status"], row["reason"]) for row in rows} == {("slice", "ok", None)}
    column = {"forward": "throughput_bps", "reverse": "throughput_bps", "both": "forward_bps"}[direction]

    def usual_bps(name: str, column: str) -> float:
        return statistics.median(row[column] for row in rows if row["arm"] == name)

    assert usual_bps("veth_bridge", column) > 100e6
    if direction == "reverse":
        assert usual_bps("veth_bridge+narrow", column) > 100e6
    else:
        assert 10e6 < usual_bps("veth_bridge+narrow", column) < 22e6
    if direction == "both":
        assert usual_bps("veth_bridge+narrow", "reverse_bps") > 100e6
        for row in rows:
            assert row["throughput_bps"] == pytest.approx(row["forward_bps"] + row["reverse_bps"])


@pytest.mark.exhaustive  # test_topologies.py builds 260 pairs, and sees that no entry is learned
@pytest.mark.needs("veth", "bridge", "macvlan", "vxlan")
def test_five_arms_of_128_pairs(machine: Sandbox) -> None:
    """The machine's neighbour table has room for four arms if its entries are learned (neigh.default.gc_thresh3)."""
    topologies = "veth_bridge,veth,macvlan_bridge,macvlan_vepa,vxlan"
    rows = machine.rows(f"topology={topologies}", "pairs=128", "protocol=ping", "duration_s=1")
    assert {(row["status"], row["reason"]) for row in rows} == {("ok", None)}
    assert len(rows) == 6
