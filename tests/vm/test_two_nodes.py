"""Two lab VMs as two nodes, joined by labkit's cable."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox import Sandbox, clean_sandbox

pytestmark = pytest.mark.needs("root", "qemu", "lab kernel", "tap")

ACROSS = "topology=macvlan_bridge,ipvlan_l3"  # the other test has a switch
MEASURED = ("ok", "invalid")  # on a loaded machine, flows may not overlap long enough to count
RATE_BPS, DELAY_S = 1e8, 0.05  # each way; the full queue of the link adds up to 50 ms, and no more


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Sandbox]:
    with clean_sandbox(tmp_path) as made:
        yield made


def test_rate_and_delay_of_the_link_at_mtu_9000(lab_kernel: str, machine: Sandbox) -> None:
    words = (f"where=vm:{lab_kernel}", "nodes=two", ACROSS, "mtu_bytes=9000", f"link_rate_bps={RATE_BPS:g}")
    more = (f"link_delay_s={DELAY_S:g}", "pairs=2", "duration_s=4", "omit_s=1")
    rows = machine.rows(*words, *more, timeout=500)
    assert [row["status"] in MEASURED for row in rows] == [True] * 3, [row["reason"] for row in rows]
    assert {row["topology"] for row in rows} == set(ACROSS.removeprefix("topology=").split(","))
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


@pytest.mark.needs("openvswitch")
def test_mirror_leaves_the_host(lab_kernel: str, machine: Sandbox) -> None:
    """Below the rate of the link every copy arrives at the monitor. Above it, the link is full of copies and the rest
    is lost on it. The monitored flow stays on its host. One CPU, because the first tunnel patches the kernel's code."""
    link_bps, length_bytes = 1e7, 1024
    words = (
        f"where=vm:{lab_kernel},cpus=1",
        "nodes=two",
        f"link_rate_bps={link_bps:g}",
        "topology=ovs",
        "mirrors=1",  # test_two_hosts compares it with mirrors=0
    )
    loads = [f"udp:{length_bytes}@{rate_bps:.0f}" for rate_bps in (link_bps / 2, 3 * link_bps)]
    more = ("readers=count", "output=gre", f"loads={','.join(loads)}", "rounds=1", "duration_s=3", "omit_s=0")
    done = machine.labkit("run", "virtual_tap", *words, *more, "--json", timeout=500)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(row["status"] in MEASURED for row in rows), [row["reason"] for row in rows]
    assert not any("contradiction" in (row["reason"] or "") for row in rows), [row["reason"] for row in rows]
    assert {(row["kernel"], row["peer_kernel"], row["nodes"]) for row in rows} == {
        (lab_kernel, lab_kernel, "two")
    }
    copied = {row["rate_bps"]: row for row in rows}
    low, high = copied[link_bps / 2], copied[3 * link_bps]
    assert min(low["copies_expected_count"], low["copies_count"]) > 0
    # A slow host measures for a fraction of a second, and dozens of copies are under way at its end.
    assert low["copies_count"] == pytest.approx(low["copies_expected_count"], rel=0.1, abs=50)
    assert low["copies_unread_count"] == 0
    lost = high["copies_expected_count"] - high["copies_count"]
    assert high["copies_dropped_count"] == pytest.approx(lost, rel=0.1, abs=50)
    on_the_link = length_bytes + 28 + 14 + 42  # UDP and IP, Ethernet, GRE with a key in IP and Ethernet
    arrived_bps = high["copies_count"] * on_the_link * 8 / high["window_s"]
    assert arrived_bps < 1.2 * link_bps
    if high["throughput_bps"] > 2 * link_bps:  # a busy host cannot always offer more than the link takes
        assert arrived_bps > link_bps / 2
