"""Open vSwitch with the kernel's datapath, in the session's lab VM, whose kernel has it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from conftest import ROOT, SharedVm

from labkit import live

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "qemu", "full kernel", "openvswitch", "ethtool")

Answer = dict[str, Any]
PATIENCE_S = 400
PINGS = 50
TOPOLOGIES = {
    "plain": "ovs",
    "veth": "ovs+mirrors=2",
    "internal": "ovs+mirrors=2+output=internal",
    "gre": "ovs+mirrors=2+output=gre",
    "vxlan": "ovs+mirrors=2+output=vxlan",
    "vlan": "ovs+mirrors=2+output=vlan",
    "count": "ovs+mirrors=2+readers=count",
    "case": "ovs+case=net_to_vm+rules=l3",
    "tunnel": "ovs+case=vm_to_net+tunnel=vxlan",
}


@pytest.fixture(scope="module")
def result(shared_vm: SharedVm) -> dict[str, Answer]:
    """Return the findings for each switch."""
    requests = [{"name": name} for name in TOPOLOGIES.values()]
    program = [sys.executable, str(ROOT / "tests/lab/build_switches.py"), json.dumps(requests)]
    with live.build("veth", where=shared_vm.where) as net:
        report = net.client0.run("env", f"PYTHONPATH={ROOT}", *program, timeout_s=PATIENCE_S)
    return dict(zip(TOPOLOGIES, json.loads(report), strict=True))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_kernel_datapath_switch(name: str, result: dict[str, Answer]) -> None:
    report = result[name]
    assert "error" not in report, report
    assert (report["reachable"], report["datapath"]) == (None, "system")
    assert "flows" in report
    if name in ("plain", "case", "tunnel"):
        assert "copies_count" not in report["counted"]
        return
    assert report["counted"]["copies_expected_count"] == report["counted"]["copies_count"] == 2 * 2 * PINGS


def test_rules_of_a_case_are_in_the_kernel(result: dict[str, Answer]) -> None:
    """The megaflow of a ping sets both MAC addresses and the TTL. That of the tunnel outputs to VXLAN."""
    assert "set(ipv4(ttl=63))" in result["case"]["flows"]
    assert "set(tunnel(" in result["tunnel"]["flows"]


def test_segmentation_offload_stays_on(result: dict[str, Answer]) -> None:
    """The kernel's datapath forwards frames that are segmented later. Only the userspace datapath cannot."""
    assert "tcp-segmentation-offload: on" in result["plain"]["offloads"]


@pytest.mark.long
@pytest.mark.needs("nft")
def test_search_on_the_kernel_datapath(shared_vm: SharedVm) -> None:
    """Loss of the kernel's datapath shows where packets wait for a CPU; the search ends and says what it found."""
    words = ["topology=ovs", "rounds=1", "flows=10", "sum_s=0.4", "width=0.3", "limit_s=30", "latency=false"]
    program = [sys.executable, "-m", "labkit.cli", "run", "throughput", *words, "--folder", "/tmp/search"]
    with live.build("veth", where=shared_vm.where) as net:
        net.client0.run("env", f"PYTHONPATH={ROOT}", *program, timeout_s=PATIENCE_S)
        lines = net.client0.run("cat", "/tmp/search/rows/64b-10f-1-r0.jsonl")
        net.client0.run("rm", "-r", "/tmp/search")
    rows = [json.loads(line) for line in lines.splitlines()]
    trials = [row for row in rows if row["method"] == "trial"]
    assert trials
    assert all(row["received_frames_count"] <= row["offered_count"] for row in trials)
    results = [row for row in rows if row["method"] == "search"]
    assert [row["loss_goal_ratio"] for row in results] == [0, 0.005]
    for row in results:
        assert row["status"] == "ok" or row["reason"].startswith(
            ("generator-limited: ", "the search did not end")
        )
