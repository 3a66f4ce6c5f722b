"""A parameter that papermill sets by a name that no cell has stops the notebook; papermill itself only warns."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import ROOT
from executed_notebook import papermill
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from labkit.analysis import theme

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# The first parameter of each notebook; of 01 also a detail, which is the key of a dictionary.
FIRST = {path.stem: "folder" for path in NOTEBOOKS} | {
    "10_findings": "results_folder",
    "11_your_network": "protocol",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotebookClient]:
    """Start one kernel for all notebooks: what they import takes longer than what they do here. Nothing is measured."""
    made, data = NotebookClient(nbformat.v4.new_notebook(), timeout=120), tmp_path_factory.mktemp("data")
    with made.setup_kernel(cwd=str(ROOT / "notebooks"), env=os.environ | {"LABKIT_DATA": str(data)}):
        yield made
    assert not list(data.iterdir())


def stopped(client: NotebookClient, notebook: Path, name: str, value: Any) -> tuple[str, list[Any]]:
    """Inject a parameter as papermill does; return the error that ends the notebook, and the outputs of its cell."""
    client.nb = parameterize_notebook(load_notebook_node(str(notebook)), {name: value})
    client.nb.cells.insert(0, nbformat.v4.new_code_cell("get_ipython().reset()"))
    for number, cell in enumerate(client.nb.cells):
        try:
            client.execute_cell(cell, number)
        except CellExecutionError as error:
            return f"{error.ename}: {error.evalue}", cell.outputs
    raise AssertionError(f"{notebook.name} went on to its end")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_misspelt_parameter_stops_every_notebook(notebook: Path, client: NotebookClient) -> None:
    """The first cell that does anything stops: nothing is built or shown before."""
    right = FIRST[notebook.stem]
    error, outputs = stopped(client, notebook, f"{right[:-2]}re", "x")
    assert error == f"BadInput: this notebook has no parameter {right[:-2]}re (did you mean {right}?)"
    *before, last = outputs
    assert last.output_type == "error"
    assert [one.data for one in before] in ([], [{"text/html": theme.STYLE}])  # a style alone shows nothing


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        # A value of another parameter is no name of one.
        ("veth_bridge", 4, "BadInput: this notebook has no parameter veth_bridge"),
        # A detail has its own name, and reaches the experiment, which refuses this value.
        ("slices", -1, "BadInput: slices=-1 is outside 0 to 1000"),
    ],
)
def test_details_are_parameters(name: str, value: int, words: str, client: NotebookClient) -> None:
    error, _ = stopped(client, ROOT / "notebooks/01_datapaths.ipynb", name, value)
    assert error.startswith(words)


def test_papermill_ends_with_the_sentence(tmp_path: Path) -> None:
    argv = papermill("01_datapaths", tmp_path / "out.ipynb", "-p", "slcies", "4")
    done = subprocess.run(argv, cwd=ROOT / "notebooks", capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    line = "BadInput: this notebook has no parameter slcies (did you mean slices?)"
    assert done.stderr.strip().splitlines()[-1] == line
