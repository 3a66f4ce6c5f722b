"""nbconvert's exporter of reports: a notebook that was executed elsewhere, and one beside its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import synthetic_rows
from nbformat import v4

from labkit.jupyter.report_exporter import ReportExporter


def notebook() -> Any:
    output = v4.new_output("display_data", data={"text/markdown": "faster by **3 %**"})
    return v4.new_notebook(
        cells=[v4.new_markdown_cell("# Elsewhere"), v4.new_code_cell("1", outputs=[output])]
    )


def test_executed_elsewhere() -> None:
    page, resources = ReportExporter().from_notebook_node(notebook())
    assert "<title>Elsewhere" in page
    assert "<strong>3 %</strong>" in page
    assert resources["output_extension"] == ".html"


def test_provenance_of_the_run_beside(tmp_path: Path) -> None:
    folder = synthetic_rows.save(
        tmp_path / "run", synthetic_rows.rows(), parameters={"rounds": 5}, created="2026-01-02T03:04:05Z"
    )
    nbformat.write(notebook(), folder / "notebook.ipynb")
    page, _ = ReportExporter().from_filename(str(folder / "notebook.ipynb"))
    assert "2026-01-02 03:04:05 UTC" in page
