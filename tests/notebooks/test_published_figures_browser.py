"""The figures of the published runs on a page of 700 px in the dark: everything can be read."""

import json
from collections.abc import Iterator
from typing import Any

import nbformat
import pytest
from browser import MERGED, OUTSIDE, chromium, resized, watched
from conftest import ROOT
from nbformat import v4

from labkit import notebook
from labkit.analysis import report

pytestmark = [pytest.mark.long, pytest.mark.needs("chromium")]

RUNS = sorted(path.parent for path in (ROOT / "data/results").glob("*/run.json"))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a page with each figure of each published run."""
    folder, cells = tmp_path_factory.mktemp("page"), []
    for run in RUNS:
        figures = notebook.Run(run).figures
        drawn = [figures[name] for name in figures if figures[name].data]
        assert drawn, run
        outputs = [
            v4.new_output("display_data", data={"application/vnd.plotly.v1+json": json.loads(one.to_json())})
            for one in drawn
        ]
        cells.append(v4.new_code_cell(run.name, outputs=outputs))
    nbformat.write(v4.new_notebook(cells=cells), folder / "notebook.ipynb")
    return report.html(folder / "notebook.ipynb", folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def page(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    # From the beginning as wide as the test needs it, because so many figures take a while to be drawn again.
    options: dict[str, Any] = {"viewport": {"width": 700, "height": 900}, "color_scheme": "dark"}
    with (
        chromium(tmp_path_factory.mktemp("profile"), **options) as browser,
        watched(browser, address) as page,
    ):
        page.wait_for_function(
            "[...document.querySelectorAll('.figure')].every(it => it.querySelector('.main-svg .gtitle'))",
            timeout=120_000,
        )
        resized(page, 700, "dark")
        yield page


def test_labels_stay_inside(page: Any) -> None:
    assert page.evaluate(OUTSIDE) == []


def test_texts_do_not_merge(page: Any) -> None:
    assert page.evaluate(MERGED) == []
