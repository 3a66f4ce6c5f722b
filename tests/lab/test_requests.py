"""Requests and responses by sockperf on real paths."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox import Sandbox, sandbox

from labkit.common import run_folder
from labkit.measure import topologies
from labkit.measure.experiments import DatapathParameters
from labkit.measure.traffic.sockperf import SOCKPERF
from labkit.system.machine.cpu_time import descendants

pytestmark = pytest.mark.needs("root", "veth", "sockperf", "ping")
STALL_S = 0.3


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path) as made:
        yield made


def test_verdict_about_the_99th_percentile(machine: Sandbox, tmp_path: Path) -> None:
    words = ("topology=veth,veth_bridge", "protocol=tcp_rr", "length_bytes=100", "duration_s=1")
    folder = tmp_path / "run"
    done = machine.labkit("run", "datapaths", *words, "--percentile", "p99", "--folder", str(folder))
    assert "TCP requests 99th percentile of the round-trip time against veth" in " ".join(done.stdout.split())
    rows = run_folder.read_rows(folder)
    assert [(row["status"], row["reason"]) for row in rows] == [("ok", None)] * 3
    for row in rows:
        assert row["transaction_rate"] == row["received_count"] == row["sent_count"] > 1000
        assert row["latency_p50_s"] <= row["latency_p99_s"] <= row["latency_max_s"] < 1


def measured(**given: Any) -> dict[str, Any]:
    """Measure for a second or more, and stop the server for 300 ms meanwhile."""
    parameters = DatapathParameters.of({"protocol": "udp_rr", "duration_s": 1, **given})

    def stall() -> None:
        time.sleep(3.0)
        [server] = [
            pid for pid in descendants(os.getpid()) if b"server" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(server, signal.SIGSTOP)
        time.sleep(STALL_S)
        os.kill(server, signal.SIGCONT)

    with topologies.build("veth", topologies.Spec(1)) as net:
        stopping = threading.Thread(target=stall)
        stopping.start()
        try:
            return SOCKPERF.columns(SOCKPERF.latency(net.pairs, parameters), parameters)
        finally:
            stopping.join()


def test_open_loop_shows_a_stall_that_a_closed_loop_hides() -> None:
    row = measured()
    assert row["latency_max_s"] > 0.9 * STALL_S
    assert row["latency_p99_s"] < 0.1 * STALL_S
    row = measured(rate_rps=500, duration_s=3)
    assert row["sent_count"] == pytest.approx(1500, abs=2)
    # 10 % of the requests were due during the stall, and waited for half of it in the mean.
    assert row["latency_p50_s"] < 0.5 * STALL_S < row["latency_p99_s"] < 2 * STALL_S
