"""Two lab VMs as two nodes, joined by labkit's cable."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox import Sandbox, clean_sandbox

pytestmark = pytest.mark.needs("root", "qemu", "lab kernel", "tap")

ACROSS = "topology=ipvlan_l3"  # test_two_hosts.py has macvlan, switches and mirrors
MEASURED = ("ok", "invalid")  # on a loaded machine, flows may not overlap long enough to count
RATE_BPS, DELAY_S = 1e8, 0.05  # each way; the full queue of the link adds up to 50 ms, and no more


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Sandbox]:
    with clean_sandbox(tmp_path) as made:
        yield made


def test_rate_and_delay_of_the_link_at_mtu_9000(lab_kernel: str, machine: Sandbox) -> None:
    words = (f"where=vm:{lab_kernel}", "nodes=two", ACROSS, "mtu_bytes=9000", f"link_rate_bps={RATE_BPS:g}")
    more = (f"link_delay_s={DELAY_S:g}", "pairs=2", "rounds=2", "duration_s=4", "omit_s=1")
    rows = machine.rows(*words, *more, timeout=500)
    assert [row["status"] in MEASURED for row in rows] == [True] * 2, [row["reason"] for row in rows]
    assert {row["topology"] for row in rows} == {"ipvlan_l3"}
    for row in rows:
        assert row["kernel"] == row["peer_kernel"] == lab_kernel
        assert row["accelerator"] == row["peer_accelerator"]
        assert row["peer_cpu_s"] > 0
        assert row["rtt_s"] is None or 2 * DELAY_S <= row["rtt_s"] < 1
    assert any(row["rtt_s"] for row in rows)
    measured_bps = [row["throughput_bps"] for row in rows if row["status"] == "ok"]
    assert measured_bps, [row["reason"] for row in rows]
    # Packets in the switch's buffer at the start of the window may add to 100 Mbit/s.
    assert max(measured_bps) < RATE_BPS * 1.1
    assert max(measured_bps) > RATE_BPS / 2
