"""A CPU quota of the whole run is in its rows, its doubts, the doctor and a comparison."""

import json
import sys
from pathlib import Path

import pytest
from conftest import IN_A_NAMESPACE
from sandbox import fifth_of_a_cpu, output

from labkit.analysis import load, verdicts
from labkit.common import run_folder

LABKIT = [*IN_A_NAMESPACE, sys.executable, "-P", "-m", "labkit.cli"]
JOIN = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); os.execvp(sys.argv[2], sys.argv[2:])"


def run(before: list[str], *words: str) -> str:
    return output([*before, *LABKIT, *words], 300)


@pytest.mark.long
@pytest.mark.needs("root", "cpu cgroup", "namespaces", "veth", "iperf3", "ethtool")
def test_a_quota_is_a_doubt_everywhere(tmp_path: Path) -> None:
    words = "run datapaths topology=veth,veth_bridge rounds=2 duration_s=1 omit_s=0 --folder"
    run([], *words.split(), str(tmp_path / "free"))
    with fifth_of_a_cpu("labkit-test") as pids:
        joined = [sys.executable, "-c", JOIN, str(pids)]
        run(joined, *words.split(), str(tmp_path / "limited"))
        told = json.loads(run(joined, "doctor", "--json"))
    rows = run_folder.read_rows(tmp_path / "limited")
    assert max(row["throttled_share"] for row in rows) > 0.05
    assert any("a CPU quota (cgroup) stopped this run" in (row["doubts"] or "") for row in rows)
    assert all(row["throttled_s"] == 0 for row in run_folder.read_rows(tmp_path / "free"))
    table = load.load(tmp_path / "limited")
    assert any(doubt.startswith("a CPU quota (cgroup) stopped the run") for doubt in verdicts.doubts(table))
    [capability] = [one for one in told["capabilities"] if one["name"] == "all of the CPUs"]
    assert not capability["available"]
    assert capability["detail"].startswith("a quota allows 0.2 of ")
    text = run([], "compare", str(tmp_path / "free"), str(tmp_path / "limited"), "--json")
    compared = json.loads(text)
    assert {line["word"] for line in compared["lines"]} == {"no evidence"}
    assert any("limited: a CPU quota (cgroup)" in doubt for doubt in compared["doubts"])
