"""A notebook's kernel in a lab VM: what cells see and may write, interrupt, restart, shutdown, and papermill."""

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from conftest import ROOT
from jupyter_client import KernelManager
from kernel_eavesdropper import heard, listening
from sandbox import MARK, marked, until

from labkit.jupyter import kernelspecs

pytestmark = pytest.mark.needs("set-up")
PATIENCE_S = 400  # an idle machine needs 20 for the slowest step


@dataclass
class Notebook:
    """A notebook's kernel and its folder. `mark` is in the environment of all processes that Jupyter starts for it."""

    manager: KernelManager
    client: Any
    folder: Path
    mark: str

    def run(self, code: str) -> str:
        """Return what a cell writes; assert that it succeeds."""
        status, text = self.report(code)
        assert status == "ok", text
        return text

    def report(self, code: str, first: Callable[[], None] = lambda: None) -> tuple[str, str]:
        """Return how a cell ends, and what it writes and shows. `first` is called at its first output."""
        heard: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            content = message["content"]
            data = content.get("data", {})
            shown = data.get("text/markdown", data.get("text/plain", ""))
            text = content.get("text", "") or shown or "\n".join(content.get("traceback", []))
            if text and not heard:
                first()
            heard.extend([text] if text else [])

        reply = self.client.execute_interactive(code, timeout=PATIENCE_S, output_hook=hear)
        return reply["content"]["status"], "".join(heard).strip()

    def programs(self) -> list[str]:
        """Return the names of the programs that run for the kernel on this machine."""
        return [Path(words[0]).name for words in marked(self.mark).values() if words]


@pytest.fixture(scope="module")
def spec(lab_kernel: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the name of a kernelspec that Jupyter finds."""
    prefix = tmp_path_factory.mktemp("prefix")
    [_, name] = kernelspecs.install([lab_kernel], prefix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(prefix / "share/jupyter"))
        yield name


@pytest.fixture(scope="module")
def notebook(spec: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    folder, mark = tmp_path_factory.mktemp("notebooks"), uuid.uuid4().hex
    manager = KernelManager(kernel_name=spec)
    manager.shutdown_wait_time = 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        patch.setenv("PYTHONPATH", str(ROOT))
        manager.start_kernel(cwd=str(folder))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        yield Notebook(manager, client, folder, mark)
    finally:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def test_only_the_notebook_folder_is_writable(notebook: Notebook, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("before")
    notebook.run("from pathlib import Path; Path('left.txt').write_text('from the guest')")
    assert (notebook.folder / "left.txt").read_text() == "from the guest"
    elsewhere = f"there, fresh = Path({str(tmp_path / 'there')!r}), Path({str(tmp_path / 'fresh')!r})"
    # a copy that is discarded with the lab VM
    code = f"{elsewhere}; there.write_text('after'); fresh.touch(); print(there.read_text(), fresh.exists())"
    assert notebook.run(code) == "after True"
    assert (tmp_path / "there").read_text() == "before"
    assert not (tmp_path / "fresh").exists()
    assert notebook.run("import os; print(os.environ['LABKIT_DATA'])") == str(notebook.folder / "data")


def test_guest_reaches_no_network(notebook: Notebook) -> None:
    lines = notebook.run(
        "import socket\nfor port in 22, 53:\n"
        "    with socket.socket() as one:\n        one.settimeout(3)\n"
        "        print(type(one.connect_ex(('10.0.2.2', port))).__name__, one.connect_ex(('10.0.2.2', port)) == 0)"
    )
    assert lines.split() == ["int", "False"] * 2


@pytest.mark.needs("root")
def test_another_user_of_the_machine_hears_nothing(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(
        "import threading, time\nstop = threading.Event()\ndef prints():\n    while not stop.wait(0.05):\n"
        "        print('a secret', flush=True)\nthreading.Thread(target=prints, daemon=True).start()"
    )
    assert heard(listening(psutil.Process()), tmp_path) == (0, False)
    notebook.report("stop.set()")


def test_interrupt_reaches_cell_and_program(notebook: Notebook) -> None:
    code = "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '1000'])"
    status, text = notebook.report(code, notebook.manager.interrupt_kernel)
    assert status == "error"
    assert "KeyboardInterrupt" in text
    assert notebook.run("print(6 * 7)") == "42"
    sleeping = "subprocess.run(['ps', '-C', 'sleep', '-o', 'args='], capture_output=True, text=True).stdout"
    assert "sleep 1000" not in notebook.run(f"print({sleeping})")


@pytest.mark.exhaustive  # it ends as by shutdown, and boots again as at first
def test_restart_boots_another_lab_vm(notebook: Notebook, lab_kernel: str) -> None:
    notebook.run("kept = 1; open('/etc/labkit-was-here', 'w').close()")
    before = set(marked(notebook.mark))
    notebook.manager.restart_kernel()
    notebook.client.wait_for_ready(timeout=PATIENCE_S)
    code = "import os; print(os.uname().release, 'kept' in globals(), os.path.exists('/etc/labkit-was-here'))"
    assert notebook.run(code) == f"{lab_kernel} False False"
    assert until(lambda: not before & set(marked(notebook.mark)), 20)


CLEAN = "get_ipython().reset()"  # names of the cells above are no parameters
SMALL = "topology, pairs, rounds = ['veth'], [1], 1; details |= {'slices': 2, 'whole_runs': 0}"


def test_datapaths_notebook_measures_in_its_lab_vm(notebook: Notebook, lab_kernel: str) -> None:
    """The lab VM imports numpy, pandas and plotly: an emulated CPU has every instruction that the wheels use."""
    written = nbformat.read(ROOT / "notebooks/01_datapaths.ipynb", as_version=4)
    cells = [cell.source for cell in written.cells if cell.cell_type == "code"]
    # test_datapaths_notebook has the other cells.
    last = next(number for number, source in enumerate(cells) if "notebook.measure(" in source)
    shown = [notebook.run(source) for source in (CLEAN, *cells[:last], SMALL, cells[last])]
    assert f"Linux {lab_kernel}" in shown[-1]
    notebook.run("import numpy, pandas, plotly.graph_objects")
    assert {row["kernel"] for row in measured(notebook.folder)} == {lab_kernel}


def measured(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all runs in the data of a notebook's folder."""
    files = (folder / "data").rglob("rows/*.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_shutdown_leaves_nothing(notebook: Notebook) -> None:
    notebook.manager.shutdown_kernel()
    assert until(lambda: not notebook.programs(), 20), notebook.programs()


def papermill(folder: Path, source: Path, spec: str, *parameters: str) -> subprocess.CompletedProcess[str]:
    """Execute a notebook into `done.ipynb` of the folder, in the kernel of that name."""
    words = [sys.executable, "-m", "papermill", str(source), "done.ipynb", "-k", spec]
    words += ["--start-timeout", str(PATIENCE_S), *parameters]
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=3 * PATIENCE_S, check=False
    )


@pytest.mark.exhaustive  # it measures as above; test_provisioner.py has what is said
def test_datapaths_notebook_until_its_kernel_is_killed(spec: str, lab_kernel: str, tmp_path: Path) -> None:
    """papermill executes it. A cell after the one that measures kills the kernel. That is reported once, and the
    outputs before it are kept."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    (tmp_path / "params").mkdir()
    folder = tmp_path / "notebooks"
    written = nbformat.read(folder / "01_datapaths.ipynb", as_version=4)
    # test_datapaths_notebook has the other cells.
    last = next(number for number, cell in enumerate(written.cells) if "notebook.measure(" in cell.source)
    del written.cells[last + 1 :]
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    written.cells.append(nbformat.v4.new_code_cell(killed))
    nbformat.write(written, folder / "killed.ipynb")
    parameters = {"topology": "[veth]", "pairs": "[1]", "rounds": 1, "slices": 2, "whole_runs": 0}
    words = ["-y", "\n".join(f"{name}: {value}" for name, value in parameters.items())]
    done = papermill(folder, folder / "killed.ipynb", spec, *words)
    assert done.returncode != 0
    assert "the notebook's kernel has ended: " in done.stderr, done.stderr[-2000:]
    report = "was ended by SIGILL: a library uses an instruction that the lab VM's CPU does not have"
    assert done.stderr.count("SIGILL") - done.stderr.count("signal.SIGILL") == 1, done.stderr
    assert report in done.stderr
    text = (folder / "done.ipynb").read_text()
    assert f"Linux {lab_kernel}" in text
    assert {row["kernel"] for row in measured(folder)} == {lab_kernel}
