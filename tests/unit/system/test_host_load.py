"""The host adds its own load to a lab VM's rows, because the lab VM does not see it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.measure import experiments
from labkit.runner import run
from labkit.system import machine
from labkit.system.machine import host_load
from labkit.system.machine.host_load import HostTimes


def test_shares_between_two_samples() -> None:
    before = HostTimes(10.0, 100.0, {1: 5.0}, {"7": 1.0}, {"7": 0.5})
    now = HostTimes(12.0, 103.0, {1: 5.5, 2: 0.5}, {"7": 1.6, "8": 0.3}, {"7": 0.7, "8": 0.1})
    # On 2 CPUs in 2 s: 3 CPU-seconds used, 1 of them by this command. QEMU ran 0.9 s and waited 0.3 s.
    assert host_load.shares(before, now, 2) == {"host_foreign_share": 0.5, "host_waiting_share": 0.25}
    unknown = HostTimes(12.0, 103.0, {1: 5.0})
    assert host_load.shares(before, unknown, 2)["host_waiting_share"] is None


def test_schedstat_unit() -> None:
    assert host_load.parse_schedstat("2500000000 500000000 17\n") == (2.5, 0.5)


def test_doubt_is_appended() -> None:
    quiet = {"host_load1": 1.0, "host_foreign_share": 0.02, "host_waiting_share": 0.05}
    assert machine.with_host_load({"status": "ok", "doubts": None}, quiet)["doubts"] is None
    busy = {"host_load1": 20.0, "host_foreign_share": 0.9, "host_waiting_share": 0.6}
    row = machine.with_host_load({"status": "ok", "doubts": "first"}, busy)
    assert row["doubts"] == (
        "first; other programs took 90 % of the host's CPU time meanwhile; the lab VM waited for a CPU of the host for"
        " 60 % of the time in which it could run"
    )
    assert row["host_load1"] == 20.0


def command_line(folder: Path) -> bytes:
    try:
        return (folder / "cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


def test_own_and_foreign_processes() -> None:
    spin = [sys.executable, "-c", "import time; e = time.monotonic() + 30\nwhile time.monotonic() < e: pass"]
    stranger = subprocess.Popen(["setsid", "--fork", *spin, "labkit-test-stranger"])
    stranger.wait()
    with subprocess.Popen(spin) as child:
        try:
            before = host_load.host_times()
            time.sleep(1.0)
            now = host_load.host_times()
        finally:
            child.kill()
            [pid] = [
                int(one.name)
                for one in Path("/proc").glob("[0-9]*")
                if b"labkit-test-stranger" in command_line(one)
            ]
            os.kill(pid, 9)
    assert child.pid in now.ours_s
    assert pid not in now.ours_s
    foreign = host_load.shares(before, now, os.cpu_count() or 1)["host_foreign_share"]
    assert foreign is not None
    assert foreign > 0.05


def test_host_load_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event = {"event": "rows", "point": "1-r0", "rows": [{"status": "ok", "doubts": None, "arm": "veth"}]}
    monkeypatch.setattr(run, "ask", lambda where, request, say: iter([dict(event)]))
    monkeypatch.setattr(run.hosts, "check", lambda where: None)
    seen = []
    assert "datapaths" in experiments.TABLE
    for where in ("vm:debian", "here"):
        parameters = {"topology": "veth", "where": where}
        run.measure("datapaths", parameters, tmp_path / where, lambda one: seen.append(one))
    rows = [one["rows"][0] for one in seen if one["event"] == "rows"]
    assert {"host_load1", "host_foreign_share", "host_waiting_share"} <= rows[0].keys()
    assert "host_load1" not in rows[1]
