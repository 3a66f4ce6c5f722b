"""The notebook about the datapaths of today, small and for real: loads with slices beside whole runs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from sandbox import sandbox

from labkit.analysis import load

pytestmark = pytest.mark.needs("user namespaces", "iperf3", "sockperf", "veth", "bridge")

SMALL = """
topology: [veth_bridge, veth_routed]
loads: ["udp:64", udp_rr]
rounds: 2
slices: 2
whole_runs: 0
omit_s: 0
"""


def test_bulk_packets_and_requests_in_one_run(tmp_path: Path) -> None:
    with sandbox(tmp_path) as machine:
        shutil.copytree(ROOT / "notebooks", machine.folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
        out = machine.folder / "out.ipynb"
        words = ["12_datapaths_of_today.ipynb", str(out), "-y", SMALL, "--no-progress-bar"]
        done = machine.run(
            sys.executable, "-m", "papermill", *words, cwd=machine.folder / "notebooks", timeout=300
        )
        assert done.returncode == 0, done.stderr
        [folder] = (machine.data / "datapaths_of_today").iterdir()
        rows = load.load(folder)
    assert set(rows["status"]) == {"ok"}
    counts = rows.groupby(["protocol", "method", "arm"]).size()
    arms = ("veth_bridge", "veth_bridge (again)", "veth_routed")
    assert counts.to_dict() == {("udp", "slice", arm): 4 for arm in arms} | {
        ("udp_rr", "whole", arm): 2 for arm in arms
    }
    outputs = [one for cell in nbformat.read(out, as_version=4).cells for one in cell.get("outputs", [])]
    drawn = [one["data"].get("application/vnd.plotly.v1+json") for one in outputs if "data" in one]
    titles = {figure["layout"]["title"]["text"] for figure in drawn if figure}
    assert {"What a packet costs, by its size", "Round-trip time by percentile"} <= titles
