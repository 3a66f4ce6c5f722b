"""Searches in a lab VM on a path whose loss netem plants: the same share at every load."""

import subprocess

import pytest
from conftest import SharedVm
from sandbox import LABKIT

from labkit.common import run_folder

pytestmark = [pytest.mark.long, pytest.mark.needs("namespaces", "ip", "ping", "nft", "qemu", "full kernel")]

# At 1,000 packets a second, a search sees four in a thousand once in 3,000 times not at all in SUM_S.
SUM_S = 2
CHANGES = {
    "four": "qdisc netem loss 0.4% at between:port1",
    "percent": "qdisc netem loss 1% at between:port1",
}
LOSS = {"four": 0.004, "percent": 0.01}


def test_planted_loss_at_every_load_gives_no_rate(shared_vm: SharedVm) -> None:
    """An emulated generator is often late, and then says so. Never is there a rate with less loss than netem's."""
    folder = shared_vm.folder / "loss"
    words = ["rounds=1", f"sum_s={SUM_S}", "passes=1", "limit_s=15", "max_rate=8kpps", "latency=false"]
    change = "; ".join(f"{name}: {text}" for name, text in CHANGES.items())
    argv = [*LABKIT, "run", "throughput", f"where={shared_vm.where}", *words, f"change={change}"]
    done = subprocess.run(
        [*argv, "--folder", str(folder)], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    searches = [row for row in run_folder.read_rows(folder) if row["method"] == "search" and row["change"]]
    assert {row["change"] for row in searches} == set(CHANGES)
    for row in searches:
        loss, reason = LOSS[row["change"]], str(row["reason"])
        if row["loss_goal_ratio"] > loss:
            assert row["constant_loss_ratio"] is None, reason
            continue
        assert (row["status"], row["throughput_pps"]) == ("invalid", None), row
        if row["constant_loss_ratio"] is None:
            words = ("generator-limited: ", "lost more than the goal", "did not end within")
            assert any(one in reason for one in words), reason
        else:
            assert row["constant_loss_ratio"] == pytest.approx(loss, rel=0.4)
            assert "% on average up to " in reason
