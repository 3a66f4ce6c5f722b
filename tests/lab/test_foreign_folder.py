"""labkit runs no file of the current folder, which anyone may have filled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import v4
from sandbox import Done, Sandbox, sandbox

pytestmark = pytest.mark.needs("user namespaces", "ip", "veth")

# Modules that labkit's processes import, from the standard library and from other packages.
NAMES = (
    "random",
    "json",
    "msgspec",
    "pyroute2",
    "numpy",
    "pandas",
    "IPython",
    "ipykernel_launcher",
    "sitecustomize",
)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path / "machine") as made:
        yield made


@pytest.fixture
def trap(machine: Sandbox) -> Path:
    """Provide a folder with modules that record who imported them, and with somebody else's project."""
    folder = machine.folder / "trap"
    text = (
        f"open({str(machine.folder / 'ran')!r}, 'a').write(__name__ + chr(10)); raise ImportError('theirs')"
    )
    for name in ("labkit", *NAMES):
        path = folder / name / "__init__.py" if name == "labkit" else folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("notebooks", "params"):
        (folder / name).mkdir()
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell(text)]), folder / "notebooks/01_datapaths.ipynb")
    folder.chmod(0o777)
    return folder


def checked(machine: Sandbox, done: Done, code: int = 0) -> str:
    assert not (machine.folder / "ran").exists(), (machine.folder / "ran").read_text()
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["doctor"],
        ["draw", "veth"],
        ["shell", "veth"],
        ["monitor", "veth", "interface=client0:eth0", "--ping", "--seconds", "1"],
        ["run", "datapaths", "topology=veth", "duration_s=1", "slices=2"],
    ],
)
def test_current_folder_is_not_imported(words: list[str], machine: Sandbox, trap: Path) -> None:
    machine.environment["LABKIT_DATA"] = str(machine.data)
    checked(machine, machine.labkit(*words, cwd=trap))


def test_foreign_notebook_is_not_executed(machine: Sandbox, trap: Path) -> None:
    done = machine.labkit("run", "datapaths", "topology=veth", "duration_s=1", "slices=2", cwd=trap)
    checked(machine, done)
    [run] = (machine.data / "datapaths").iterdir()
    lines = checked(machine, machine.labkit("report", str(run), cwd=trap), code=2)
    assert f"are not executed, because other users can write {trap}" in lines
    (trap / "params/one.yaml").write_text("notebook: 01_datapaths\ngrid: [{pairs: [1]}]\n")
    lines = checked(machine, machine.labkit("sweep", "params/one.yaml", cwd=trap), code=2)
    assert "LABKIT_PROJECT=" in lines


@pytest.mark.long
def test_executed_notebook_does_not_import_its_folder(machine: Sandbox) -> None:
    project = machine.project()
    (project / "notebooks/random.py").write_text(
        f"open({str(machine.folder / 'ran')!r}, 'w').write('random')"
    )
    (project / "notebooks/ipykernel_launcher.py").write_text(
        f"open({str(machine.folder / 'ran')!r}, 'w').write('ipykernel_launcher')"
    )
    done = machine.labkit("run", "datapaths", "topology=veth", "duration_s=1", "slices=2", cwd=project)
    checked(machine, done)
    [run] = (project / "data/datapaths").iterdir()
    checked(machine, machine.labkit("report", str(run), cwd=project, timeout=300))
