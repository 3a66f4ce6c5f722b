"""The notebook of trends draws a history, and says what is beside each change."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from synthetic_rows import rows, save

from labkit.analysis import history


@pytest.mark.long
def test_trend(tmp_path: Path) -> None:
    for number in range(10):
        name, speed = f"r{number}", 0.9 if number > 4 else 1.0
        made = rows({"veth": 1.0, "veth (again)": 1.0, "vxlan": speed}, noise=0.005, seed=number, run=name)
        about = {
            "created": str(number),
            "experiment": "datapaths",
            "parameters": {},
            "seed": number,
            "why_stopped": {},
        }
        history.add(save(tmp_path / name, made, **about), tmp_path / "track")
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*"))
    out = tmp_path / "out.ipynb"
    words = ["-p", "folder", str(tmp_path / "track"), "--no-progress-bar"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "papermill", "14_trend.ipynb", str(out), *words],
        cwd=tmp_path / "notebooks", capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outputs = [
        output for cell in nbformat.read(out, as_version=4).cells for output in cell.get("outputs", [])
    ]
    shown = json.dumps([output.get("data", {}) for output in outputs])
    assert shown.count("application/vnd.plotly.v1+json") == 2
    assert "vxlan to veth" in shown
    assert "from r4 to r5" in shown
    assert "labkit compare" in shown
