"""nbconvert's exporter of reports: a notebook that was executed elsewhere, and one beside its run."""

import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import synthetic_rows
from conftest import ROOT
from nbformat import v4

from labkit.jupyter.report_exporter import CommandLineExporter, ReportExporter


def notebook() -> Any:
    output = v4.new_output("display_data", data={"text/markdown": "faster by **3 %**"})
    return v4.new_notebook(
        cells=[v4.new_markdown_cell("# Elsewhere"), v4.new_code_cell("1", outputs=[output])]
    )


def test_executed_elsewhere_or_beside_its_run(tmp_path: Path) -> None:
    page, resources = ReportExporter().from_notebook_node(notebook())
    assert "<title>Elsewhere" in page
    assert "<strong>3&nbsp;%</strong>" in page
    assert resources["output_extension"] == ".html"
    folder = synthetic_rows.save(
        tmp_path / "run", synthetic_rows.rows(), parameters={"rounds": 5}, created="2026-01-02T03:04:05Z"
    )
    nbformat.write(notebook(), folder / "notebook.ipynb")
    page, _ = ReportExporter().from_filename(str(folder / "notebook.ipynb"))
    assert "2026-01-02 03:04:05 UTC" in page


def test_jupyterlab_offers_a_name_that_its_server_can_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's address of an exporter matches \\w+, so a name with a hyphen answers 404."""
    assert CommandLineExporter().enabled

    class Running:
        @staticmethod
        def initialized() -> bool:
            return True

    monkeypatch.setitem(sys.modules, "jupyter_server.serverapp", SimpleNamespace(ServerApp=Running))
    assert not CommandLineExporter().enabled
    assert ReportExporter().enabled
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    offered = [name for name, of in entries["nbconvert.exporters"].items() if of.endswith(":ReportExporter")]
    assert offered
    assert all(re.fullmatch(r"\w+", name) for name in offered)
