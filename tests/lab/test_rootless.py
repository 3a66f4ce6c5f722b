"""Unprivileged use: the same experiments in a user namespace, and one sentence for what cannot work there."""

import json
import sys
from pathlib import Path

import pytest
from sandbox import ORDINARY, Sandbox, also, machine_fixture, one_sentence, sandbox

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("user namespaces", "iperf3", "ip", "ping", "veth", "bridge"),
]

machine = machine_fixture("module", words=ORDINARY, nics=["nic0"])


def test_machine_is_without_privilege(machine: Sandbox) -> None:
    """The tests below are only meaningful if this holds."""
    done = machine.run("ip", "link", "add", "one", "type", "dummy")
    assert (done.returncode, "Operation not permitted" in done.stderr) == (2, True)


@pytest.mark.needs("macvlan", "vxlan")
@pytest.mark.parametrize("protocol", ["udp", *also("long", "ping")])
def test_topologies_work_in_a_user_namespace(protocol: str, machine: Sandbox) -> None:
    names = ("veth_bridge", "macvlan_bridge", "vxlan", "veth_routed", "loopback")
    words = [f"topology={','.join(names)}", f"protocol={protocol}", "duration_s=1", "omit_s=0"]
    words += ["slices=4", "whole_runs=0"] if protocol != "ping" else []
    rows = machine.rows(*words)
    assert {(row["topology"], row["status"], row["reason"]) for row in rows} == {
        (name, "ok", None) for name in names
    }
    metric = "latency_p50_s" if protocol == "ping" else "throughput_bps"
    for arm in {row["arm"] for row in rows}:  # a single slice may be starved on a busy machine
        assert max(row[metric] for row in rows if row["arm"] == arm) > 0
    assert all(row["sysctl_digest"] for row in rows)


def test_packets_are_captured(machine: Sandbox) -> None:
    program = (
        "from labkit import live\n"
        "with live.build('veth') as net:\n"
        "    with net.capture() as seen:\n"
        "        net.client0.run('ping', '-c3', '-i0.01', net.server0.address)\n"
        "print(*(one.captured_count for one in seen.counts.values()), seen.doubt, len(seen.packets))"
    )
    done = machine.run(sys.executable, "-c", program)
    assert (done.returncode, done.stdout) == (0, "6 6 None 12\n"), done.stderr


def test_what_needs_root_is_said(machine: Sandbox) -> None:
    lines = (
        "run datapaths rounds=1 slices=1 whole_runs=0 --json",
        "monitor nic0 --seconds 1",
        "doctor --json",
    )
    ran, monitored, doctor = machine.commands(*lines).values()
    [line] = [line for line in ran.stderr.splitlines() if "not root" in line]
    assert ran.returncode == doctor.returncode == 0, ran.stderr
    assert "no NIC of this machine can be a parent" in line
    sentence = "interfaces of this machine cannot be monitored without privilege: run labkit as root"
    assert sentence in one_sentence(monitored)
    report = {one["name"]: one["available"] for one in json.loads(doctor.stdout)["capabilities"]}
    assert (report["root"], report["NIC as parent"], report["veth"]) == (False, False, True)


@pytest.mark.needs("macvlan")
def test_nic_as_parent_is_refused(machine: Sandbox) -> None:
    before = machine.interfaces()
    done = machine.labkit("run", "datapaths", "topology=macvlan_bridge", "parent=nic0")
    assert (
        "parent=nic0 is a NIC of the machine, and only root may use it: run as root, or leave parent out"
        in one_sentence(done)
    )
    assert machine.interfaces() == before


def test_no_namespaces_is_one_sentence(tmp_path: Path) -> None:
    """This is the situation in a container, or where a system forbids user namespaces."""
    nothing = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--"]
    with sandbox(tmp_path, nothing) as machine:
        for topology in ("veth_bridge", "ovs_netdev+mirrors=1"):
            sentence = one_sentence(machine.labkit("run", "datapaths", f"topology={topology}"))
            assert "is not permitted to create a namespace: run labkit as root, or allow user" in sentence
