"""A load test with the packet generator: counts are exact in both directions at once, and a planted limit ends it."""

from pathlib import Path

import pytest
from sandbox import sandbox

from labkit.analysis import load
from labkit.common import run_folder
from studies.load_test import figure, finding

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "nft", "veth", "bridge", "ethtool")

SHORT = ["warmup_s=0.5", "ramp_s=2", "hold_s=0.5", "step_s=0.5", "target=20kpps", "seed=1"]
SLOW = "change=slow: qdisc tbf rate 20mbit burst 20kb limit 20kb at between:port1"  # to the server
WAYS = {"client0→server0", "server0→client0"}
# How a test ends if other machines take the CPUs in all tries of a step.
TAKEN = ("generator-limited: ", "disturbed: ")


@pytest.mark.alone
def test_ramp_in_both_directions(tmp_path: Path) -> None:
    """Imix at 5, 10, 15 and 20 kpps from each side is 15 to 58 Mbit/s, beside 997 probes per second."""
    with sandbox(tmp_path, user=False) as box:
        done = box.labkit(
            "run", "load_test", "topology=veth_bridge", SLOW, *SHORT, "--folder", f"{tmp_path}/run", timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        rows = run_folder.read_rows(tmp_path / "run")
    results = {row["arm"]: row for row in rows if row["part"] == "cost"}
    free, slow = results["veth_bridge"], results["veth_bridge+slow"]
    steps = [row for row in rows if row["part"] == "steps" and row["arm"] == "veth_bridge"]
    if not free["ended"].startswith(TAKEN):
        assert free["ended"] == "the target was held", free
        assert free["throughput_pps"] == pytest.approx(2 * 20_997, rel=0.03)
        assert {row["phase"] for row in steps} == {"warm-up", "ramp", "hold"}
    if not slow["ended"].startswith(TAKEN):
        assert slow["ended"].startswith("the device lost "), slow
        assert 0 < slow["throughput_pps"] < 2 * 11_000
    assert steps
    for row in [row for row in steps if row["status"] == "ok"]:  # the others were disturbed, and repeated
        if row["direction"] == "all":
            both = [one for one in steps if one["time_s"] == row["time_s"] and one is not row]
            assert {one["direction"] for one in both} == WAYS
            for name in ("sent_count", "received_frames_count", "lost_count"):
                assert row[name] == sum(one[name] for one in both)
            continue
        sent, received = row["hops"].values()
        assert row["sent_count"] == row["received_frames_count"] > 997 * 0.5
        # Interfaces also count other frames: bridge ports report their multicast groups (IGMP).
        assert 0 <= sent - row["sent_count"] < 5
        assert 0 <= received - row["received_frames_count"] < 5
        assert (row["probes_lost_count"], row["duplicated_count"], row["latency_clock"]) == (0, 0, "kernel")
        assert sum(row["latency_buckets"].values()) == row["probes_sent_count"] == 498
        assert 0 < row["latency_p50_s"] <= row["latency_p99_s"] <= row["latency_max_s"]
        assert row["jitter_s"] > 0
    table = load.load(tmp_path / "run", None)
    received = [
        one for one in figure.over_time(table).data if one.name == "imix · veth_bridge · test 1: received"
    ]
    undisturbed = [row for row in steps if (row["status"], row["direction"]) == ("ok", "all")]
    # rate, loss, and three of latency
    drawn = [len(steps) // 3] * 2 + [len(undisturbed)] * 3
    assert [len(one.x) for one in received if len(one.x)] == [count for count in drawn if count]
    told = any("At that rate the latency of the probes was" in one for one in finding.report(table))
    assert told == any(row["status"] == "ok" for row in results.values())
