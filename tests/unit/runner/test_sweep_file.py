"""Sweep files are checked against their notebook and experiment before anything runs."""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

from labkit.common import run_folder
from labkit.common.errors import BadInput
from labkit.measure import experiments, hosts
from labkit.notebook import measure
from labkit.runner import papermill_run, sweep
from labkit.runner.progress import Bar
from labkit.system import machine
from labkit.system.qemu.kernels import BootableKernel
from studies.ovs_test_plan.experiment import OvsTestPlanParameters

GOOD: dict[str, Any] = {
    "notebook": "01_datapaths",
    "parameters": {"topology": ["veth", "veth_bridge"], "pairs": [1], "rounds": 1},
    "grid": [{"protocol": ["tcp", "udp"], "mtu_bytes": [1500, 9000]}],
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with the real notebook and params."""
    (tmp_path / "params").mkdir()
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABKIT_DATA", raising=False)
    monkeypatch.setattr(papermill_run, "execute", lambda *_, **__: None)  # no test here is about the report
    return tmp_path


def written(project: Path, content: Any) -> Path:
    path = project / "params" / "small.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


def test_grid_points_and_names(project: Path) -> None:
    result = sweep.load(written(project, GOOD))
    assert [point.name for point in result.points] == ["tcp-1500", "tcp-9000", "udp-1500", "udp-9000"]
    assert result.points[1].parameters == GOOD["parameters"] | {"protocol": "tcp", "mtu_bytes": 9000}
    assert result.folder.parent == project / "data" / "datapaths"
    assert result.folder.name.startswith("small-")
    equivalent = "# a comment\n" + yaml.safe_dump(GOOD, indent=8, sort_keys=False)
    assert sweep.load(written(project, equivalent)).folder == result.folder
    own = [
        {"protocol": ["tcp"], "parameters": {"pairs": [1, 2]}},
        {"protocol": ["udp"], "parameters": {"rounds": 3}},
    ]
    tcp, udp = sweep.load(written(project, GOOD | {"grid": own})).points
    assert tcp.parameters == GOOD["parameters"] | {"protocol": "tcp", "pairs": [1, 2]}
    assert udp.parameters == GOOD["parameters"] | {"protocol": "udp", "rounds": 3}


def finished(content: Any, project: Path, say: Callable[[str], None] = lambda _text: None) -> sweep.Sweep:
    """Return the sweep after its points were measured, as far as its folder shows it."""
    result = sweep.load(written(project, content))

    def measure(plan: sweep.Sweep, points: list[sweep.SweepPoint], _bar: Bar) -> None:
        for point in points:
            (plan.folder / point.name).mkdir(parents=True)
            (plan.folder / point.name / "notebook.ipynb").touch()

    (result.folder / "notebook.ipynb").parent.mkdir(parents=True, exist_ok=True)
    sweep.run(result, Bar(), say, measure)
    return result


def test_points_are_known_by_their_parameters(project: Path) -> None:
    first = finished(GOOD, project)
    other = GOOD | {"parameters": {**GOOD["parameters"], "rounds": 2}}
    second = finished(other, project)
    assert second.folder == first.folder
    assert [point.name for point in second.points] == [
        f"{one.name}-{new.identity}" for one, new in zip(first.points, second.points, strict=True)
    ]
    grown = GOOD | {"grid": [{"protocol": ["udp"], "mtu_bytes": [9000, 1400]}]}
    lines: list[str] = []
    assert [point.name for point in finished(grown, project, lines.append).points] == ["udp-9000", "udp-1400"]
    assert lines[0].endswith("but not in the report: 7 points of earlier values")
    assert lines[1].startswith("1 of 2 points were measured before; continuing in ")
    assert [point.name for point in sweep.load(written(project, other)).points] == [
        point.name for point in second.points
    ]


def test_points_of_an_earlier_labkit_are_known(project: Path) -> None:
    """Its sweep.json has no source, and its identities are of the points' own parameters alone."""
    first = finished(GOOD, project)
    path = first.folder / "sweep.json"
    old = json.loads(path.read_text())
    del old["source"]
    old["identities"] = {one.name: dataclasses.replace(one, others={}).identity for one in first.points}
    assert old["identities"] != {one.name: one.identity for one in first.points}
    path.write_text(json.dumps(old))
    assert [one.name for one in sweep.load(written(project, GOOD)).points] == [
        one.name for one in first.points
    ]


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Execute nothing for a report, and return a list that gets its folder."""
    result: list[Path] = []

    def execute(_notebook: Path, folder: Path, *_words: Any, **_more: Any) -> None:
        (folder / "notebook.ipynb").touch()
        result.append(folder)

    monkeypatch.setattr(papermill_run, "execute", execute)
    return result


def test_interrupt_leaves_no_report_that_lacks_points(project: Path, reported: list[Path]) -> None:
    def interrupt(*_words: Any) -> None:
        raise KeyboardInterrupt

    folder = finished(GOOD, project).folder
    run_folder.write_rows(folder / "tcp-1500", "1-r0", [{"status": "failed"}])
    larger = GOOD | {"grid": [*GOOD["grid"], {"length_bytes": [200]}]}
    for content in (GOOD, larger):  # a point is measured again, and a new one
        (folder / "notebook.ipynb").touch()
        with pytest.raises(KeyboardInterrupt):
            sweep.run(sweep.load(written(project, content)), Bar(), lambda _text: None, interrupt)
        assert not (folder / "notebook.ipynb").exists()
    assert reported == [folder]


def test_report_follows_its_notebook_and_its_percentile(
    project: Path, reported: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(*_words: Any) -> None:
        raise AssertionError("every point is finished, so neither this machine nor a cluster measures")

    def again() -> int:
        sweep.run(sweep.load(written(project, GOOD)), Bar(), lambda _text: None, unwanted)
        return len(reported)

    folder = finished(GOOD, project).folder
    assert again() == 1
    path = project / "notebooks" / "01_datapaths.ipynb"
    path.write_text(path.read_text().replace("## Every measurement", "## All of them"))
    assert again() == 2
    monkeypatch.setenv("LABKIT_PERCENTILE", "p99")
    assert again() == 3
    monkeypatch.delenv("LABKIT_PERCENTILE")
    assert again() == 3
    assert run_folder.read_object(folder / "sweep.json")["percentile"] == "p99"
    assert os.environ["LABKIT_PERCENTILE"] == "p99", (
        "the points that are left would be measured for the median"
    )


def test_changed_constant_of_a_notebook_makes_other_points(project: Path) -> None:
    first = sweep.load(written(project, GOOD)).points
    path = project / "notebooks" / "01_datapaths.ipynb"
    before = path.read_text()
    assert before.count('\\"duration_s\\": 1,') == 1
    path.write_text(before.replace('\\"duration_s\\": 1,', '\\"duration_s\\": 9,'))
    second = sweep.load(written(project, GOOD)).points
    assert not {one.identity for one in first} & {one.identity for one in second}
    path.write_text(before.replace('\\"omit_s\\": 1,', '\\"omit_s\\": 1,  # said otherwise\\n'))
    third = sweep.load(written(project, GOOD)).points
    assert [one.identity for one in third] == [one.identity for one in first]


def reused(project: Path, other: Path, content: Any = GOOD) -> list[str]:
    """Return the names of the points that a sweep with the same points takes from the folder of another one."""
    path = written(project, content).rename(project / "params" / "second.yaml")
    result, left = sweep.load(path), set[str]()

    def measure(_plan: sweep.Sweep, points: list[sweep.SweepPoint], _bar: Bar) -> None:
        left.update(point.name for point in points)

    sweep.run(result, Bar(), lambda _text: None, measure, reuse=other)
    return sorted({point.name for point in result.points} - left)


def measured(project: Path) -> Path:
    """Return the folder of a sweep whose first point has a row, and whose others have none."""
    other = finished(GOOD, project).folder
    here = {name: machine.describe()[name] for name in sweep.HERE}
    run_folder.write_rows(other / "tcp-1500", "1-r0", [{**here, "status": "ok"}])
    return other


def test_points_are_the_same_however_their_lists_are_written(project: Path) -> None:
    """Identities are of the parameters as they were written, in older folders, too."""
    other = measured(project)
    plain = GOOD | {"parameters": {"topology": "veth, veth_bridge", "pairs": 1, "rounds": "1"}}
    first, again = (sweep.load(written(project, content)).points for content in (GOOD, plain))
    assert not {one.identity for one in first} & {one.identity for one in again}
    assert [one.name for one in again] == [one.name for one in first]
    assert reused(project, other, plain) == ["tcp-1500"]
    more = GOOD | {"parameters": {**GOOD["parameters"], "pairs": [1, 2]}}
    assert not {one.name for one in sweep.load(written(project, more)).points} & {one.name for one in first}


def test_reuse_takes_no_pipe(project: Path) -> None:
    """It would be read for ever."""
    other = measured(project)
    os.mkfifo(other / "tcp-1500" / "rows" / "pipe")
    assert reused(project, other) == ["tcp-1500"]
    [rows] = (project / "data" / "datapaths").glob("second-*/tcp-1500/rows")
    assert [one.name for one in rows.iterdir()] == ["1-r0.jsonl"]


def test_interrupted_copy_is_no_finished_point(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, copy = measured(project), shutil.copytree

    def interrupt(*words: Any, **more: Any) -> None:
        copy(*words, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep.shutil, "copytree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        reused(project, other)
    [point] = (project / "data" / "datapaths").glob("second-*/tcp-1500")
    assert [one.name for one in point.iterdir()] == ["rows"]


def test_invalid_identities_are_refused(project: Path) -> None:
    path = finished(GOOD, project).folder / "sweep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"identities": {"../tcp": "01234567"}}))
    with pytest.raises(BadInput, match="identities are not texts by the names of points"):
        sweep.load(written(project, GOOD))


def test_points_depend_on_the_kernel(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name like vm:debian stands for another kernel after a newer one, or another build of its release, was
    installed."""
    content = GOOD | {"grid": [{"where": ["here", "vm:debian,cpus=1"]}]}
    identities = []
    for release, build in (("6.1.0-37-amd64", "one"), ("6.12.9-amd64", "one"), ("6.12.9-amd64", "another")):
        image = project / f"vmlinuz-{build}"
        image.write_text(build)
        kernel = BootableKernel(release, image, None, "store")
        monkeypatch.setattr("labkit.system.qemu.kernels.find", lambda name, kernel=kernel: kernel)
        assert hosts.resolved("vm:debian,cpus=1") == f"vm:{release},cpus=1"
        identities.append(sweep.load(written(project, content)).points[1].identity)
    assert len(set(identities)) == 3
    assert hosts.resolved("here") == hosts.identified("here") == "here"


def test_folder_depends_on_the_kernel_build(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = sweep.machine.describe()
    first = sweep.load(written(project, GOOD)).folder
    monkeypatch.setattr("labkit.system.machine.describe", lambda: report | {"kernel_build": "#2 SMP"})
    assert sweep.load(written(project, GOOD)).folder != first


def test_missing_kernel_is_refused_early(project: Path) -> None:
    result = sweep.load(written(project, GOOD | {"grid": [{"where": ["here", "vm:9.9.9-none"]}]}))
    with pytest.raises(BadInput, match=r"no kernel '9\.9\.9-none' can be booted here"):
        sweep.run(result, Bar(), lambda text: None)
    assert {path.name for path in result.folder.iterdir()} == {"sweep.json"}


@pytest.mark.long
def test_project_sweep_files(project: Path) -> None:
    for name in sorted(path.name for path in (ROOT / "params").glob("*.yaml")):
        result = sweep.load(ROOT / "params" / name)
        assert result.points
        if name.startswith("findings-"):
            assert sum(map(result.planned_s, result.points)) < 1800  # the shortened runs of docs/FINDINGS.md
        elif result.experiment == "ovs_test_plan":
            assert sum(map(result.planned_s, result.points)) < 95 * 60  # it took 71 minutes without a VLAN
            # The report compares both points, which measure frames of 64 bytes and 64,000 flows, with one baseline.
            assert len({OvsTestPlanParameters.of(point.parameters).arms[0] for point in result.points}) == 1


def test_invalid_sweeps_are_refused(project: Path) -> None:
    for change, words in (
        ({"notebook": "02_nothing"}, "there is no notebook 02_nothing: choose 0"),
        ({"notebook": "../01_datapaths"}, "notebook must be the name of a notebook in notebooks/"),
        ({"parameters": [1]}, "parameters must be a mapping"),
        ({"parameters": {"pears": [1]}}, "has no parameter pears; it has: .*pairs"),
        ({"parameters": {"folder": "elsewhere"}}, "has no parameter folder; it has: "),
        (
            {"parameters": {"topology": ["overlay"]}},
            "pairs=8: overlay has one pair",
        ),  # the notebook's own pairs
        ({"grid": []}, "grid is an empty list"),
        ({"grid": [5]}, "grid must be a list of mappings"),
        ({"grid": {"protocol": ["tcp"], "parameters": 5}}, "every axis of grid needs a list of values"),
        ("- 1\n- 2\n", "is not a sweep: "),
        ("a: !!python/object/apply:os.getcwd []\n", "is not a valid YAML file: "),
    ):
        with pytest.raises(BadInput, match=words) as caught:
            sweep.load(written(project, change if isinstance(change, str) else GOOD | change))
        assert isinstance(change, str) or "\n" not in str(caught.value)
        assert not (project / "data").exists()


MEASURING = sorted(
    path for path in (ROOT / "notebooks").glob("*.ipynb") if sweep.experiment_of(path) in experiments.TABLE
)


@pytest.mark.parametrize("notebook", MEASURING, ids=[path.stem for path in MEASURING])
def test_notebook_parameters(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first cell has the ten that people change first, the next one has the others; each is of the experiment."""
    result = sweep.parameters_of(notebook)
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    exec("".join(cells[0]["source"]), names)
    first = names.keys() - {"__builtins__", "__annotations__"}
    assert len(first) <= 10
    exec("".join(cells[1]["source"]), names)
    assert cells[1]["metadata"]["tags"] == ["details"]
    details = names["details"] | names.get("stateful_details", {})
    source = "".join(cells[1]["source"])
    for name in details:
        assert re.search(rf'^ +"{name}": .*  # .', source, re.MULTILINE), f"{name} has no comment"
    assert not first & details.keys()
    assert first | details.keys() == result.keys()
    calls: list[tuple[str, dict[str, Any], None]] = []
    monkeypatch.setattr("labkit.notebook.run_experiment", lambda *words: calls.append(words))
    measure(sweep.experiment_of(notebook), names)
    if "stateful_folder" in first:  # 07_trex ends with a second experiment
        measure("trex_stateful", names, "stateful_")
    for name, given, _folder in calls:
        experiments.find(name).parameters.of(given)
    # 06_live_monitor begins with a part that is no experiment
    own = {name.removeprefix("stateful_") for name in result if not name.startswith("live_")}
    assert {"folder"}.union(*(given for _, given, _ in calls)) == own


def test_change_files_beside_the_sweep_only(project: Path) -> None:
    rules = project / "params" / "rules.nft"
    rules.write_text("table inet t { }\n")
    change = {"name": "rules", "at": "server", "nftables": "rules.nft"}
    content = GOOD | {"parameters": GOOD["parameters"] | {"change": [change]}}
    first = sweep.load(written(project, content))
    [step] = first.points[0].parameters["change"][0]["steps"]
    assert step["options"]["rules"] == "table inet t { }\n"
    rules.write_text("table inet u { }\n")
    assert sweep.load(written(project, content)).points[0].identity != first.points[0].identity
    change["nftables"] = "../secret.nft"
    with pytest.raises(BadInput, match="outside of the folder"):
        sweep.load(written(project, content))


def test_point_named_after_its_change(project: Path) -> None:
    changes = [[{"name": name, "parameter": {"streams": count}}] for name, count in (("two", 2), ("four", 4))]
    result = sweep.load(written(project, GOOD | {"grid": [{"change": changes}]}))
    assert [point.name for point in result.points] == ["two", "four"]


def test_network_of_a_sweep_travels_in_its_points(project: Path) -> None:
    own = project / "params" / "mine.yaml"
    (project / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "network.yaml", project / "docs")
    shutil.copy(ROOT / "docs" / "network.yaml", own)
    topologies = [["mine.yaml", "veth"], ["veth", "docs/network.yaml"]]
    content = {
        "notebook": "01_datapaths",
        "grid": {"topology": topologies},
        "parameters": {"mtu_bytes": 1450, "pairs": [1]},
    }
    first = sweep.load(written(project, content))
    assert [point.name for point in first.points] == ["mine.yaml_veth", "veth_docs_network.yaml"]
    [network, name] = first.points[0].parameters["topology"]
    assert (network["name"], network["pairs"], name) == ("two sites", [["alice", "bob"]], "veth")
    own.write_text(own.read_text().replace("vxlan7", "vxlan8"))
    assert sweep.load(written(project, content)).points[0].identity != first.points[0].identity
    own.write_text(own.read_text().replace("bob]]", "carol]]"))
    with pytest.raises(BadInput, match="a pair has carol, which is not a node"):
        sweep.load(written(project, content))


def test_notebook_of_each_experiment(project: Path) -> None:
    """07_trex measures two experiments, so a report of one of them would measure the other one."""
    for experiment in experiments.OWN:
        expected = {
            "monitor_cost": "06_live_monitor",
            "throughput": None,
            "load_test": None,
            "trex_stateful": None,
        }
        name = expected.get(experiment, experiment)
        notebook = sweep.notebook_of(experiment)
        if name is None:
            assert notebook is None
        else:
            assert notebook.stem.endswith(name)
