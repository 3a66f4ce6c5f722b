"""What another user of the machine can read and send at the ports of the kernels that labkit starts: nothing."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import psutil
import pytest
from conftest import ROOT
from kernel_eavesdropper import heard, listening
from sandbox import also, until

PATIENCE_S = 60.0
# Every kernel prints all the time, so that a test which reads nothing has read nothing of something.
PRINTS = """
import sys, threading, time
def prints():
    while True:
        print("a secret", flush=True)
        time.sleep(0.05)
threading.Thread(target=prints, daemon=True).start()
"""
PLAIN = """
import sys, time
from jupyter_client import KernelManager
manager = KernelManager()
manager.start_kernel()
time.sleep(600)
"""
SWEEP = """
import sys
from pathlib import Path
from labkit.runner import papermill_run
from labkit.runner.progress import Bar
papermill_run.execute(Path(sys.argv[1]), Path(sys.argv[2]), {}, Bar(), "one")
"""


@contextmanager
def running(folder: Path, argv: list[str], cwd: Path = ROOT) -> Iterator[psutil.Process]:
    """Start a program, whose kernels print all the time, and whose files are in `folder`."""
    startup = folder / "ipython/profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "prints.py").write_text(PRINTS)
    folder.chmod(0o700)
    own = {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
           "TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)}  # fmt: skip
    with (folder / "said").open("w") as said:
        made = subprocess.Popen(argv, cwd=cwd, env={**os.environ, **own}, stdout=said, stderr=said)
        try:
            yield psutil.Process(made.pid)
        finally:
            made.terminate()
            try:
                made.wait(30)
            except subprocess.TimeoutExpired:
                made.kill()
                made.wait()


@pytest.mark.needs("root")
def test_kernel_without_encryption_is_heard(tmp_path: Path) -> None:
    """This shows that the other tests could fail."""
    with running(tmp_path, [sys.executable, "-P", "-c", PLAIN]) as started:
        assert heard(listening(started), tmp_path)[0] >= 1


@pytest.mark.needs("root", "namespaces", "veth")
def test_page_tells_nobody_anything(tmp_path: Path) -> None:
    argv = [sys.executable, "-P", "-m", "labkit.cli", "monitor", "veth_bridge", "--serve", "--ping"]
    with running(tmp_path, argv) as started:
        address = said(tmp_path, r"page: (\S+)")
        urllib.request.urlopen(address, timeout=60).close()  # starts a kernel, which shows the panel
        assert heard(listening(started), tmp_path) == (0, False)


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    "words",
    [("-c", SWEEP, "PAGES/10_findings.ipynb", "PAGES/run"),
     ("-m", "nbconvert", "--execute", "--to=notebook", "PAGES/10_findings.ipynb"),
     *also("exhaustive", (("docs/executed.py", "PAGES", "10_findings"),))],
)  # fmt: skip
def test_notebook_of_a_sweep_or_of_the_documentation_or_of_nbconvert_tells_nobody_anything(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    cells = [nbformat.v4.new_code_cell("import time\ntime.sleep(600)")]
    (pages := tmp_path / "pages").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=cells), pages / "10_findings.ipynb")
    with running(
        tmp_path, [sys.executable, "-P", *(word.replace("PAGES", str(pages)) for word in words)]
    ) as started:
        assert heard(listening(started), tmp_path) == (0, False)


@pytest.mark.needs("root")
def test_kernel_of_jupyterlab_tells_nobody_anything(tmp_path: Path) -> None:
    """Started as a newcomer does, not by `make lab`: the configuration comes with labkit."""
    options = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    argv = [sys.executable, "-P", "-m", "jupyterlab", *options]
    with running(tmp_path, argv, cwd=tmp_path) as started:
        address = said(tmp_path, r"(http://127\.0\.0\.1:\S+)")
        server, _, token = address.partition("/lab?token=")
        headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
        asked = urllib.request.Request(
            f"{server}/api/kernels", json.dumps({"name": "python3"}).encode(), headers
        )

        def answered() -> bool:
            """JupyterLab says its address a moment before it listens there."""
            try:
                urllib.request.urlopen(asked, timeout=60).close()
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError):
                    raise
                return False
            return True

        assert until(answered, PATIENCE_S)
        assert heard(listening(started), tmp_path) == (0, False)


def said(folder: Path, pattern: str) -> str:
    """Return what a program has said that matches."""
    assert until(lambda: re.search(pattern, (folder / "said").read_text()), PATIENCE_S), (
        folder / "said"
    ).read_text()
    return re.findall(pattern, (folder / "said").read_text())[0]
