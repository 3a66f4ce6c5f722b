"""labkit without the studies: what is beside the package can be taken away, and measuring and explaining go on."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import IN_A_NAMESPACE, ROOT
from python_environment import environment
from sandbox import output

from labkit.common import run_folder

pytestmark = [pytest.mark.long, pytest.mark.needs("namespaces", "veth", "bridge", "iperf3", "ping", "nft")]
SHORT = ("rounds=1", "duration_s=1", "omit_s=0", "slices=0", "whole_runs=1")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python whose labkit is a copy of that folder alone, without entry points."""
    folder = tmp_path_factory.mktemp("alone")
    # With Python's compiled files, but without one that is just being written.
    shutil.copytree(ROOT / "labkit", folder / "labkit", ignore=shutil.ignore_patterns("*.pyc.*"))
    return environment(folder / "environment", [folder])


def labkit(python: Path, *words: str) -> str:
    argv = [*IN_A_NAMESPACE, str(python), "-P", "-m", "labkit.cli", *words]
    return output(argv, 180, cwd=python.parent)


def test_datapaths_and_why(python: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("topology=veth,veth_bridge", "observe=counters", "profile_rounds=1", *SHORT)
    labkit(python, "run", "datapaths", *words, "--folder", str(folder))
    assert {row["status"] for row in run_folder.read_rows(folder)} == {"ok"}
    assert "veth_bridge" in labkit(python, "why", f"{folder}:veth", "veth_bridge")
    code = "import sys, labkit; run = labkit.open(sys.argv[1]); print(list(run.figures), run.doubts().data)"
    shown = subprocess.run([python, "-P", "-c", code, folder], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("['forest'")


def test_throughput(python: Path, tmp_path: Path) -> None:
    words = "topology=veth rounds=1 trial_s=0.1 sum_s=0.1 passes=1 limit_s=2 max_rate=20kpps"
    labkit(python, "run", "throughput", *words.split(), "--folder", str(tmp_path / "run"))
    assert {row["experiment"] for row in run_folder.read_rows(tmp_path / "run")} == {"throughput"}


def test_monitor(python: Path) -> None:
    words = ("veth", "interface=client0:eth0", "--ping", "--seconds", "2", "--json")
    report = json.loads(labkit(python, "monitor", *words).splitlines()[-1])
    assert report["seen_count"] > 0
