"""The notebook 06_live_monitor runs and shows what it counted."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from nbclient import NotebookClient
from sandbox import sandbox

pytestmark = pytest.mark.needs("user namespaces", "ping", "ip", "veth", "bridge")


def test_notebook_executes(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "notebooks/06_live_monitor.ipynb", 4)
    with sandbox(tmp_path) as machine:
        client = NotebookClient(notebook, timeout=120, kernel_name="python3")
        with client.setup_kernel(env=machine.environment, cwd=str(tmp_path)):
            for number, cell in enumerate(notebook.cells):
                if cell.cell_type == "code":
                    client.execute_cell(cell, number)
    counts, talkers, last, panel = (
        cell.outputs[-1]["data"] for cell in notebook.cells if cell.get("outputs")
    )
    assert "kept_count=" in counts["text/plain"]
    assert "dropped_count=0" in counts["text/plain"]
    assert "10.1.0.1" in talkers["text/plain"]
    assert "ICMP echo" in last["text/html"]  # pandas truncates long texts
    assert "application/vnd.jupyter.widget-view+json" in panel
