"""The tutorial in JupyterLab, in a real browser: every cell runs and shows the run that it measured. Opened again, the
saved notebook still shows it. Its report is downloaded from the menu. A panel starts, stops and resumes a run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from browsed_jupyterlab import Server, jupyterlab
from browser import chromium
from conftest import ROOT
from nbformat import v4
from sandbox import until

from labkit.analysis import flame
from labkit.common import run_folder

pytestmark = pytest.mark.needs("chromium", "namespaces", "iperf3", "ip", "veth", "bridge")

SMALL = """topology = ["veth", "veth_bridge"]
rounds = slices = 2
profile_rounds = 1
seed = 9"""
PANEL = "labkit.panel('datapaths', topology='veth,veth_bridge', rounds=60, slices=2, whole_runs=0)"
# JupyterLab drops cells that run before it is connected to their kernel.
CONNECTED = """async () => (await (await fetch("/api/sessions")).json())
    .some(({kernel}) => kernel.connections > 0 && kernel.execution_state === "idle")"""
NAME = "00_start_here.ipynb"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    document = nbformat.read(ROOT / "notebooks" / NAME, as_version=4)
    at = next(at for at, cell in enumerate(document.cells) if "parameters" in cell.metadata.get("tags", []))
    document.cells.insert(at + 1, v4.new_code_cell(SMALL))
    document.cells.append(v4.new_code_cell(PANEL))
    folder = tmp_path / "notebooks"
    folder.mkdir()
    nbformat.write(document, folder / NAME)
    with jupyterlab(tmp_path, folder, LABKIT_DATA=str(tmp_path / "data")) as running:
        yield running


def chosen(page: Any, *labels: str) -> None:
    """Choose an entry of a menu."""
    page.locator(".lm-MenuBar-itemLabel", has_text=labels[0]).first.click()
    for label in labels[1:]:
        page.locator(f".lm-Menu-itemLabel:text-is('{label}')").first.click()


def opened(page: Any, server: Server) -> None:
    page.goto(server.address(NAME))
    page.locator(".jp-Notebook h1").wait_for()
    page.wait_for_function(CONNECTED)


def test_tutorial_panel_and_export(server: Server, tmp_path: Path) -> None:
    with chromium(tmp_path / "profile") as context:
        page = context.new_page()
        page.set_default_timeout(180_000)  # emulated or busy CPUs take more than a minute for a round
        opened(page, server)
        chosen(page, "Run", "Run All Cells")
        start, stop = (page.locator(f"button:text-is('{name}')") for name in ("Start", "Stop"))
        start.wait_for(timeout=240_000)  # the cells before it measure, and emulated or busy CPUs take minutes
        shown = page.locator(".jp-OutputArea-output")

        start.click()  # the panel of the last cell
        shown.get_by_text("round 2 of 60").wait_for()
        stop.click()
        shown.get_by_text("stopped: finished rows are kept").wait_for()
        [folder] = [one for one in (tmp_path / "data/datapaths").iterdir() if not is_finished(one)]
        kept = run_folder.finished_points(folder)
        assert 1 <= len(kept) < 60
        assert stop.is_disabled()
        start.click()
        assert until(lambda: len(run_folder.finished_points(folder)) > len(kept), 60), "it goes on there"
        stop.click()
        shown.get_by_text("stopped: finished rows are kept").wait_for()
        assert kept < run_folder.finished_points(folder)

        chosen(page, "File", "Save Notebook")
        assert until(lambda: "## Conclusion" in (server.folder / NAME).read_text(), 30)
        opened(page, server)
        cells = nbformat.read(server.folder / NAME, as_version=4).cells
        has_profiles = flame.MIME in json.dumps(cells)
        if has_profiles:
            page.locator(".labkit-flame svg g").first.wait_for(state="attached")
        figure = page.locator(".js-plotly-plot .main-svg").first
        page.mouse.move(800, 500)
        for _ in range(100):  # JupyterLab draws the cells that are in view
            page.mouse.wheel(0, 300)
            if until(lambda: figure.count() > 0, 0.2):
                break
        assert figure.count()
        assert not page.get_by_role("button", name="Share chart").count(), "nothing leaves this machine"

        with page.expect_download() as download:
            chosen(page, "File", "Save and Export Notebook As", "Labkit_report")
        download.value.save_as(tmp_path / "report.html")
    check(cells, folder)
    report = (tmp_path / "report.html").read_text()
    assert "<title>Start here" in report
    assert "valid measurements of 2 topologies" in report
    assert ('<div class="labkit-flame">' in report) == has_profiles


def is_finished(folder: Path) -> bool:
    return "finished" in run_folder.read_json(folder / "run.json")


def check(cells: list[Any], other: Path) -> None:
    """Check that the cells show the run that they measured; `other` is the run of the panel."""
    [folder] = [one for one in other.parent.iterdir() if one != other]
    rows = run_folder.read_rows(folder)
    outputs: list[dict[str, Any]] = [output for cell in cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "error"]
    shown = json.dumps([output.get("data", {}) for output in outputs])
    assert "throughput_bps [bit/s]" in shown
    assert "application/vnd.plotly.v1+json" in shown
    measured = sum(row["status"] == "ok" and row["method"] != "profile" for row in rows)
    assert f"{measured} valid measurements of 2 topologies" in shown
    assert "## Conclusion" in shown
    profiled = {row["arm"] for row in rows if row["observer"] == "perf_record" and row["status"] == "ok"}
    assert (flame.MIME in shown) == ({"veth", "veth_bridge"} <= profiled)
