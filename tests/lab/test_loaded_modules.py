"""A plain run imports what it uses: other generators, observers, topologies, kinds of changes and lab VMs stay out."""

import os
import subprocess
from pathlib import Path

import pytest
from conftest import IN_A_NAMESPACE, ROOT
from sandbox import LABKIT

# Every Python of the run writes the names of its modules when it ends.
LISTING = """
import atexit, os, pathlib, sys
write = lambda: pathlib.Path(__file__).with_name(f"{os.urandom(4).hex()}.modules").write_text(" ".join(sys.modules))
atexit.register(write)
"""
MOST_MEASURING, MOST_OF_EACH = 90, 112  # in the process that measures; in each process, with the verdict
OTHERS = (
    "studies", "labkit.measure.traffic.trex", "labkit.measure.traffic.packet_sender", "labkit.measure.observers.perf",
    "labkit.measure.observers.ftrace", "labkit.measure.topologies.open_vswitch.topology", "labkit.measure.hosts.vm",
    "labkit.measure.experiments.change_kinds.sysctl", "labkit.measure.experiments.two_hosts", "labkit.analysis.flame",
    "labkit.measure.topologies.network.redirects", "labkit.measure.topologies.network.encryption",
    "labkit.measure.topologies.user_mode", "labkit.system.bpf",
)  # fmt: skip


@pytest.mark.needs("user namespaces", "iperf3", "ip", "ping", "veth", "bridge")
def test_plain_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LISTING)
    words = ("datapaths", "topology=veth_bridge", "rounds=1", "slices=1", "duration_s=1", "omit_s=0")
    argv = [*IN_A_NAMESPACE, *LABKIT, "run", *words, "--folder", tmp_path / "run"]
    listed = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run(argv, cwd=ROOT, env=listed, check=True, timeout=120, stdout=subprocess.DEVNULL)
    processes = [
        {one for one in path.read_text().split() if one.partition(".")[0] in ("labkit", "studies")}
        for path in tmp_path.glob("*.modules")
    ]
    [measuring] = [one for one in processes if "labkit.measure.agent" in one]
    every = set().union(*processes)
    assert not [name for name in every if name.startswith(OTHERS)]
    assert len(measuring) <= MOST_MEASURING
    assert max(map(len, processes)) <= MOST_OF_EACH
