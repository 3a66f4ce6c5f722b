"""JupyterLab in a real browser opens a notebook on a lab VM's kernel and shows that. If Jupyter is killed, the lab VM
ends."""

import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from browsed_jupyterlab import PATIENCE_S, Server, jupyterlab
from browser import chromium
from playwright.sync_api import TimeoutError
from sandbox import marked, until

from labkit.jupyter import kernelspecs

# test_notebook_kernel.py has such kernels without a browser, and test_start_here_notebook.py JupyterLab in one.
pytestmark = [pytest.mark.exhaustive, pytest.mark.needs("chromium", "set-up")]


@pytest.fixture
def server(lab_kernel: str, tmp_path: Path) -> Iterator[Server]:
    kernelspecs.install([lab_kernel], tmp_path / "prefix")
    folder = tmp_path / "notebooks"
    folder.mkdir()
    with jupyterlab(tmp_path, folder, JUPYTER_PATH=str(tmp_path / "prefix/share/jupyter")) as running:
        yield running


def test_notebook_on_a_lab_vm_kernel(server: Server, lab_kernel: str, tmp_path: Path) -> None:
    with chromium(tmp_path / "profile") as context:
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.goto(server.address())
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
