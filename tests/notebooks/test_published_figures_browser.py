"""The figures of the published runs on a page of 700 px in the dark: everything can be read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from browser import MERGED, OUTSIDE, chromium, resized, watched
from conftest import ROOT
from nbformat import v4
from sandbox import also

from labkit import notebook
from labkit.analysis import report

pytestmark = pytest.mark.needs("chromium")

RESULTS = ROOT / "data/results"
# The usual figures, and three kinds of those that experiments have of their own. All change only with a new run.
FEW = ("datapaths_of_today", "load_test", "ovs_test_plan", "tenants")
OTHERS = sorted({path.parent.name for path in RESULTS.glob("*/run.json")} - {*FEW})


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    # From the beginning as wide as the test needs it, because so many figures take a while to be drawn again.
    options: dict[str, Any] = {"viewport": {"width": 700, "height": 900}, "color_scheme": "dark"}
    with chromium(tmp_path_factory.mktemp("profile"), **options) as browser:
        yield browser


@pytest.mark.parametrize("name", [*FEW, *also("exhaustive", *OTHERS)])
def test_texts_are_inside_and_apart(name: str, browser: Any, tmp_path: Path) -> None:
    figures = notebook.Run(RESULTS / name).figures
    drawn = [json.loads(figures[one].to_json()) for one in figures if figures[one].data]
    assert drawn
    outputs = [v4.new_output("display_data", data={"application/vnd.plotly.v1+json": one}) for one in drawn]
    nbformat.write(
        v4.new_notebook(cells=[v4.new_code_cell(name, outputs=outputs)]), tmp_path / "notebook.ipynb"
    )
    address = report.html(tmp_path / "notebook.ipynb", tmp_path / "report.html").as_uri()
    with watched(browser, address) as page:
        page.wait_for_function(
            "[...document.querySelectorAll('.figure')].every(it => it.querySelector('.main-svg .gtitle'))",
            timeout=120_000,
        )
        resized(page, 700, "dark")
        assert page.evaluate(OUTSIDE) == []
        assert page.evaluate(MERGED) == []
