"""JupyterLab in a real browser: a notebook is opened on a lab VM's kernel, and says so. Killed, Jupyter takes the lab
VM along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from browser import chromium
from conftest import ROOT
from worlds import MARK, marked, until

from labkit import kernelspecs

pytestmark = pytest.mark.needs("chromium", "set-up")
PATIENCE_MS = 400_000  # a quiet machine needs 25 s
LAB = ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
LAB += [f"--MappingKernelManager.kernel_info_timeout={PATIENCE_MS // 1000}"]


@dataclass
class Server:
    """JupyterLab. `address` has its token; `mark` is in the environment of all that it starts."""

    process: subprocess.Popen[bytes]
    address: str
    mark: str
    folder: Path


@pytest.fixture
def server(lab_kernel: str, tmp_path: Path) -> Iterator[Server]:
    kernelspecs.install([lab_kernel], tmp_path / "prefix")
    mark, runtime, folder = uuid.uuid4().hex, tmp_path / "runtime", tmp_path / "notebooks"
    folder.mkdir()
    own = {
        MARK: mark,
        "JUPYTER_PATH": str(tmp_path / "prefix/share/jupyter"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "PYTHONPATH": str(ROOT),
    }
    words = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--ip=127.0.0.1",
        "--no-browser",
        "--allow-root",
        *LAB,
        str(folder),
    ]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(words, cwd=folder, env=os.environ | own, stdout=log, stderr=log)
    try:
        files = f"jpserver-{process.pid}.json"
        assert until(lambda: (runtime / files).exists(), 120), (tmp_path / "log").read_text()
        told = msgspec.json.decode((runtime / files).read_bytes())
        yield Server(process, f"{told['url']}lab?token={told['token']}", mark, folder)
    finally:
        process.kill()
        process.wait()
        assert until(lambda: not marked(mark), 20), marked(mark)


def test_a_notebook_runs_on_the_kernel_that_was_picked(
    server: Server, lab_kernel: str, tmp_path: Path
) -> None:
    with chromium(tmp_path / "profile") as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(server.address)
        card = f".jp-LauncherCard[data-category='Notebook'][title='labkit (Linux {lab_kernel} lab VM)']"
        page.locator(card).click()
        # JupyterLab drops what is run before it has a connection, on whatever kernel.
        page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for(state="attached")
        cell = page.locator(".jp-Notebook .jp-Cell .cm-content").first
        cell.click()
        page.keyboard.insert_text("import os; print(os.uname().release); open('left.txt', 'w').close()")
        page.keyboard.press("Shift+Enter")
        page.locator(".jp-Notebook .jp-OutputArea-output", has_text=lab_kernel).wait_for()
    assert (server.folder / "left.txt").exists()
    names = {Path(words[0]).name for words in marked(server.mark).values() if words}
    assert {"qemu-system-x86_64", "virtiofsd"} <= names
    server.process.send_signal(signal.SIGKILL)
    assert until(lambda: not marked(server.mark), 20), marked(server.mark)
