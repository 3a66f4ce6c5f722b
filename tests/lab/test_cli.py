"""The command line as a new user types it: results, and one sentence for every error."""

import os
import re
from pathlib import Path

import pytest
from sandbox import Sandbox, names_in_run, one_sentence, only_run, sandbox, until

pytestmark = pytest.mark.needs("user namespaces", "iperf3", "ip", "ping", "veth", "bridge")

SHORT = ("duration_s=1", "omit_s=0")


def test_bad_input_leaves_no_run_behind(tmp_path: Path) -> None:
    with sandbox(tmp_path) as machine:
        assert "pairs=0 is outside 1 to 500" in one_sentence(machine.labkit("run", "datapaths", "pairs=0"))
        assert not machine.data.exists()
        refused = machine.labkit("run", "datapaths", "congestion=nonesuch", *SHORT)
        assert "congestion" in one_sentence(refused)


def test_shell(machine: Sandbox) -> None:
    before = machine.interfaces(), names_in_run()
    script = "ip -br addr; ip link show eth0; ping -c1 $LABKIT_SERVER; ip netns exec server1 ip -br addr; ip netns list"
    done = machine.shell(f"{script}; exit 3", "veth_bridge", "pairs=2", "mtu_bytes=9000")
    assert done.returncode == 3, done.stderr
    assert "veth_bridge: you are in client0 (10.1.0.1); its server is 10.2.0.1" in done.stderr
    client, pinged, rest = re.split(r"(?s)(PING .*rtt[^\n]*\n)", done.stdout)
    assert "10.1.0.1/8" in client
    assert "mtu 9000" in client
    assert "1 received, 0% packet loss" in pinged
    assert "10.2.0.2/8" in rest
    assert {line.split()[0] for line in rest.splitlines()[-5:]} == {
        "client0", "server0", "client1", "server1", "between",
    }  # fmt: skip
    assert (machine.interfaces(), names_in_run()) == before
    assert machine.processes() == {}
    assert until(machine.only_namespace, 3)


def test_run_outside_a_project_goes_to_current_data_folder(tmp_path: Path) -> None:
    with sandbox(tmp_path) as machine:
        del machine.environment["LABKIT_DATA"]
        words = ("topology=veth,veth_bridge", "slices=2", "whole_runs=0")
        done = machine.labkit("run", "datapaths", *words)
        machine.data = tmp_path / "here" / "data"
        assert (
            f"labkit: the run is in {os.path.relpath(only_run(machine), tmp_path / 'here')}\n" in done.stderr
        )
        assert "Medians" in done.stdout
        assert "Verdicts" in done.stdout
