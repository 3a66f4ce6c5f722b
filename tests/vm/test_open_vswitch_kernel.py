"""Open vSwitch with the kernel's datapath, in the session's lab VM, whose kernel has it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, SharedVm
from sandbox import LABKIT, clean_sandbox, rows_on_disk, until

from labkit import live
from labkit.analysis import load
from labkit.common import run_folder
from labkit.measure import topologies
from labkit.measure.experiments.throughput_search import mlrsearch
from studies.virtual_tap import finding as virtual_tap
from studies.virtual_tap import mirror_tax

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "qemu", "full kernel", "openvswitch", "ethtool")

Answer = dict[str, Any]
PATIENCE_S = 400
PINGS = 20
SEED = int(os.environ.get("LABKIT_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 31)
# What a lab VM has of Open vSwitch, in whatever namespace: the kernel's module counts the ports of all datapaths, and
# the scheduler knows the threads of all processes. Ports of a removed namespace go away a moment later.
SEEN = """
    count() { cat /sys/module/openvswitch/refcnt 2>/dev/null || echo 0; }
    for attempt in $(seq $1); do [ "$(count)" = 0 ] && break; sleep 0.1; done
    echo ports $(count)
    echo programs $(grep -oE ' (ovs-vswitchd|ovsdb-server|iperf3) ' /sys/kernel/debug/sched/debug | sort -u)
    echo folders $(find /dev/shm /run -name 'labkit-*')
    echo interfaces $(ls /sys/class/net)
"""
WAIT_STEPS = 200
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
    assert report["counted"]["copies_of_mirrors"] == [2 * PINGS] * 2


def test_rules_of_a_case_are_in_the_kernel(result: dict[str, Answer]) -> None:
    """The megaflow of a ping sets both MAC addresses and the TTL. That of the tunnel outputs to VXLAN."""
    assert "set(ipv4(ttl=63))" in result["case"]["flows"]
    assert "set(tunnel(" in result["tunnel"]["flows"]


def test_segmentation_offload_stays_on(result: dict[str, Answer]) -> None:
    """The kernel's datapath forwards frames that are segmented later. Only the userspace datapath cannot."""
    assert "tcp-segmentation-offload: on" in result["plain"]["offloads"]


def _run(shared_vm: SharedVm, experiment: str, *parameters: str) -> Path:
    """Run an experiment in the lab VM, and return the folder of its rows."""
    folder = shared_vm.folder / experiment
    argv = [*LABKIT, "run", experiment, f"where={shared_vm.where}", *parameters, "--folder", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
@pytest.mark.needs("nft")
def test_search_in_the_kernel_ends_in_time(shared_vm: SharedVm) -> None:
    """It ends with a rate: that of the datapath, or the most that a generator on an emulated CPU offers. If the host is
    busy, no trial may be without loss in time."""
    words = ("topology=ovs", "rounds=1", "flows=100", "sum_s=0.6", "limit_s=20", "latency=false")
    rows = run_folder.read_rows(_run(shared_vm, "throughput", *words))
    searches = [row for row in rows if row["method"] == "search"]
    assert [row["loss_goal_ratio"] for row in searches] == [0, 0.005]
    for row in searches:
        # What the last trial took longer than the one before, and the trials that look for loss at every load
        assert row["search_s"] <= 20 + 2 + mlrsearch.LONGEST_S, row
        if row["status"] == "ok":
            assert 0 < row["throughput_pps"] <= row["lower_bound_pps"] * 1.001 < row["upper_bound_pps"]
        else:
            assert row["status"] == "invalid"
            assert "generator-limited: " in row["reason"] or "did not end within 20 s" in row["reason"]
        assert row["lower_bound_pps"] or "lay between 0 and" in row["reason"], row["reason"]
    trials = [row for row in rows if row["method"] == "trial"]
    assert max(row["offered_pps"] for row in trials) > 1000
    if any(row["lower_bound_pps"] for row in searches if not row["loss_goal_ratio"]):
        assert max(row["offered_pps"] for row in trials if row["lost_count"] == 0) > 1000


@pytest.mark.long
@pytest.mark.needs("iperf3")
def test_cost_of_copies_in_the_kernel(shared_vm: SharedVm) -> None:
    """Every copy is made. A packet costs the machine CPU time, and ovs-vswitchd none, because it forwards nothing."""
    words = ("topology=ovs", "mirrors=0,4,8", "readers=", "loads=udp:512", "rounds=1", "slices=8")
    rows = load.load(_run(shared_vm, "virtual_tap", *words))
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


def seen(at: live.Endpoint, steps: int) -> dict[str, list[str]]:
    """Return what the lab VM has of Open vSwitch, by kind, after at most so many steps of waiting for no ports."""
    lines = at.run("sh", "-c", SEEN, "sh", str(steps)).splitlines()
    return {words[0]: words[1:] for words in map(str.split, lines)}


def left(where: str) -> dict[str, list[str]]:
    """Return what the lab VM has of Open vSwitch while nothing is measured in it."""
    with live.machine(where) as there:
        return seen(there.endpoints[topologies.MACHINE], WAIT_STEPS)


def test_killed_runs_leave_nothing_in_the_lab_vm(shared_vm: SharedVm, tmp_path: Path) -> None:
    """Two are killed at random moments, the last one when it measures. A live switch shows what would be left."""
    print(f"LABKIT_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    # Other tests in this VM may have loaded modules whose interfaces stay.
    before = left(shared_vm.where)
    assert (before["ports"], before["programs"]) == (["0"], [])
    with live.build("ovs+mirrors=1", where=shared_vm.where) as net:
        present = seen(net.client0, 1)
    assert int(present["ports"][0]) > 2
    assert {"ovs-vswitchd", "ovsdb-server"} <= set(present["programs"])
    assert set(present["folders"]) > set(before["folders"])
    words = ("topology=ovs+mirrors=2", "rounds=50", "slices=2", "whole_runs=0")
    with clean_sandbox(tmp_path) as machine:
        for number, moment_s in enumerate((8 * rng.random(), 8 * rng.random(), None)):
            folder = shared_vm.folder / f"killed{number}"
            argv = [*LABKIT, "run", "datapaths", f"where={shared_vm.where}", *words, "--folder", str(folder)]
            program = machine.start(*argv)
            if moment_s is None:
                assert until(lambda folder=folder: bool(rows_on_disk(folder)), PATIENCE_S)  # type: ignore[misc]
            else:
                time.sleep(moment_s)
            assert program.poll() is None, program.communicate()
            os.kill(program.pid, signal.SIGKILL)
            program.communicate()
            assert until(lambda: not machine.processes(), 5), (moment_s, machine.processes())
            assert left(shared_vm.where) == before, moment_s
            assert [list(one.iterdir()) for one in machine.empty] == [[], [], []]
        rows = [json.loads(line) for text in rows_on_disk(folder).values() for line in text.splitlines()]
    assert {row["status"] for row in rows} <= {"ok", "invalid"}, [row["reason"] for row in rows]
