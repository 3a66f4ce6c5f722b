"""The datapaths notebook, executed by plain papermill: rows, prose and figures of a small run, and of an existing
run."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import synthetic_rows
from conftest import ROOT
from sandbox import Done, Sandbox, only_run, rows_on_disk, sandbox
from synthetic_rows import HOSTS, save

from labkit.common import run_folder

pytestmark = pytest.mark.needs("user namespaces", "iperf3", "ip", "ping", "ethtool", "veth", "bridge")

SMALL = {"topology": "veth,veth_bridge,ipvlan_l2", "pairs": "1", "rounds": "1", "slices": "2", "whole_runs": "1",
         "duration_s": "1", "omit_s": "0", "seed": "9"}  # fmt: skip


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with sandbox(tmp_path_factory.mktemp("machine")) as made:
        shutil.copytree(ROOT / "notebooks", made.folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
        yield made


def papermill(machine: Sandbox, out: str, parameters: dict[str, str]) -> Done:
    """Run `papermill 01_datapaths.ipynb OUT -p name value …` in the folder of the notebooks."""
    words = [word for name, value in parameters.items() for word in ("-p", name, value)]
    words = ["01_datapaths.ipynb", str(machine.folder / out), *words, "--no-progress-bar"]
    return machine.run(sys.executable, "-m", "papermill", *words, cwd=machine.folder / "notebooks")


def texts(path: Path, kind: str = "text/markdown") -> str:
    """Return all outputs of an executed notebook of one MIME type."""
    notebook = nbformat.read(path, as_version=4)
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(str(output["data"][kind]) for output in outputs if kind in output.get("data", {}))


def figure_titles(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    outputs: list[Any] = [output for cell in cells for output in cell.get("outputs", [])]
    drawn = [output["data"].get("application/vnd.plotly.v1+json") for output in outputs if "data" in output]
    return [figure["layout"]["title"]["text"] for figure in drawn if figure]


@pytest.fixture(scope="module")
def executed(machine: Sandbox) -> Path:
    """Execute the notebook with all its parameters as papermill's -p passes them, some of them as text."""
    done = papermill(machine, "out.ipynb", SMALL)
    assert done.returncode == 0, done.stderr
    return machine.folder / "out.ipynb"


def test_rows_of_the_executed_notebook(executed: Path, machine: Sandbox) -> None:
    folder = only_run(machine)
    rows = run_folder.read_rows(folder)
    assert run_folder.read_json(folder / "run.json")["parameters"]["topology"] == [
        "veth",
        "veth_bridge",
        "ipvlan_l2",
    ]
    measured = {(row["arm"], row["method"], row["status"]) for row in rows if row["topology"] != "ipvlan_l2"}
    assert measured == {
        (arm, method, "ok")
        for arm in ("veth", "veth (again)", "veth_bridge")
        for method in ("slice", "whole")
    }
    assert {row["seed"] for row in rows} == {9}


def test_prose_matches_the_rows(executed: Path, machine: Sandbox) -> None:
    prose = texts(executed)
    rows = run_folder.read_rows(only_run(machine))
    ok = [row for row in rows if row["status"] == "ok"]
    assert f"Linux {rows[0]['kernel']} on {rows[0]['cpu']}" in prose
    assert f"{len(ok)} valid measurements of {len({row['topology'] for row in ok})} topologies" in prose
    assert "1 pair: all 1 round were measured" in prose
    # On a busy machine almost nothing may arrive in one of the two slices, which is too many for a ratio.
    assert re.search(r"(\*\*TCP, MTU 1500:\*\* |No evidence about )veth_bridge against veth: ", prose)
    refused = [row for row in rows if row["status"] == "unsupported"]
    for row in refused:
        assert f"**ipvlan_l2** was not measured: {row['reason']}" in prose


@pytest.mark.smoke
def test_figures_and_no_failed_cell(executed: Path) -> None:
    notebook = nbformat.read(executed, as_version=4)
    drawn = [
        output for cell in notebook.cells for output in cell.get("outputs", [])
        if "application/vnd.plotly.v1+json" in output.get("data", {})
    ]  # fmt: skip
    assert len(drawn) >= 3
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "error"]
    lines = "".join(output["text"] for output in outputs if output.get("name") == "stderr")
    assert all(line.startswith("labkit: ") for line in lines.splitlines()), lines


def test_existing_run_is_shown(executed: Path, machine: Sandbox) -> None:
    folder = only_run(machine)
    before = rows_on_disk(folder), (folder / "run.json").read_bytes()
    done = papermill(machine, "again.ipynb", SMALL | {"folder": str(folder)})
    assert done.returncode == 0, done.stderr
    assert (rows_on_disk(folder), (folder / "run.json").read_bytes()) == before
    assert only_run(machine) == folder
    assert texts(machine.folder / "again.ipynb") == texts(executed)


def test_several_hosts_side_by_side(machine: Sandbox) -> None:
    """One report shows a sweep that has measured two kernels of one node, one of them emulated, and two nodes."""
    sweep = machine.folder / "hosts"
    points: dict[str, dict[str, Any]] = {
        "here": {}, "vm": HOSTS["vm:6.1"], "two": HOSTS["vm:6.1"] | {"nodes": "two", "peer": "vm:6.1", "slices": 0},
    }  # fmt: skip
    for name, changes in points.items():
        counts = {"rounds": 3, "slices": 4, "whole": 3} | changes
        parameters = {"protocol": "tcp", "mtu_bytes": 1500, "where": changes.get("where", "here")}
        save(sweep / name, synthetic_rows.rows(**counts, run=name), parameters=parameters)
    (sweep / "sweep.json").write_text(json.dumps({"points": list(points)}))
    done = papermill(machine, "hosts.ipynb", {"folder": str(sweep)})
    assert done.returncode == 0, done.stderr
    prose, titles = texts(machine.folder / "hosts.ipynb"), figure_titles(machine.folder / "hosts.ipynb")
    assert "Only ratios are compared between hosts, never speeds" in prose
    assert (
        prose.index("### Local: one node")
        < prose.index("**Linux 6.1.0-37-amd64, emulated**")
        < prose.index("\n## Local")
    )
    assert prose.index("\n## Local: one node") < prose.index("\n## Switched: two nodes")
    kernels, scaling = "Ratios to the baseline within each kernel", "Throughput against number of pairs"
    in_part, emulated = "(in part on an emulated CPU)", "(emulated CPU)"
    assert titles[:3] == [f"{kernels} {in_part}", f"Ratios to the baseline {in_part}", f"{scaling} {in_part}"]
    switched = titles[titles.index(f"Ratios to the baseline {emulated}") :]
    assert switched[1] == f"{scaling} {emulated}"
    assert not any(title.startswith((kernels, "Every slice")) for title in switched), "one kernel, no slices"


def test_bad_value_stops_the_notebook(machine: Sandbox) -> None:
    before = set((machine.data / "datapaths").iterdir()) if machine.data.exists() else set()
    done = papermill(machine, "bad.ipynb", SMALL | {"mtu_bytes": "20"})
    assert done.returncode != 0
    assert "BadInput: mtu_bytes=20 is outside 68 to 65535" in done.stderr
    assert (set((machine.data / "datapaths").iterdir()) if machine.data.exists() else set()) == before


def test_parameter_names_and_help() -> None:
    from labkit.measure.experiments.datapaths_parameters import DatapathParameters
    from labkit.runner import sweep

    result = sweep.parameters_of(ROOT / "notebooks" / "01_datapaths.ipynb")
    assert set(result) == {*DatapathParameters.__struct_fields__, "folder"}
    assert all(one.help for one in result.values())
