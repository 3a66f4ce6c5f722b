"""Every cell of the tutorial runs and displays the run that the tutorial measured."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import ROOT
from sandbox import only_run, sandbox

from labkit.analysis import flame
from labkit.common import run_folder

pytestmark = pytest.mark.needs("user namespaces", "iperf3", "ip", "veth", "bridge")

SMALL = {"topology": "veth,veth_bridge", "rounds": "2", "slices": "2", "profile_rounds": "2", "seed": "9"}


def test_tutorial(tmp_path: Path) -> None:
    with sandbox(tmp_path / "machine") as machine:
        shutil.copytree(ROOT / "notebooks", machine.folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
        words = [word for pair in SMALL.items() for word in ("-p", *pair)]
        out = machine.folder / "out.ipynb"
        done = machine.run(
            sys.executable, "-m", "papermill", "00_start_here.ipynb", str(out), *words, "--no-progress-bar",
            cwd=machine.folder / "notebooks",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        rows = run_folder.read_rows(only_run(machine))
    cells = nbformat.read(out, as_version=4).cells
    outputs: list[dict[str, Any]] = [output for cell in cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "error"]
    shown = json.dumps([output.get("data", {}) for output in outputs])
    assert "throughput_bps [bit/s]" in shown
    assert "application/vnd.plotly.v1+json" in shown
    measured = sum(row["status"] == "ok" and row["method"] != "profile" for row in rows)
    assert f"{measured} valid measurements of 2 topologies" in shown
    assert "## Conclusion" in shown
    profiled = {row["arm"] for row in rows if row["observer"] == "perf_record" and row["status"] == "ok"}
    assert (flame.MIME in shown) == ({"veth", "veth_bridge"} <= profiled)
