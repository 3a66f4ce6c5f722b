"""Execute the project's notebooks with plain papermill, as a user does, and read what their cells show."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
from conftest import ROOT

PLOTLY = "application/vnd.plotly.v1+json"


def copied(folder: Path) -> Path:
    """Copy the notebooks into a folder, unless they are there; return where they are."""
    result = folder / "notebooks"
    if not result.exists():
        shutil.copytree(ROOT / "notebooks", result, ignore=shutil.ignore_patterns(".*"))
    return result


def papermill(name: str, out: Path, *words: str) -> list[str]:
    """Return the command that executes a notebook of the current folder into the file `out`."""
    notebook = f"{name}.ipynb"
    return [sys.executable, "-P", "-m", "papermill", notebook, str(out), *words, "--no-progress-bar"]


def without_figures(path: Path) -> None:
    """Take the figures out of a notebook that a sweep executes for each point; test_sweep.py looks at them."""
    notebook = nbformat.read(path, as_version=4)
    [at] = [number for number, cell in enumerate(notebook.cells) if "figures.forest(" in cell.source]
    del notebook.cells[at:]
    nbformat.write(notebook, path)


class Shown:
    """The outputs of an executed notebook's cells, and of each that is displayed its forms by MIME type."""

    def __init__(self, path: Path) -> None:
        cells = nbformat.read(path, as_version=4).cells
        self.outputs: list[Any] = [output for cell in cells for output in cell.get("outputs", [])]
        self.data: list[dict[str, Any]] = [output["data"] for output in self.outputs if "data" in output]

    def texts(self, kind: str = "text/markdown") -> str:
        """Return everything of one MIME type."""
        return "\n".join(str(one[kind]) for one in self.data if kind in one)

    def titles(self) -> list[str]:
        """Return the title of each figure, or an empty text if it has none."""
        layouts = [one[PLOTLY]["layout"] for one in self.data if PLOTLY in one]
        return [layout.get("title", {}).get("text", "") for layout in layouts]
