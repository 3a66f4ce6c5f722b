"""Guests on taps of an Open vSwitch: mirrors copy what the guests send, and guests are VMs of the OVS test plan."""

from pathlib import Path

import pytest
from sandbox import sandbox

from labkit.common import run_folder

pytestmark = pytest.mark.needs("namespaces", "qemu", "lab kernel", "openvswitch", "tap", "root")


def test_guests_on_a_switch(lab_kernel: str, tmp_path: Path) -> None:
    with sandbox(tmp_path, user=False) as machine:
        guest = f"guest={lab_kernel},offloads=off"
        load = ("protocol=udp", "length_bytes=800", "rate_bps=5e5", "slices=0", "duration_s=2", "omit_s=0")
        words = ("topology=ovs_netdev+mirrors=1", "endpoint=guest", guest, "rounds=1")
        [row] = machine.rows(*words, *load, timeout=400)
    assert (row["status"], row["reason"], row["endpoint"]) == ("ok", None, "guest")
    assert row["received_count"] > 20
    assert row["guest_kernel"] == lab_kernel
    assert row["copies_expected_count"] > 0
    # Packets are in flight at either edge of the window.
    assert row["copies_count"] == pytest.approx(row["copies_expected_count"], rel=0.1, abs=10)


@pytest.mark.exhaustive
@pytest.mark.needs("nft")
def test_vms_of_the_test_plan_are_guests(lab_kernel: str, tmp_path: Path) -> None:
    """The rules carry frames from the network, which is a namespace, into guests."""
    words = (
        "case=net_to_vm", "rules=l3", "tunnel=off", "endpoint=guest", f"guest={lab_kernel},offloads=off",
        "pairs=2", "rules_count=16", "flows=16", "flow_profile=turns", "frame_bytes=128", "rounds=1", "sum_s=0.4",
        "passes=1", "width=0.3", "limit_s=15", "min_rate=200pps", "max_rate=2kpps",
    )  # fmt: skip
    with sandbox(tmp_path, user=False) as machine:
        folder = machine.folder / "run"
        done = machine.labkit("run", "ovs_test_plan", *words, "--folder", str(folder), timeout=500)
        assert done.returncode == 0, done.stderr
        rows = run_folder.read_rows(folder)
    trials = [row for row in rows if row["method"] == "trial" and row["phase"] == "search"]
    assert trials
    assert {(row["endpoint"], row["guest_kernel"] is None) for row in rows} == {("guest", False)}
    for row in trials:
        assert row["offered_count"] >= row["sent_count"] >= row["received_frames_count"]
        assert set(row["received_by"]) == {"vm0", "vm1"}
    # Both guests receive their share: the rules send the lowest bits of the address to them in turn.
    best = max(trials, key=lambda row: row["received_frames_count"])
    assert min(best["received_by"].values()) > 0.2 * best["received_frames_count"] > 0
