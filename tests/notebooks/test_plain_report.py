"""`labkit report` of a run whose experiment has no notebook: findings, figures and doubts in one page."""

import shutil
from pathlib import Path

import pytest
import synthetic_rows
from conftest import ROOT

from labkit.common import run_folder
from labkit.runner import sweep
from labkit.runner.progress import Bar

SEARCH = {
    "experiment": "throughput", "protocol": "udp", "frame": "64", "frame_bytes": 64.0, "flows_count": 1000,
    "method": "search", "part": "cost", "loss_goal_ratio": 0.0, "trials_count": 50, "repeated_count": 0,
    "exceed_ratio": 0.5,
}  # fmt: skip


def test_report_of_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*"))
    (tmp_path / "params").mkdir()
    monkeypatch.chdir(tmp_path)
    rows = [row | SEARCH for row in synthetic_rows.rows(rounds=3, slices=1)]
    searches = [row | {"throughput_pps": row["throughput_bps"] / 512} for row in rows]
    tried = {
        "part": "trials", "method": "trial", "phase": "search", "loss_goal_ratio": None, "loss_ratio": 0.1,
    }  # fmt: skip
    trials = [row | tried | {"offered_pps": 1.1 * row["throughput_pps"]} for row in searches]
    described = {
        "created": "2026-01-02T03:04:05Z", "experiment": "throughput", "parameters": {"rounds": 3}, "seed": 1,
        "why_stopped": {},
    }  # fmt: skip
    points = sorted({row["point"] for row in searches})
    folder = synthetic_rows.save(tmp_path / "run", [*searches, *trials], points=points, **described)
    before = run_folder.read_rows(folder)
    text = sweep.show(folder, Bar()).read_text()
    assert "frames 64, 1000 flows: NDR" in text
    assert "Loss against load" in text
    assert run_folder.read_rows(folder) == before
    assert not list(folder.glob("*.tmp"))
