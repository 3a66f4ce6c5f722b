"""The notebook about a network of one's own, executed for real on its example: the fault is found, explained and undone
on a copy."""

import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from sandbox import sandbox

from labkit.analysis import load

pytestmark = pytest.mark.needs("root", "iperf3", "ip", "nft", "ethtool", "veth", "bridge")

SMALL = """
rounds: 2
slices: 3
profile_rounds: 1
observe: [counters]
"""


def test_example_is_found_explained_and_repaired(tmp_path: Path) -> None:
    with sandbox(tmp_path, user=False) as machine:
        shutil.copytree(ROOT / "notebooks", machine.folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
        before, out = machine.interfaces(), machine.folder / "out.ipynb"
        words = ["11_your_network.ipynb", str(out), "-y", SMALL, "--no-progress-bar"]
        done = machine.run(  # as a sweep, which needs no permission for the example
            sys.executable, "-m", "papermill", *words, cwd=machine.folder / "notebooks", timeout=300,
            LABKIT_PROGRESS=str(tmp_path / "progress"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert (machine.interfaces(), machine.processes()) == (before, {})
        runs = [load.load(folder) for folder in sorted((machine.data / "datapaths").iterdir())]
    outputs = [one for cell in nbformat.read(out, as_version=4).cells for one in cell.get("outputs", [])]
    text = "\n".join(one["data"].get("text/markdown", "") for one in outputs if "data" in one)
    assert "1. **offload off**: " in text
    assert "`offload: offload tso on gso on at client`" in text
    assert "disable: [tso, gso]" in text
    existing, copied = ({role: set(own["arm"]) for role, own in rows.groupby("role")} for rows in runs)
    assert existing["baseline"] == {"veth_bridge"}
    assert all(arm.startswith("existing:pid:") for arm in existing["variant"])
    assert copied == {"baseline": {"copy"}, "control": {"copy (again)"}, "variant": {"offload"}}
    assert all(set(rows["status"]) == {"ok"} for rows in runs)
    speed = [rows.groupby("role")["throughput_bps"].median() for rows in runs]
    assert speed[0]["baseline"] > 1.2 * speed[0]["variant"]
    assert speed[1]["variant"] > 1.2 * speed[1]["baseline"]
