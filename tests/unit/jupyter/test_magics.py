"""`%labkit` and `%%labkit`: completion, errors in one sentence, and runs as results."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import synthetic_rows
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from synthetic_why_run import run as profiled_run

from labkit import cli, notebook
from labkit.common import run_folder, schema
from labkit.measure import topologies
from labkit.notebook import Run
from labkit.runner import permissions

pytestmark = pytest.mark.long


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "labkit")
    yield made
    InteractiveShell.clear_instance()


def completed(shell: InteractiveShell, line: str) -> list[str]:
    """Return the kernel's completions at the end of a line."""
    with provisionalcompleter():
        return [one.text for one in shell.Completer.completions(line, len(line))]


def test_completion(shell: InteractiveShell) -> None:
    for line, expected in (
        ("%labkit sw", ["sweep"]),
        ("%%labkit run packet", ["packet_size"]),
        ("%labkit run datapaths topology=veth,macvlan_b", ["macvlan_bridge"]),
        ("%labkit run throughput vary=source_mac,target_", ["target_ip", "target_mac", "target_port"]),
        ("%labkit run datapaths nodes=two mtu", ["mtu_bytes="]),
        ("%labkit draw loop", ["loopback"]),
    ):
        assert set(expected) <= set(completed(shell, line))


def test_error_is_one_sentence(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    for cell, sentence in (
        ("%labkit run datapaths topology=nope", "nope is not a topology"),
        ("%labkit fly", "%labkit fly is no command: choose open, doctor"),
        ("%labkit open absent", "there is no run folder absent"),
        ("%labkit rows absent --csv rows.csv", "there is no run folder absent"),
        ("%%labkit run datapaths\n- 1", "write a line `name: value`"),
        ("%%labkit run datapaths\na: [", "the cell is not valid YAML"),
        ("%%labkit doctor\na: 1", "begin with %%labkit run EXPERIMENT"),
        ("%labkit run datapaths 'x", "No closing quotation"),
    ):
        assert not shell.run_cell(cell).success, "else the cells below would run"
        written = capsys.readouterr()
        assert sentence in written.err
        assert "Traceback" not in written.err + written.out


def test_cell_and_line_are_parameters(
    shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Any] = []

    def measure(experiment: str, parameters: Any, folder: Path | None, watch: Any, keep: bool) -> Path:
        measured.append((experiment, parameters, folder))
        return synthetic_rows.save(tmp_path / "run", synthetic_rows.rows())

    monkeypatch.setattr(notebook.running, "measure", measure)
    cell = "%%labkit run datapaths rounds=5 --folder here\ntopology: [veth, vxlan]\npairs: 2\n"
    result = shell.run_cell(cell).result
    assert len(result.rows) == 180
    assert measured == [
        ("datapaths", {"topology": ["veth", "vxlan"], "pairs": 2, "rounds": "5"}, Path("here"))
    ]


def test_runs_of_the_project_are_completed_and_named_in_its_notebooks(
    shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("notebooks", "params"):
        (tmp_path / name).mkdir()
    synthetic_rows.save(tmp_path / "data/run", synthetic_rows.rows())
    monkeypatch.delenv(run_folder.PROJECT, raising=False)
    for folder in (tmp_path, tmp_path / "notebooks"):
        monkeypatch.chdir(folder)
        assert "data/run" in completed(shell, "%labkit open data/ru")
    for cell in ("%labkit open data/run", "import labkit; labkit.open('data/run')"):
        assert isinstance(shell.run_cell(cell).result, Run)
    assert shell.run_cell("%labkit rows data/run --csv rows.csv").success


def test_why_is_displayed(
    shell: InteractiveShell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = profiled_run(tmp_path / "run")
    result = shell.run_cell(f"%labkit why {folder}:veth_bridge macvlan_bridge").result
    assert result.flames
    assert not (folder / "why.html").exists()
    page = tmp_path / "page.html"
    assert shell.run_cell(f"%labkit why {folder}:veth_bridge macvlan_bridge --out {page}").result is None
    assert page.exists()
    assert "page: " in capsys.readouterr().out


def test_commands_print_and_complete_in_cells(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.run_cell("%labkit draw --help").success
    assert "usage: labkit draw" in capsys.readouterr().out
    shell.run_cell("from labkit.common.errors import BadInput\nraise BadInput('duration_s=0.5: no')")
    assert capsys.readouterr().out.strip() == "BadInput: duration_s=0.5: no"
    # The names of Python would hide them: they are two hundred.
    assert set(completed(shell, "%labkit run datapaths topology=")) == set(topologies.TABLE)
    assert "abs" in completed(shell, "a")


@pytest.mark.parametrize("has_kernel", [True, False], ids=["jupyter", "terminal"])
def test_interrupted_run_says_how_to_resume(
    has_kernel: bool,
    shell: InteractiveShell,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders: list[Path] = []

    def measure(_experiment: str, _parameters: Any, folder: Path, *_: Any) -> Path:
        folders.append(folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(notebook.running, "measure", measure)
    if has_kernel:
        monkeypatch.setattr(shell, "kernel", object(), raising=False)
    assert not shell.run_cell("%labkit run datapaths").success
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("UsageError: interrupted: finished rows are in ")
    assert f"(--folder {run_folder.display_path(folders[0])}, or folder=" in line


def test_options_of_a_command_act_in_it_alone(
    shell: InteractiveShell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv(schema.PERCENTILE, raising=False)
    folder = synthetic_rows.save(tmp_path / "run", synthetic_rows.rows(protocol="ping", slices=0, whole=5))
    assert shell.run_cell(f"%labkit rows {folder} --csv {tmp_path}/rows.csv").success
    shell.run_cell(f"%labkit why {folder} --percentile p99")
    assert schema.PERCENTILE not in os.environ
    given: list[Any] = []
    monkeypatch.setattr(cli, "main", lambda words: given.append(words) or 3)
    monkeypatch.setattr(notebook, "run_experiment", lambda *words: given.append(words))
    assert shell.run_cell("%labkit run datapaths --fail-if slower>3%").success, "a gate's word is no failure"
    assert given == [["run", "datapaths", "--fail-if", "slower>3%"]]
    network = "existing:netns:here+netns:there"
    assert shell.run_cell(f"%labkit run datapaths topology={network} --yes").success
    assert permissions.is_allowed("existing_network", [network])
    for cell, says in (
        ("%%labkit run datapaths --json\npairs: 2", "need the parameters in the line"),
        ("%labkit run datapaths --keep-failed", "does nothing without --folder"),
        ("%labkit run datapaths --markdown x", "does nothing without --fail-if"),
    ):
        capsys.readouterr()
        assert not shell.run_cell(cell).success
        assert says in capsys.readouterr().err
    assert len(given) == 2
