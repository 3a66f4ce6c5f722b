"""JupyterLab in a real browser opens a notebook on a lab VM's kernel and shows that. If Jupyter is killed, the lab VM
ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from browser import chromium
from conftest import ROOT
from playwright.sync_api import TimeoutError
from sandbox import MARK, marked, until

from labkit.jupyter import kernelspecs

pytestmark = pytest.mark.needs("chromium", "set-up")
PATIENCE_S = 400  # an idle machine needs 25
LAB = ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
LAB += [f"--MappingKernelManager.kernel_info_timeout={PATIENCE_S}"]


@dataclass
class Server:
    """A running JupyterLab. `address` contains its token; `mark` is in the environment of all processes that it
    starts."""

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
        # JupyterLab creates the file first and then writes it: it is whole when it ends with a brace.
        written = runtime / files
        assert until(lambda: written.exists() and written.read_bytes().rstrip().endswith(b"}"), 120), (
            tmp_path / "log"
        ).read_text()
        report = msgspec.json.decode(written.read_bytes())
        yield Server(process, f"{report['url']}lab?token={report['token']}", mark, folder)
    finally:
        process.kill()
        process.wait()
        assert until(lambda: not marked(mark), 20), marked(mark)


def test_notebook_on_a_lab_vm_kernel(server: Server, lab_kernel: str, tmp_path: Path) -> None:
    with chromium(tmp_path / "profile") as context:
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.goto(server.address)
        card = f".jp-LauncherCard[data-category='Notebook'][title='labkit (Linux {lab_kernel} lab VM)']"
        page.locator(card).click()
        cell = page.locator(".jp-Notebook .jp-Cell .cm-content").first
        cell.click()
        page.keyboard.insert_text("import os; print(os.uname().release); open('left.txt', 'w').close()")
        output = page.locator(".jp-Notebook .jp-OutputArea-output", has_text=lab_kernel).first
        # JupyterLab drops cells that run before it is connected to any kernel, so run the cell again.
        deadline = time.monotonic() + PATIENCE_S
        while not output.count() and time.monotonic() < deadline:
            cell.click()
            page.keyboard.press("Control+Enter")
            with suppress(TimeoutError):
                output.wait_for(timeout=20_000)
        assert output.count(), page.locator(".jp-Notebook").inner_text()
    assert (server.folder / "left.txt").exists()
    names = {Path(words[0]).name for words in marked(server.mark).values() if words}
    assert {"qemu-system-x86_64", "virtiofsd"} <= names
    server.process.send_signal(signal.SIGKILL)
    assert until(lambda: not marked(server.mark), 20), marked(server.mark)
