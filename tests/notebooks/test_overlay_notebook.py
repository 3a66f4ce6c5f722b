"""A small sweep like params/overlay.yaml on this kernel: one report of all parts in a real browser."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, watched
from sandbox import Sandbox, machine_fixture

from labkit.analysis import load

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.needs(
        "user namespaces", "iperf3", "ip", "ping", "ethtool", "veth", "bridge", "vxlan", "chromium"
    ),
]

SMALL = """
notebook: 04_overlay
parameters:
  {provider: routed, routes: [metric], failure: [carrier], outage_s: 1, pings: 1,
   topology: [veth, vxlan], rounds: 2, slices: 3, whole_runs: 0}
grid:
  - part: [[path, reachability, tenants, failure]]
  - part: [[headers, cost]]
    length_bytes: [64]
"""
SEEN = [
    "One packet, hop by hop", "Who reaches whom", "Which tenants reach which", "A spine fails under a flow",
]  # fmt: skip
COST = ["What a packet costs, by its size", "How much of the cost is headers"]

machine = machine_fixture("module", sweeps={"overlay": SMALL})


@pytest.fixture(scope="module")
def lines(machine: Sandbox) -> str:
    """Return what the sweep prints in the terminal."""
    return machine.sweep("overlay", 400)


@pytest.fixture(scope="module")
def folder(machine: Sandbox, lines: str) -> Path:
    return machine.swept("overlay", "overlay")


@pytest.fixture(scope="module")
def page(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Open the report. At the end, check that its scripts had no error."""
    report = (folder / "report.html").as_uri()
    with chromium(tmp_path_factory.mktemp("profile")) as browser, watched(browser, report) as page:
        page.wait_for_function(
            "[...document.querySelectorAll('.figure')].every(it => it.querySelector('.main-svg .gtitle'))",
            timeout=120_000,
        )
        yield page


def test_sweep_output_covers_every_part(lines: str, folder: Path, machine: Sandbox) -> None:
    text = " ".join(lines.split())
    for words in ("cs1 > cs5 echo request: 84 bytes of IP", "20 took an expected path", "74 took an expected path",
                  "metric, sc2 fails (", "vxlan adds 50 bytes to each packet", "Verdicts"):  # fmt: skip
        assert words in text
    report = os.path.relpath(folder / "report.html", machine.folder / "project")
    assert lines.splitlines()[-1] == f"report: {report}"
    table = load.load(folder, None)
    assert "unfinished" not in table.attrs
    assert set(table["part"]) == {"path", "reachability", "tenants", "failure", "headers", "cost"}
    assert set(table.loc[table["part"].ne("cost"), "status"]) == {"ok"}


def test_report_covers_every_part(page: Any) -> None:
    titles = [place.text_content() for place in page.query_selector_all(".figure .gtitle")]
    for title in (*SEEN, *COST):
        # Two flows have a packet that is followed, UDP and ping.
        assert sum(title in each for each in titles) == (2 if title == SEEN[0] else 1), titles
    for place in page.query_selector_all(".figure"):
        size = place.query_selector(".main-svg").bounding_box()
        assert size["height"] > 150
    text = page.evaluate("document.body.innerText")
    for words in (
        "An overlay network, packet by packet", "UDP 4900 with 106 bytes", "against veth: vxlan", "lc1:lc1_sc2",
    ):  # fmt: skip
        assert words in text
    assert "Not measured: add" not in text
    assert "Traceback" not in text
