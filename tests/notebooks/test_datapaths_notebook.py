"""The datapaths notebook, executed by plain papermill: rows, prose and figures of a small run, and of an existing
run."""

import json
from pathlib import Path
from typing import Any

import pytest
import synthetic_rows
from executed_notebook import Shown, copied
from executed_notebook import papermill as command
from sandbox import Done, Sandbox, only_run, rows_on_disk
from synthetic_rows import HOSTS, save

from labkit.common import run_folder

pytestmark = pytest.mark.needs("user namespaces", "iperf3", "ip", "ping", "ethtool", "veth", "bridge")

SMALL = {"topology": "veth,veth_bridge,ipvlan_l2", "pairs": "1", "rounds": "1", "slices": "2", "whole_runs": "1",
         "duration_s": "1", "omit_s": "0", "seed": "9"}  # fmt: skip


def papermill(machine: Sandbox, out: str, parameters: dict[str, str]) -> tuple[Done, Path]:
    """Run `papermill 01_datapaths.ipynb OUT -p name value …`; return how it ended, and the file."""
    words = [word for name, value in parameters.items() for word in ("-p", name, value)]
    path = machine.folder / out
    return machine.run(*command("01_datapaths", path, *words), cwd=copied(machine.folder)), path


@pytest.fixture(scope="module")
def executed(machine: Sandbox) -> Shown:
    """Execute the notebook with all its parameters as papermill's -p passes them, some of them as text."""
    done, path = papermill(machine, "out.ipynb", SMALL)
    assert done.returncode == 0, done.stderr
    return Shown(path)


@pytest.mark.smoke
def test_rows_of_the_executed_notebook(executed: Shown, machine: Sandbox) -> None:
    folder = only_run(machine)
    rows = run_folder.read_rows(folder)
    topologies = run_folder.read_json(folder / "run.json")["parameters"]["topology"]
    assert topologies == ["veth", "veth_bridge", "ipvlan_l2"]
    measured = {(row["arm"], row["method"], row["status"]) for row in rows if row["topology"] != "ipvlan_l2"}
    assert measured == {
        (arm, method, "ok")
        for arm in ("veth", "veth (again)", "veth_bridge")
        for method in ("slice", "whole")
    }
    assert {row["seed"] for row in rows} == {9}


@pytest.mark.smoke
def test_prose_matches_the_rows(executed: Shown, machine: Sandbox) -> None:
    prose = executed.texts()
    rows = run_folder.read_rows(only_run(machine))
    ok = [row for row in rows if row["status"] == "ok"]
    assert f"Linux {rows[0]['kernel']} on {rows[0]['cpu']}" in prose
    assert f"{len(ok)} valid measurements of {len({row['topology'] for row in ok})} topologies" in prose
    assert "1 pair: all 1 round were measured" in prose
    assert "| veth_bridge | veth | " in prose
    refused = [row for row in rows if row["status"] == "unsupported"]
    for row in refused:
        assert f"- ipvlan_l2: {row['reason']}" in prose


@pytest.mark.smoke
def test_figures_and_no_failed_cell(executed: Shown) -> None:
    assert len(executed.titles()) >= 3
    assert not [output for output in executed.outputs if output["output_type"] == "error"]
    lines = "".join(output["text"] for output in executed.outputs if output.get("name") == "stderr")
    assert all(line.startswith("labkit: ") for line in lines.splitlines()), lines


@pytest.mark.exhaustive  # test_docs_site.py executes notebooks with runs that exist
def test_existing_run_is_shown(executed: Shown, machine: Sandbox) -> None:
    folder = only_run(machine)
    before = rows_on_disk(folder), (folder / "run.json").read_bytes()
    done, path = papermill(machine, "again.ipynb", SMALL | {"folder": str(folder)})
    assert done.returncode == 0, done.stderr
    assert (rows_on_disk(folder), (folder / "run.json").read_bytes()) == before
    assert only_run(machine) == folder
    assert Shown(path).texts() == executed.texts()


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
    done, path = papermill(machine, "hosts.ipynb", {"folder": str(sweep)})
    assert done.returncode == 0, done.stderr
    prose, titles = Shown(path).texts(), Shown(path).titles()
    assert "Only ratios are compared between hosts, never speeds" in prose
    assert (
        prose.index("### Local: one node")
        < prose.index("**Linux 6.1.0-37-amd64, emulated**")
        < prose.index("\n## Local")
    )
    assert prose.index("\n## Local: one node") < prose.index("\n## Switched: two nodes")
    kernels = "Ratios to the baseline within each kernel"
    assert titles[0] == f"{kernels} (in part on an emulated CPU)"
    switched = titles[titles.index("Ratios to the baseline (emulated CPU)") :]
    assert not any(title.startswith((kernels, "Every slice")) for title in switched), "one kernel, no slices"
