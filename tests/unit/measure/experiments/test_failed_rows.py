"""The same command measures failed rows again, and its exit code reports remaining ones."""

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import nbformat
import pytest

from labkit import cli
from labkit.analysis import load
from labkit.commands import sweep as sweep_command
from labkit.commands import terminal_tables
from labkit.common import run_folder
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure import experiments, hosts
from labkit.measure.experiments import survey
from labkit.measure.experiments.context import RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import Arm
from labkit.runner import papermill_run, run, sweep, unmeasured_point

Row = dict[str, Any]


def row(arm: str, status: str = "ok", **more: Any) -> Row:
    return {"arm": arm, "status": status, "reason": None if status == "ok" else "it broke", **more}


@pytest.fixture
def sent_requests(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Record the requests that reach a host. Each point that is requested again succeeds."""
    sent: list[Row] = []

    def ask(_where: str, request: Row, _say: Any) -> Iterator[Row]:
        sent.append(request)
        points = request.get("again", ["1-r0", "1-r1"])
        status = "ok" if "again" in request else "failed"
        for point in points:
            rows = [row("veth", status if point == "1-r1" else "ok")]
            yield {"event": "rows", "point": point, "rows": rows}

    monkeypatch.setattr(run, "ask", ask)
    return sent


def measure(folder: Path, **given: Any) -> list[Row]:
    run.measure("datapaths", {"topology": "veth"}, folder, lambda _event: None, **given)
    return run_folder.read_rows(folder)


def test_rows_of_the_point_that_a_run_measured_when_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are kept until the same command measures the point again, which does not double them."""
    trials = [row("veth", number=number) for number in range(3)]
    ends_early = True

    def ask(_where: str, _request: Row, _say: Any) -> Iterator[Row]:
        for trial in trials:
            yield {"event": "unfinished", "point": "1-r0", "rows": [trial]}
        if ends_early:
            raise Failed("the experiment's process was killed")
        yield {"event": "rows", "point": "1-r0", "rows": trials}

    monkeypatch.setattr(run, "ask", ask)
    for _attempt in range(2):
        with pytest.raises(Failed):
            measure(tmp_path / "run")
        assert run_folder.read_rows(tmp_path / "run") == trials
        assert run_folder.finished_points(tmp_path / "run") == set()
    ends_early = False
    assert [{name: one[name] for name in trials[0]} for one in measure(tmp_path / "run")] == trials
    assert [path.name for path in (tmp_path / "run" / "rows").iterdir()] == ["1-r0.jsonl"]


def run_context(folder: Path, *again: str) -> RunContext:
    return RunContext("datapaths", folder, 1, {}, again=frozenset(again))


def test_recovered_arm_is_measured_everywhere(tmp_path: Path) -> None:
    usable = [Arm("veth", "baseline"), Arm("vxlan", "variant")]
    run_folder.write_rows(tmp_path, "1-refused", [row("vxlan", "failed")])
    run_folder.write_rows(tmp_path, "1-r0", [row("veth", point="1-r0")])
    of_all = [row(arm, point="1-r1") for arm in ("veth", "veth (again)", "vxlan")]
    run_folder.write_rows(tmp_path, "1-r1", of_all)
    assert run_folder.failed_points(tmp_path) == ["1-refused"]
    assert run_context(tmp_path, "1-r1").done() == {"1-refused", "1-r0"}  # what is measured again is not done
    there = run_context(tmp_path, "1-refused")
    assert survey.incomplete_points(there, usable, {}) == {"1-r0"}
    assert survey.incomplete_points(there, usable, {"1-r0": usable[:1]}) == set(), "a point of one arm"
    assert survey.incomplete_points(run_context(tmp_path), usable, {}) == set()  # no arm has failed
    [event] = survey.refused_rows([DatapathParameters()], there, [], there.done())
    assert (event["point"], event["rows"]) == ("1-refused", [])
    run_folder.write_rows(tmp_path, event["point"], event["rows"])
    assert run_folder.failed_points(tmp_path) == []
    plain = run_context(tmp_path)
    assert not list(survey.refused_rows([DatapathParameters()], plain, [], plain.done()))


def made_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """Create a sweep of two finished points, one with a failed row. Return it with the names of executed points."""
    folder, executed = tmp_path / "sweep", list[str]()
    points = [sweep.SweepPoint(name, {}) for name in ("one", "two")]
    notebook = tmp_path / "01_x.ipynb"
    notebook.write_bytes(b"{}")
    names = {"name": "sweep", "about": "", "experiment": "datapaths", "folder": folder, "notebook": notebook}
    made = SimpleNamespace(**names, points=points, planned_s=lambda _: 1.0)
    known = {
        "sweep": "sweep", "notebook": "01_x.ipynb", "seed": 1, "created": run_folder.now(), "about": "",
        "source": hashlib.sha256(b"{}").hexdigest()[:8], "percentile": None, "points": ["one", "two"],
        "parameters": {one.name: one.parameters for one in points},
        "identities": {one.name: one.identity for one in points},
    }  # fmt: skip
    run_folder.write_json(folder / "sweep.json", known)
    for name in ("one", "two", "."):
        run_folder.write(folder / name / "notebook.ipynb", b"{}")
    run_folder.write_rows(folder / "one", "1-r0", [row("veth")])
    run_folder.write_rows(folder / "two", "1-r0", [row("veth", "failed")])

    def execute(_notebook: Path, _folder: Path, _given: Any, _bar: Any, name: str, **_: Any) -> None:
        executed.append(name)

    monkeypatch.setattr(papermill_run, "execute", execute)
    return made, executed


@pytest.mark.parametrize(("keep", "expected"), [(False, ["two", "report"]), (True, [])])
def test_sweep_measures_failed_points_again(
    keep: bool, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, executed = made_sweep(tmp_path, monkeypatch)
    bar: Any = SimpleNamespace(say=lambda _text: None, doing=lambda _text: None)
    sweep.run(cast(Any, made), bar, bar.say, keep_failed=keep)
    assert executed == expected
    assert [one["status"] for one in sweep.rows(made.folder)] == ["ok", "failed"]


def test_unbootable_kernel_fails_its_point_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, executed = made_sweep(tmp_path, monkeypatch)
    made.points = [sweep.SweepPoint(name, {"where": f"vm:{name}"}) for name in ("old", "new")]
    run_folder.write_json(made.folder / "sweep.json", {"seed": 1, "points": ["old", "new"]})
    broken = {"vm:old"}
    measures: list[bool] = []  # whether the point's notebook measures, as real ones do
    requested: list[Row] = []

    def ask(_where: str, request: Row, _say: Any) -> Iterator[Row]:
        requested.append(request)
        yield {"event": "rows", "point": "1-r0", "rows": [row("veth", point="1-r0")]}

    def execute(_notebook: Path, folder: Path, given: Row, _bar: Any, name: str, **_: Any) -> None:
        executed.append(name)
        if measures and name == "old":
            parameters = {"topology": "veth", "where": given["where"]}
            run.measure("datapaths", parameters, folder, lambda _event: None)

    monkeypatch.setattr(papermill_run, "execute", execute)
    monkeypatch.setattr(run, "ask", ask)
    monkeypatch.setattr(hosts, "measuring_lock", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(hosts, "check", lambda _where: None)

    @contextlib.contextmanager
    def leasing(_folder: Path, _say: Any) -> Iterator[Any]:
        def lease(where: str) -> bool:
            if where in broken:
                raise Failed("the lab VM did not boot")
            return False

        yield lease

    monkeypatch.setattr(hosts, "leasing", leasing)
    monkeypatch.setattr(hosts, "resolved", lambda where: where)
    report: list[str] = []
    bar: Any = SimpleNamespace(say=report.append, doing=report.append)
    sweep.run(cast(Any, made), bar, bar.say)
    assert sorted(executed) == ["new", "report"]
    assert sweep.failed(made.folder) == {"old": "vm:old: the lab VM did not boot"}
    assert any(line.startswith("point old could not be measured") for line in report)
    assert "executing the notebook over 2 points, for the report" in report
    [only] = sweep.rows(made.folder)
    expected = ("failed", "vm:old: the lab VM did not boot", "vm:old", "host")
    assert tuple(only[name] for name in ("status", "reason", "where", "point")) == expected
    assert run_folder.read_run(made.folder / "old")["parameters"]["where"] == "vm:old"
    assert list(load.load(made.folder)["status"]) == ["failed"]
    assert sweep_command.judge_sweep(made.folder) == 2
    said = capsys.readouterr().err
    assert said == "labkit: point old could not be measured: vm:old: the lab VM did not boot\n"
    broken.clear()
    measures.append(True)
    sweep.run(cast(Any, made), bar, bar.say)
    assert sorted(executed) == ["new", "new", "old", "report", "report"]
    assert requested[-1].get("again") is None, "the row of the host is no point of the experiment"
    assert sweep.failed(made.folder) == {}
    assert [one["status"] for one in sweep.rows(made.folder)] == ["ok"]
    assert sweep_command.judge_sweep(made.folder) == 0
    broken.update({"vm:old", "vm:new"})
    with pytest.raises(Failed, match="did not boot"):
        sweep.run(cast(Any, made), bar, bar.say)


def test_sweep_uses_its_own_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel saved in the notebook may be a lab VM's, or one that does not exist here."""
    cell = nbformat.v4.new_code_cell("import sys; print(sys.executable)")
    lab_vm = {"kernelspec": {"name": "labkit-vm-9.9", "display_name": "gone", "language": "python"}}
    written = nbformat.v4.new_notebook(cells=[cell], metadata=lab_vm)
    nbformat.write(written, tmp_path / "01_x.ipynb")
    bar: Any = SimpleNamespace(say=print, see=print, stop=lambda: None)
    papermill_run.execute(tmp_path / "01_x.ipynb", tmp_path / "out", {}, bar, "x")
    [ran] = [one for one in nbformat.read(tmp_path / "out/notebook.ipynb", as_version=4).cells if one.outputs]
    assert ran.outputs[0].text.strip() == sys.executable


# Only this machine can reach a TRex server, so TRex experiments need no kernel to boot.
@pytest.mark.parametrize("name", [one for one in experiments.TABLE if not one.startswith("trex")])
def test_unbootable_kernel_of_each_experiment(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "vm:old: the lab VM did not boot"
    unmeasured_point.write(tmp_path / "old", name, {"where": "vm:old"}, why)
    run_folder.write_json(tmp_path / "sweep.json", {"points": ["old"]})
    assert sweep.failed(tmp_path) == {"old": why}
    table = load.load(tmp_path, None)
    terminal_tables.show_verdicts(terminal_tables.show_observations(table))
    terminal_tables.show_findings(table, load.profiles(tmp_path))
    assert why in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "variable", "code"), [([], "", 0), (["--keep-failed"], "", 2), ([], "1", 2)]
)
def test_exit_code_of_failed_rows_that_are_measured_again_or_kept(
    options: list[str],
    variable: str,
    code: int,
    sent_requests: list[Row],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["run", "datapaths", "topology=veth", "--json", "--folder", str(tmp_path / "run")]
    assert cli.main(command) == 2
    assert "labkit: veth: it broke" in capsys.readouterr().err
    monkeypatch.setenv(run.KEEP_FAILED, variable)
    for _again in range(2):
        assert cli.main(command + options) == code
    assert [request.get("again") for request in sent_requests] == [None, ["1-r1"]][: 1 if code else 2]
    there = [one["status"] for one in run_folder.read_rows(tmp_path / "run")]
    assert there == ["ok", "failed" if code else "ok"]


@pytest.mark.parametrize("kind", [BadInput, Unsupported, Failed])
def test_run_without_rows_leaves_no_folder(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused, or its host failed after it had described its machine."""
    events: list[Row] = []

    def ask(_where: str, request: Row, _say: Any) -> Iterator[Any]:
        if kind is Failed:
            (Path(request["folder"]) / "environment.json").write_text("{}")
            yield {"event": "progress"}
        raise kind("not here")

    monkeypatch.setattr(run, "ask", ask)
    with pytest.raises(kind, match="not here"):
        run.measure("datapaths", {"topology": "veth"}, tmp_path / "new", events.append)
    assert not (tmp_path / "new").exists()
    if kind is not Failed:
        assert "new" not in str(events), "nobody needs the name of a folder that is not there"
        (tmp_path / "old").mkdir()
        (tmp_path / "old/mine.txt").touch()
        with pytest.raises(kind, match="not here"):
            measure(tmp_path / "old")
        assert [path.name for path in (tmp_path / "old").iterdir()] == ["mine.txt"]
