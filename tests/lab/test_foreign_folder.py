"""labkit runs no file of the current folder, which anyone may have filled."""

import sys

import nbformat
import pytest
from nbformat import v4
from sandbox import IMPORTED, Done, Sandbox, Trap, machine_fixture

from benchmarks import promise

pytestmark = [pytest.mark.long, pytest.mark.needs("user namespaces", "ip", "veth")]

machine = machine_fixture()


@pytest.fixture
def trap(machine: Sandbox) -> Trap:
    """Provide a trap that anybody may write, and that looks like somebody else's project."""
    made = Trap(machine.folder / "trap")
    for name in ("notebooks", "params"):
        (made.folder / name).mkdir()
    path = made.folder / "notebooks/01_datapaths.ipynb"
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell(made.text)]), path)
    made.folder.chmod(0o777)
    return made


def checked(trap: Trap, done: Done, code: int = 0) -> str:
    assert not trap.imported()
    assert done.returncode == code, done.stderr
    return done.stderr


def test_trap_records_what_is_imported(machine: Sandbox, trap: Trap) -> None:
    assert machine.run(sys.executable, "-c", "import random", cwd=trap.folder).returncode == 1
    assert "random" in trap.imported()


def test_current_folder_is_not_imported(machine: Sandbox, trap: Trap) -> None:
    machine.environment["LABKIT_DATA"] = str(machine.data)
    words = ["monitor", "veth", "interface=client0:eth0", "--ping", "--seconds", "1"]
    checked(trap, machine.labkit(*words, cwd=trap.folder))


def test_benchmarks_start_nothing_of_the_current_folder(machine: Sandbox, trap: Trap) -> None:
    """Benchmarks are run from the clone, but start their programs in other folders, too."""
    imports = promise.python("-c", f"import {', '.join(IMPORTED[:4])}, benchmarks.promise")
    for argv in (imports, [*promise.LABKIT, "--version"]):
        checked(trap, machine.run(*argv, cwd=trap.folder))


def test_foreign_notebook_is_not_executed(machine: Sandbox, trap: Trap) -> None:
    words = ("topology=veth", "slices=1", "whole_runs=0", "--json")
    checked(trap, machine.labkit("run", "datapaths", *words, cwd=trap.folder))
    [run] = (machine.data / "datapaths").iterdir()
    (trap.folder / "params/one.yaml").write_text("notebook: 01_datapaths\ngrid: [{pairs: [1]}]\n")
    report, sweep = machine.commands(f"report {run}", "sweep params/one.yaml", cwd=trap.folder).values()
    because = f"are not executed, because other users can write {trap.folder}"
    assert because in checked(trap, report, code=2)
    assert "LABKIT_PROJECT=" in checked(trap, sweep, code=2)


@pytest.mark.long
def test_executed_notebook_does_not_import_its_folder(machine: Sandbox) -> None:
    project = machine.project()
    trap = Trap(project / "notebooks")
    done = machine.labkit("run", "datapaths", "topology=veth", "duration_s=1", "slices=2", cwd=project)
    checked(trap, done)
    [run] = (project / "data/datapaths").iterdir()
    checked(trap, machine.labkit("report", str(run), cwd=project, timeout=300))
