"""The examples of docs/EXTENDING.md: one line registers each, each runs, and its rows are read like all others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import IN_A_NAMESPACE, ROOT

from labkit.analysis import load, theme, verdicts
from labkit.analysis.findings.registry import BY_EXPERIMENT
from labkit.common import run_folder, schema
from labkit.measure import experiments

HERE = ROOT / "tests/extending"
TOYS = ("toy_topology", "toy_generator", "toy_observer", "toy_experiment")
SHORT = ("rounds=1", "duration_s=1", "omit_s=0")


def run(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Return the rows of an experiment whose registries contain the examples."""
    (folder / "rows").mkdir(parents=True)
    run_folder.write_json(folder / "run.json", {"finished": True})
    argv = [*IN_A_NAMESPACE, sys.executable, "-P", str(HERE / "registered.py"), str(folder), *words]
    paths = {"PYTHONPATH": f"{ROOT}:{HERE}", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=paths, check=False)
    assert done.returncode == 0, done.stderr
    return run_folder.read_rows(folder)


@pytest.mark.needs("namespaces", "veth", "bridge", "ping", "ethtool")
def test_topology_generator_and_observer(tmp_path: Path) -> None:
    rows = run(
        tmp_path, "datapaths", "topology=veth_bridge,two_bridges", "generator=refused", "protocol=ping", "slices=0",
        "observe=context_switches", "profile_rounds=1", *SHORT,
    )  # fmt: skip
    assert {row["topology"] for row in rows} == {"veth_bridge", "two_bridges"}
    assert {row["status"] for row in rows} == {"ok"}, [row["reason"] for row in rows]
    assert all(0 < row["latency_p50_s"] < 1 and row["generator"] == "refused" for row in rows)
    seen = [
        row["observed"]["context_switches_count"] for row in rows if row["observer"] == "context_switches"
    ]
    assert len(seen) == 3
    assert min(seen) > 0
    assert not {name for row in rows for name in row} - set(schema.BY_NAME)
    table = load.load(tmp_path)
    assert verdicts.verdicts(table)["topology"].tolist() == ["two_bridges"]
    assert theme.arm_style("two_bridges") not in (theme.BASELINE, theme.CONTROL)


@pytest.mark.needs("namespaces", "veth", "bridge", "ping", "ethtool", "iperf3")
def test_experiment(tmp_path: Path) -> None:
    rows = run(tmp_path, "jumbo", "topology=veth,two_bridges", "slices=1", "whole_runs=0", *SHORT)
    assert {(row["mtu_bytes"], row["arm"]) for row in rows} == {
        (mtu, arm) for mtu in (1500, 9000) for arm in ("veth", "veth (again)", "two_bridges")
    }
    assert all(row["status"] == "ok" and row["throughput_bps"] > 0 for row in rows)


def test_page_shows_the_examples_as_they_are() -> None:
    page = (ROOT / "docs/EXTENDING.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    lines = (HERE / "registered.py").read_text()
    for name in TOYS:
        text = (HERE / f"{name}.py").read_text()
        assert len(text.splitlines()) < 60
        assert text in blocks, f"docs/EXTENDING.md does not show {name}.py as it is"
    for block in (one for one in blocks if not one.startswith('"""')):
        assert block.strip() in lines, f"{block.strip()} is not what registered.py does"


def test_findings_are_of_experiments() -> None:
    assert set(BY_EXPERIMENT) <= set(experiments.TABLE)
