"""Queues at a link of 20 Mbit/s on a kernel that has them: fq_codel keeps round trips short, a pfifo does not."""

import subprocess

import pytest
from conftest import SharedVm
from sandbox import LABKIT

from labkit.analysis import load, verdicts
from studies.latency_under_load import finding
from studies.latency_under_load.experiment import BLOAT

pytestmark = [pytest.mark.long, pytest.mark.needs("qemu", "full kernel", "iperf3")]


def test_fair_queue_is_faster_than_a_pfifo_of_1000_packets(shared_vm: SharedVm) -> None:
    pfifo, fair = (next(one for one in BLOAT if one.startswith(name)) for name in ("pfifo-1000", "fq_codel"))
    folder = shared_vm.folder / "latency"
    words = ["preset=bloat", f"change={pfifo}; {fair}", f"where={shared_vm.where}", "rounds=3", "omit_s=2"]
    argv = [*LABKIT, "run", "latency_under_load", *words, "duration_s=3", "idle_s=1", "--folder", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    rows = load.load(folder)
    assert set(rows["status"]) == {"ok"}, set(rows["reason"])
    for table in (verdicts.verdicts(rows), finding.increase_verdicts(rows)):
        assert table.set_index("topology")["word"].to_dict() == {"fq_codel": "faster"}
