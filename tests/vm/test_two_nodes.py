"""Two lab VMs as two nodes, joined by labkit's cable."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox import Sandbox, clean_sandbox

pytestmark = pytest.mark.needs("root", "qemu", "lab kernel", "tap")

ACROSS = "topology=ipvlan_l3"  # test_two_hosts.py has macvlan, switches and mirrors
RATE_BPS, DELAY_S = 1e8, 0.05  # each way; the full queue of the link adds up to 50 ms, and no more


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Sandbox]:
    with clean_sandbox(tmp_path) as made:
        yield made


def test_rate_and_delay_of_the_link_at_mtu_9000(lab_kernel: str, machine: Sandbox) -> None:
    words = (f"where=vm:{lab_kernel}", "nodes=two", ACROSS, "mtu_bytes=9000", f"link_rate_bps={RATE_BPS:g}")
    # One flow has no other one with which it must overlap, however busy the machine is.
    more = (f"link_delay_s={DELAY_S:g}", "rounds=1", "duration_s=4", "omit_s=1")
    [row] = machine.rows(*words, *more, timeout=500)
    assert (row["status"], row["topology"]) == ("ok", "ipvlan_l3"), row["reason"]
    assert row["kernel"] == row["peer_kernel"] == lab_kernel
    assert row["accelerator"] == row["peer_accelerator"]
    assert row["peer_cpu_s"] > 0
    assert 2 * DELAY_S <= row["rtt_s"] < 1
    # Packets in the switch's buffer at the start of the window may add to 100 Mbit/s.
    assert RATE_BPS / 2 < row["throughput_bps"] < RATE_BPS * 1.1
