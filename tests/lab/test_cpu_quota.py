"""A CPU quota of the whole run is in its rows, its doubts, the doctor and a comparison."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import IN_A_NAMESPACE, cpu_cgroups

from labkit.analysis import load, verdicts
from labkit.common import run_folder

PERIOD_US, QUOTA_US = 100_000, 20_000  # a fifth of one CPU
LABKIT = [*IN_A_NAMESPACE, sys.executable, "-P", "-m", "labkit.cli"]
JOIN = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); os.execvp(sys.argv[2], sys.argv[2:])"


@contextlib.contextmanager
def quota() -> Iterator[list[str]]:
    """Make a cgroup with a quota; yield the words that start a program in it."""
    [top] = cpu_cgroups()
    own = top / "labkit-test"
    own.mkdir()
    try:
        if (own / "cpu.max").exists():
            (own / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
        else:
            (own / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (own / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        yield [sys.executable, "-c", JOIN, str(own / "cgroup.procs")]
    finally:
        own.rmdir()


def run(before: list[str], *words: str) -> str:
    done = subprocess.run(
        [*before, *LABKIT, *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.needs("root", "cpu cgroup", "namespaces", "veth", "iperf3", "ethtool")
def test_a_quota_is_a_doubt_everywhere(tmp_path: Path) -> None:
    words = "run datapaths topology=veth,veth_bridge rounds=2 duration_s=1 omit_s=0 --folder"
    run([], *words.split(), str(tmp_path / "free"))
    with quota() as joined:
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
