"""The notebook of the findings draws every published run, and measures nothing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import ROOT

from studies.documents.exhibits import EXHIBITS
from studies.documents.registry import CLAIMS
from studies.documents.results import Results


@pytest.mark.long
def test_findings(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*"))
    out = tmp_path / "out.ipynb"
    published = str(ROOT / "data" / "results")
    words = ["-p", "results_folder", published, "--no-progress-bar"]
    argv = [sys.executable, "-P", "-m", "papermill", "10_findings.ipynb", str(out), *words]
    done = subprocess.run(argv, cwd=tmp_path / "notebooks", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    outputs: list[dict[str, Any]] = [
        output for cell in nbformat.read(out, as_version=4).cells for output in cell.get("outputs", [])
    ]
    shown = json.dumps([output.get("data", {}) for output in outputs])
    assert all(f"### {claim.name}" in shown for claim in CLAIMS)
    names = [*Results(Path(published)).names(), *(one.name for one in EXHIBITS)]
    assert all(name in shown for name in names)
    assert shown.count("application/vnd.plotly.v1+json") >= 4
    assert not list(tmp_path.rglob("run.json"))
