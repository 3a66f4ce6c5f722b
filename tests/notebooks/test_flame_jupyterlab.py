"""JupyterLab draws the flame graphs of a notebook that it does not trust, and runs nothing else of it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import synthetic_profiles as made
from browsed_jupyterlab import jupyterlab
from browser import chromium
from nbformat import v4

from labkit.analysis import flame

pytestmark = pytest.mark.needs("chromium", "set-up")

EVIL = "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Open a notebook from somebody else: its outputs were not made here."""
    scratch = tmp_path_factory.mktemp("jupyter")
    folder = scratch / "notebooks"
    folder.mkdir()
    written(folder / "from_others.ipynb")
    with (
        jupyterlab(scratch, folder) as server,
        chromium(scratch / "profile", viewport={"width": 1200, "height": 1000}) as context,
    ):
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.goto(server.address("from_others.ipynb"))
        page.locator(".labkit-flame svg").nth(1).wait_for()
        yield page


def written(path: Path) -> None:
    """Write a notebook with the flame graph of an arm, one whose data were prepared to run something, and a script."""
    drawn = flame.graph(made.arm("veth", 1, frames=500, samples=10_000))
    colors = dict.fromkeys(drawn.data["colors"], f'#000000"/>{EVIL}')
    prepared = {**drawn.data, "title": EVIL, "font": f"x'>{EVIL}", "colors": colors, "notes": [EVIL]}
    prepared["names"] = [f"{EVIL}{name}" for name in drawn.data["names"]]
    bundles: list[dict[str, Any]] = [
        drawn._repr_mimebundle_(),
        {**drawn._repr_mimebundle_(), flame.MIME: prepared},
        {"text/html": EVIL},
    ]
    outputs = [v4.new_output("display_data", data=bundle) for bundle in bundles]
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    cell = v4.new_code_cell("show", outputs=outputs)
    nbformat.write(v4.new_notebook(metadata={"kernelspec": kernel}, cells=[cell]), path)


def test_frames_have_numbers_in_a_notebook_that_is_not_trusted(page: Any) -> None:
    page.locator("[data-icon='ui-components:not-trusted']").wait_for()
    graph = page.locator(".labkit-flame").first
    assert graph.locator("svg g").count() > 50
    graph.locator("svg g").nth(3).click()
    assert "itself" in graph.locator(".numbers").inner_text()
    graph.get_by_role("searchbox").fill("^function3")
    graph.locator("output").get_by_text(re.compile(r"^[\d,]+ frames?:")).wait_for()


def test_prepared_data_run_nothing(page: Any) -> None:
    prepared = page.locator(".labkit-flame").nth(1)
    prepared.locator("svg g").nth(3).click()
    prepared.locator("svg g").nth(3).hover()
    assert prepared.locator("script, img").count() == 0
    assert page.title() != "run"
