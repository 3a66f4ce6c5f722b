"""Run JupyterLab for a test, on 127.0.0.1 with a token, and its own settings and runtime folder."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from conftest import ROOT
from sandbox import MARK, marked, until

PATIENCE_S = 400  # for a kernel in a lab VM on a busy machine; an idle one needs 25
_OPTIONS = ["--ip=127.0.0.1", "--no-browser", "--allow-root", "--LabApp.news_url=None"]
_OPTIONS += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
_OPTIONS += [f"--MappingKernelManager.kernel_info_timeout={PATIENCE_S}"]


@dataclass
class Server:
    """A running JupyterLab with its notebooks in `folder`. `mark` is in the environment of all processes that it
    starts."""

    process: subprocess.Popen[bytes]
    url: str
    token: str
    mark: str
    folder: Path

    def address(self, notebook: str = "") -> str:
        """Return the address of JupyterLab, with a notebook opened; it contains the token."""
        return f"{self.url}lab{f'/tree/{notebook}' * bool(notebook)}?token={self.token}"


@contextmanager
def jupyterlab(scratch: Path, folder: Path, **environment: str) -> Iterator[Server]:
    """Start JupyterLab in `folder` with its other files in `scratch`; at the end, no process of it may be left."""
    mark, runtime, log = uuid.uuid4().hex, scratch / "runtime", scratch / "log"
    own: Mapping[str, str] = {
        MARK: mark,
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_DATA_DIR": str(scratch / "data"),
        "JUPYTER_CONFIG_DIR": str(scratch / "config"),
        "PYTHONPATH": str(ROOT),
        **environment,
    }
    words = [sys.executable, "-m", "jupyterlab", *_OPTIONS, str(folder)]
    with open(log, "wb") as written:
        process = subprocess.Popen(
            words, cwd=folder, env={**os.environ, **own}, stdout=written, stderr=written
        )
    try:
        file = runtime / f"jpserver-{process.pid}.json"
        # JupyterLab creates the file first and then writes it: it is whole when it ends with a brace.
        assert until(lambda: file.exists() and file.read_bytes().rstrip().endswith(b"}"), 120), (
            log.read_text()
        )
        report = msgspec.json.decode(file.read_bytes())
        yield Server(process, report["url"], report["token"], mark, folder)
    finally:
        process.kill()
        process.wait()
        assert until(lambda: not marked(mark), 20), marked(mark)
