"""Open vSwitch with the kernel's datapath, in the session's lab VM, whose kernel has it."""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import SharedVm, printed_at
from sandbox import LABKIT, also, clean_sandbox, rows_on_disk, until

from labkit import live
from labkit.measure import topologies

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
CASES = {"case": "ovs+case=net_to_vm+rules=l3", "tunnel": "ovs+case=vm_to_net+tunnel=vxlan"}
TOPOLOGIES = {
    **CASES,
    "veth": "ovs+mirrors=2+readers=count",
    **{output: f"ovs+mirrors=2+output={output}" for output in ("gre", "internal", "vxlan", "vlan")},
}


@pytest.fixture(scope="module")
def result(shared_vm: SharedVm, request: pytest.FixtureRequest) -> dict[str, Answer]:
    """Return the findings for each switch that is tested."""
    items = [
        item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")
    ]
    names = [*{**CASES, **{item.callspec.params["name"]: None for item in items}}]
    requests = [{"name": TOPOLOGIES[name]} for name in names]
    answers = printed_at(shared_vm.where, "lab/build_switches.py", json.dumps(requests))
    return dict(zip(names, answers, strict=True))


@pytest.mark.parametrize("name", [*CASES, "veth", "gre", *also("exhaustive", "internal", "vxlan", "vlan")])
def test_kernel_datapath_switch(name: str, result: dict[str, Answer]) -> None:
    report = result[name]
    assert "error" not in report, report
    assert (report["reachable"], report["datapath"]) == (None, "system")
    assert "flows" in report
    if name in CASES:
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
    assert "tcp-segmentation-offload: on" in result["case"]["offloads"]


def seen(at: live.Endpoint, steps: int) -> dict[str, list[str]]:
    """Return what the lab VM has of Open vSwitch, by kind, after at most so many steps of waiting for no ports."""
    lines = at.run("sh", "-c", SEEN, "sh", str(steps)).splitlines()
    return {words[0]: words[1:] for words in map(str.split, lines)}


def left(where: str) -> dict[str, list[str]]:
    """Return what the lab VM has of Open vSwitch while nothing is measured in it."""
    with live.machine(where) as there:
        return seen(there.endpoints[topologies.MACHINE], WAIT_STEPS)


@pytest.mark.exhaustive  # test_vm_lifetimes kills runs in lab VMs as well
def test_killed_runs_leave_nothing_in_the_lab_vm(shared_vm: SharedVm, tmp_path: Path) -> None:
    """One is killed at a random moment, the last one when it measures. A live switch shows what would be left."""
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
        for number, moment_s in enumerate((8 * rng.random(), None)):
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
