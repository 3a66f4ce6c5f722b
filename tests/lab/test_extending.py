"""The examples of docs/EXTENDING.md, installed as a package: each runs by its name, and its rows are read like all
others."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import IN_A_NAMESPACE, ROOT
from pyarrow import parquet
from python_environment import environment, install
from sandbox import TOGETHER, ended_together

from labkit.analysis import load, parquet_rows, theme, verdicts
from labkit.analysis.findings.registry import BY_EXPERIMENT
from labkit.common import run_folder, schema
from labkit.measure import experiments

HERE = ROOT / "tests/extending"
TOYS = (
    "toy_topology", "toy_macvtap", "toy_generator", "toy_columns", "toy_observer", "toy_experiment",
    "toy_findings", "toy_figures",
)  # fmt: skip
SHORT = ("rounds=1", "duration_s=1", "omit_s=0")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python in whose environment the examples are installed."""
    folder = tmp_path_factory.mktemp("environment")
    result = environment(folder, [ROOT])
    install(HERE, folder)
    return result


def labkit(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [*IN_A_NAMESPACE, str(python), "-P", "-m", "labkit.cli", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def run(python: Path, folder: Path, *words: str) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a run, and what the command printed."""
    done = labkit(python, "run", *words, "--folder", str(folder))
    assert done.returncode == 0, done.stderr
    return run_folder.read_rows(folder), done.stdout


@pytest.mark.long
@pytest.mark.needs("namespaces", "veth", "bridge", "ping", "ethtool")
def test_topology_generator_and_observer(python: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rows, _text = run(
        python, folder, "datapaths", "topology=veth_bridge,two_bridges", "generator=refused", "protocol=ping",
        "slices=0", "observe=machine_events", "stat_event=processes", "profile_rounds=1", *SHORT,
    )  # fmt: skip
    assert {row["topology"] for row in rows} == {"veth_bridge", "two_bridges"}
    assert {row["status"] for row in rows} == {"ok"}, [row["reason"] for row in rows]
    assert all(0 < row["latency_p50_s"] < 1 and row["generator"] == "refused" for row in rows)
    seen = [row["observed"] for row in rows if row["observer"] == "machine_events"]
    assert len(seen) == 3
    assert all(set(one) == {"processes_count"} for one in seen)  # the observer's own parameter chose it
    assert {name for row in rows for name in row} - set(schema.BY_NAME) == {"refused_deviation_s"}
    assert "| `refused_deviation_s` | s | number |" in labkit(python, "rows", "--columns").stdout
    out = tmp_path / "rows.parquet"
    assert labkit(python, "rows", str(folder), "--parquet", str(out)).returncode == 0
    assert parquet.read_schema(out).field("refused_deviation_s").metadata[b"unit"] == b"s"
    without = [row["refused_deviation_s"] for row in parquet_rows.decode(out.read_bytes())]  # the package
    assert without == [row["refused_deviation_s"] for row in run_folder.read_rows(folder)]
    table = load.load(folder)
    assert verdicts.verdicts(table)["topology"].tolist() == ["two_bridges"]
    assert theme.arm_style("two_bridges") not in (theme.BASELINE, theme.CONTROL)
    tools = run_folder.read_json(folder / "environment.json")["tools"]
    assert tools["labkit-toys"] == "1.0"  # the run says whose code measured


@pytest.mark.long
@pytest.mark.needs("namespaces")
def test_new_kind_of_link(python: Path, tmp_path: Path) -> None:
    """The kernel is asked for it, and a kernel without it is named as the reason."""
    words = ("topology=macvtap", "protocol=ping", "rounds=1", "duration_s=1")
    done = labkit(python, "run", "datapaths", *words, "--folder", str(tmp_path / "run"))
    rows = run_folder.read_rows(tmp_path / "run")
    lacks = (
        "this kernel has no macvtap (CONFIG_MACVTAP is not set and no module was found): use a kernel that"
    )
    assert all(row["status"] == "ok" or str(row["reason"]).startswith(lacks) for row in rows), done.stderr
    assert rows


@pytest.mark.long
@pytest.mark.needs("namespaces", "veth", "bridge", "ping", "ethtool", "iperf3")
def test_experiment(python: Path, tmp_path: Path) -> None:
    words = ("jumbo", "topology=veth,two_bridges", "slices=1", "whole_runs=0", "placement=scheduler", *SHORT)
    rows, text = run(python, tmp_path / "run", *words)
    assert {(row["mtu_bytes"], row["arm"]) for row in rows} == {
        (mtu, arm) for mtu in (1500, 9000) for arm in ("veth", "veth (again)", "two_bridges")
    }
    assert all(row["status"] == "ok" and row["throughput_bps"] > 0 for row in rows)
    assert "two_bridges at MTU 9000: " in text  # its own findings
    drawn = "import sys, labkit; f = labkit.open(sys.argv[1]).figures; print(list(f), len(f.by_mtu.data))"
    argv = [str(python), "-P", "-c", drawn, str(tmp_path / "run")]
    figures = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout
    assert figures.startswith("['by_mtu', 'forest'")  # its own figure, which the notebook and the report show
    assert figures.rstrip().endswith(" 3")


@pytest.mark.long
@pytest.mark.needs("namespaces")
def test_help_and_messages_name_the_examples(python: Path) -> None:
    helps = ["run --help", "run datapaths --help", "run jumbo --help"]
    known = {
        "observe=nothing": "machine_events",
        "generator=nothing": "refused",
        "stat_event=nothing": "processes",
    }
    lines = [*helps, *(f"run datapaths {words}" for words in known)]
    argv = [*IN_A_NAMESPACE, str(python), "-P", "-c", TOGETHER, json.dumps([line.split() for line in lines])]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    *pages, observer, generator, event = ended_together(done, lines)
    page = "".join(one.stdout for one in pages)
    for word in ("jumbo", "two_bridges", "stat_event=ctxt", "mtus=1500,9000"):
        assert word in page
    for refused, name in zip((observer, generator, event), known.values(), strict=True):
        assert refused.returncode == 2
        assert name in refused.stderr
        assert "Traceback" not in refused.stderr


def test_page_shows_the_examples_and_findings_have_experiments() -> None:
    page = (ROOT / "docs/EXTENDING.md").read_text()
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", page, flags=re.DOTALL)
    for name in TOYS:
        text = (HERE / f"{name}.py").read_text()
        assert len(text.splitlines()) < 60
        assert text in blocks, f"docs/EXTENDING.md does not show {name}.py as it is"
    assert (HERE / "pyproject.toml").read_text() in blocks
    assert set(BY_EXPERIMENT) <= set(experiments.TABLE)
