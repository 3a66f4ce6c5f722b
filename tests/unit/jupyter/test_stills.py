"""Plain nbconvert shows the figures of a notebook that a person ran."""

import base64
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from nbclient import NotebookClient
from nbformat import v4

SCRIPTS = "<script>alert(1)</script><img src=x onerror=alert(2)><a href='javascript:alert(3)'>more</a>"
FIGURE = f"""\
import plotly.graph_objects as go
go.Figure(go.Scatter(y=[1, 2]), layout_title_text="measured here {SCRIPTS}")
"""


@pytest.mark.long
@pytest.mark.needs("chromium")
def test_figures_are_pictures_in_which_nothing_runs(tmp_path: Path) -> None:
    files = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    config = tmp_path / "etc"  # with Jupyter's configuration, as the package installs it
    config.mkdir()
    for name in files["etc/jupyter"]:
        (config / Path(name).name).symlink_to(ROOT / name)
    path = tmp_path / "mine.ipynb"
    document = v4.new_notebook(cells=[v4.new_code_cell(FIGURE)])
    NotebookClient(document, kernel_name="python3").execute()
    nbformat.write(document, path)
    for to in (["html"], ["markdown"], ["notebook", "--inplace"]):
        argv = [sys.executable, "-m", "nbconvert", path, "--to", *to]
        subprocess.run(argv, env=os.environ | {"JUPYTER_CONFIG_PATH": str(config)}, check=True)
    [svg] = (tmp_path / "mine_files").glob("*.svg")
    assert f"](mine_files/{svg.name})" in (tmp_path / "mine.md").read_text()
    [output] = nbformat.read(path, as_version=4).cells[0].outputs  # what GitHub and VS Code show
    drawn = [svg.read_text(), output.data["image/svg+xml"]]
    page = path.with_suffix(".html").read_text()
    embedded = re.findall(r"<img[^>]*data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", page)
    drawn += [base64.b64decode(one).decode() for one in embedded]
    assert len(drawn) == 3
    assert all("measured here" in one for one in drawn)
    assert not [one for one in drawn if re.search(r"<script|<img|<[^>]*(onerror|javascript:)", one)]
