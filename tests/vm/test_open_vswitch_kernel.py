"""Open vSwitch with the kernel's datapath, in the session's lab VM, whose kernel has it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from conftest import ROOT, SharedVm
from sandbox import LABKIT

from labkit import live
from labkit.analysis import load
from labkit.analysis.findings import virtual_tap
from labkit.analysis.packet_cost import mirror_tax
from labkit.common import run_folder

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "qemu", "full kernel", "openvswitch", "ethtool")

Answer = dict[str, Any]
PATIENCE_S = 400
PINGS = 20
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
def test_search_in_the_kernel_ends_in_time(shared_vm: SharedVm) -> None:
    """It ends with a rate: that of the datapath, or the most that a generator on an emulated CPU offers."""
    folder = shared_vm.folder / "throughput"
    words = ("topology=ovs", "rounds=1", "flows=100", "sum_s=0.6", "limit_s=20", "latency=false")
    argv = [*LABKIT, "run", "throughput", f"where={shared_vm.where}", *words, "--folder", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    rows = run_folder.read_rows(folder)
    searches = [row for row in rows if row["method"] == "search"]
    assert [row["loss_goal_ratio"] for row in searches] == [0, 0.005]
    for row in searches:
        assert row["search_s"] <= 20 + 2, row  # and what the last trial took longer than the one before
        if row["status"] == "ok":
            assert 0 < row["lower_bound_pps"] <= row["throughput_pps"] * 1.001 < row["upper_bound_pps"]
        else:
            assert row["status"] == "invalid"
            assert "generator-limited: " in row["reason"] or "did not end within 20 s" in row["reason"]
        assert row["lower_bound_pps"], row["reason"]
    trials = [row for row in rows if row["method"] == "trial"]
    assert max(row["offered_pps"] for row in trials if row["lost_count"] == 0) > 1000


@pytest.mark.long
@pytest.mark.needs("iperf3")
def test_cost_of_copies_in_the_kernel(shared_vm: SharedVm) -> None:
    """Every copy is made. A packet costs the machine CPU time, and ovs-vswitchd none, because it forwards nothing."""
    folder = shared_vm.folder / "virtual_tap"
    words = ("topology=ovs", "mirrors=0,4,8", "readers=", "loads=udp:512", "rounds=1", "slices=8")
    argv = [*LABKIT, "run", "virtual_tap", f"where={shared_vm.where}", *words, "--folder", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    rows = load.load(folder)
    assert {row["status"] for row in rows.to_dict("records")} <= {"ok", "invalid"}, list(rows["reason"])
    copied = rows[rows["status"].eq("ok") & rows["topology"].ne("ovs")]
    assert set(copied["topology"]) == {"ovs+mirrors=4", "ovs+mirrors=8"}
    for row in copied.to_dict("records"):
        # The two counts are not read at the same moment.
        assert row["copies_count"] == pytest.approx(row["copies_expected_count"], rel=0.05, abs=100)
    [tax] = mirror_tax.taxes(rows)
    assert (tax.cost, tax.arms) == ("cpu_per_packet_s", ["0", "4", "8"])
    assert tax.copy is not None  # its value is within the noise of an emulated CPU
    assert tax.fixed is not None
    assert tax.fixed.value > 0
    assert list(tax.copies) == pytest.approx([0, 4, 8], rel=0.1)
    [sentence] = virtual_tap.tax_sentences([tax])
    assert ("emulated CPU" in sentence) == (set(rows["accelerator"]) == {"tcg"})
