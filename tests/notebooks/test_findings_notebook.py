"""The notebook of the findings draws every published run, and measures nothing."""

import json
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from executed_notebook import PLOTLY, Shown, copied, papermill

from studies.documents.exhibits import EXHIBITS
from studies.documents.registry import claims
from studies.documents.results import Results


@pytest.mark.long
def test_findings(tmp_path: Path) -> None:
    out, published = tmp_path / "out.ipynb", ROOT / "data" / "results"
    argv = papermill("10_findings", out, "-p", "results_folder", str(published))
    done = subprocess.run(argv, cwd=copied(tmp_path), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shown = json.dumps(Shown(out).data)
    assert all(f"### {claim.name}" in shown for claim in claims())
    names = [*Results(published).names(), *(one.name for one in EXHIBITS)]
    assert all(name in shown for name in names)
    assert shown.count(PLOTLY) >= sum(len(one.draw) for one in EXHIBITS)
    assert not list(tmp_path.rglob("run.json"))
