"""Guests on taps of an Open vSwitch: the mirrors copy what the guests send."""

from __future__ import annotations

from pathlib import Path

import pytest
from sandbox import sandbox

from labkit.common import run_folder

pytestmark = pytest.mark.needs("namespaces", "qemu", "lab kernel", "openvswitch", "tap", "root")


def test_guests_on_a_switch(lab_kernel: str, tmp_path: Path) -> None:
    with sandbox(tmp_path, user=False) as machine:
        guest = f"guest={lab_kernel},offloads=off"
        words = ("endpoint=guest", guest, "protocol=ping", "rounds=1", "duration_s=1")
        rows = machine.rows("topology=ovs_netdev+mirrors=1", *words, timeout=400)
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["endpoint"] for row in rows} == {"guest"}
    for row in rows:
        assert row["copies_expected_count"] > 0
        assert row["copies_count"] == pytest.approx(row["copies_expected_count"], abs=4)


@pytest.mark.long
@pytest.mark.needs("nft", "ping")
@pytest.mark.parametrize("case", ["net_to_vm", "vm_to_vm"])
def test_vms_of_the_test_plan_are_guests(lab_kernel: str, tmp_path: Path, case: str) -> None:
    """The network sends to two guests, or they send to each other; the rules spread the load over both."""
    with sandbox(tmp_path, user=False) as machine:
        folder = machine.folder / "run"
        words = (
            f"case={case}",
            "rules=l3",
            "rules_count=16",
            "tunnel=off",
            "pairs=2",
            "flows=64",
            "rounds=1",
        )
        search = (
            "frame_bytes=64",
            "flow_profile=turns",
            "sum_s=0.4",
            "width=0.3",
            "limit_s=20",
            "least_rate=500pps",
        )
        guests = ("endpoint=guest", f"guest={lab_kernel},offloads=off")
        done = machine.labkit(
            "run", "ovs_test_plan", *words, *search, *guests, "--folder", str(folder), timeout=500
        )
        assert done.returncode == 0, done.stderr
        rows = run_folder.read_rows(folder)
    trials = [row for row in rows if row["method"] == "trial" and row["phase"] == "search"]
    assert trials
    for row in trials:
        assert set(row["received_by"]) == {"vm0", "vm1"}
        assert sum(row["received_by"].values()) == row["received_frames_count"] <= row["offered_count"]
    slowest = min(trials, key=lambda row: row["offered_pps"])
    assert min(slowest["received_by"].values()) > 0.5 * max(slowest["received_by"].values())
