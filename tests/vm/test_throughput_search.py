"""Searches on a datapath with planted loss (netem, which the kernel of a lab VM has)."""

from __future__ import annotations

import pytest
from worlds import Row, world

from labkit.common import run_folder

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "nft", "qemu", "full kernel")

# 1 s at 1 to 2.5 kpps: of 0.2 % 2 to 5 packets are lost in a trial, of 1 % 10 to 25.
WORDS = (
    "topology=veth_bridge", "frame_bytes=64", "rounds=1", "latency=false", "least_rate=1500pps",
    "most_rate=2500pps", "trial_s=1", "sum_s=3", "limit_s=90",
)  # fmt: skip
LOSSY = [f"change={name}: qdisc netem loss {share}% limit 10000 at between:port1" for name, share in
         (("little", "0.2"), ("much", "1"))]  # fmt: skip


@pytest.fixture(scope="module", params=LOSSY, ids=["0.2 %", "1 %"])
def searched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, full_kernel: str
) -> dict[float, Row]:
    """The row of each ratio of loss that was searched for, of the lossy arm."""
    with world(tmp_path_factory.mktemp("lossy"), user=False) as made:
        folder = made.folder / "run"
        words = (f"where=vm:{full_kernel}", *WORDS)
        done = made.labkit("run", "throughput", *words, request.param, "--folder", str(folder), timeout=900)
        assert done.returncode == 0, done.stderr
        rows = [row for row in run_folder.read_rows(folder) if row["method"] == "search" and row["change"]]
    return {row["loss_goal_ratio"]: row for row in rows}


def test_loss_at_every_rate_has_no_ndr_and_a_pdr_only_above_it(searched: dict[float, Row]) -> None:
    ndr, pdr = searched[0.0], searched[0.005]
    assert ndr["status"] == "invalid"
    assert "the lowest load, lost more than the goal" in ndr["reason"]
    if ndr["change"] == "little":
        assert pdr["status"] == "ok", pdr["reason"]
        assert pdr["throughput_pps"] == pytest.approx(2500, rel=0.02)
    else:
        assert pdr["status"] == "invalid"
        assert "the lowest load, lost more than the goal" in pdr["reason"]
