"""The host adds its own load to a lab VM's rows, because the lab VM does not see it."""

from pathlib import Path

import pytest

from labkit.measure import experiments
from labkit.runner import run
from labkit.system import machine
from labkit.system.machine import host_load


def test_waiting_of_the_lab_vm_is_a_doubt() -> None:
    """QEMU ran 0.9 s and waited 0.3 s, in one thread and one that began meanwhile."""
    before, now = {"7": (1.0, 0.5)}, {"7": (1.6, 0.7), "8": (0.3, 0.1)}
    assert host_load.waiting_share(before, now) == 0.25
    assert host_load.waiting_share(before, {}) is None
    quiet = {"host_load1": 1.0, "host_waiting_share": 0.05}
    assert machine.with_host_load({"status": "ok", "doubts": None}, quiet)["doubts"] is None
    busy = {"host_load1": 20.0, "host_waiting_share": 0.6}
    row = machine.with_host_load({"status": "ok", "doubts": "first"}, busy)
    assert row["doubts"] == (
        "first; the lab VM waited for a CPU of the host for 60 % of the time in which it could run"
    )
    assert row["host_load1"] == 20.0


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
    assert 0 <= rows[1]["host_foreign_share"] <= 1
