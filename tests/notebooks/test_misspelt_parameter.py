"""A parameter that papermill sets by a name that no cell has stops the notebook; papermill itself only warns."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT

from labkit.analysis import theme

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# The first parameter of each notebook; of 01 also a detail, which is the key of a dictionary.
FIRST = {path.stem: "folder" for path in NOTEBOOKS} | {
    "10_findings": "results_folder",
    "11_your_network": "protocol",
}


def executed(notebook: Path, out: Path, *parameters: str) -> tuple[int, str, nbformat.NotebookNode]:
    """Run plain papermill; return its exit code, the last line of its error, and the cell that failed."""
    argv = [
        sys.executable,
        "-P",
        "-m",
        "papermill",
        str(notebook),
        str(out),
        "--no-progress-bar",
        *parameters,
    ]
    done = subprocess.run(argv, cwd=notebook.parent, capture_output=True, text=True, check=False, timeout=120)
    cells = nbformat.read(out, as_version=4).cells
    failed = next(
        cell for cell in cells if any(one.output_type == "error" for one in cell.get("outputs", []))
    )
    return done.returncode, done.stderr.strip().splitlines()[-1], failed


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_misspelt_parameter_stops_every_notebook(notebook: Path, tmp_path: Path) -> None:
    """The first cell that does anything stops: nothing is built or shown before."""
    right = FIRST[notebook.stem]
    code, line, failed = executed(notebook, tmp_path / "out.ipynb", "-p", f"{right[:-2]}re", "x")
    assert (code, line) == (
        1,
        f"BadInput: this notebook has no parameter {right[:-2]}re (did you mean {right}?)",
    )
    *before, error = failed.outputs
    assert error.output_type == "error"
    assert [one.data for one in before] in ([], [{"text/html": theme.STYLE}])  # a style alone shows nothing


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("slcies", "4", "BadInput: this notebook has no parameter slcies (did you mean slices?)"),
        # A value of another parameter is no name of one.
        ("veth_bridge", "4", "BadInput: this notebook has no parameter veth_bridge"),
        # A detail has its own name, and reaches the experiment, which refuses this value.
        ("slices", "-1", "BadInput: slices=-1 is outside 0 to 1000"),
    ],
)
def test_details_are_parameters(name: str, value: str, line: str, tmp_path: Path) -> None:
    code, said, _failed = executed(
        ROOT / "notebooks/01_datapaths.ipynb", tmp_path / "out.ipynb", "-p", name, value
    )
    assert code == 1
    assert said.startswith(line)
