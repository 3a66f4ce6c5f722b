"""Guests on taps of an Open vSwitch: the mirrors copy what the guests send."""

from __future__ import annotations

from pathlib import Path

import pytest
from sandbox import sandbox

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
