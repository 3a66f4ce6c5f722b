"""The notebook of the findings draws published runs, and measures nothing."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import ROOT
from executed_notebook import PLOTLY, Shown, copied, papermill
from sandbox import also, output

from studies.documents.exhibits import EXHIBITS
from studies.documents.registry import claims

RESULTS = ROOT / "data/results"
FEW = ("container_vs_vm", "mtu", "tenants")  # to judge the claims by all takes minutes


@pytest.mark.parametrize("names", [FEW, *also("exhaustive", ([path.name for path in RESULTS.iterdir()],))])
def test_findings(names: Sequence[str], tmp_path: Path) -> None:
    out, published = tmp_path / "out.ipynb", tmp_path / "published"
    for name in names:
        shutil.copytree(RESULTS / name, published / name)
    argv = papermill("10_findings", out, "-p", "results_folder", str(published))
    output(argv, 300, cwd=copied(tmp_path))
    shown = json.dumps(Shown(out).data)
    assert all(f"### {claim.name}" in shown for claim in claims())
    assert all(name in shown for name in (*names, *(one.name for one in EXHIBITS)))
    drawn = sum(table["run"] in names for one in EXHIBITS for table in one.draw)
    assert shown.count(PLOTLY) >= drawn > 0
    assert {path.parent for path in tmp_path.rglob("run.json")} == {published / name for name in names}
