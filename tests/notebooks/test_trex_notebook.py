"""The notebook of the load tests with TRex: a small sweep on labkit's own topologies with a stand-in for TRex, and one
report with figures and sentences."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox import sandbox
from trex_server import release

# test_docs_site.py executes the notebook with published rows, and test_trex_own_server.py measures both experiments.
pytestmark = [pytest.mark.exhaustive, pytest.mark.needs("namespaces", "ip", "ping", "nft", "veth", "bridge",
                                                        "ethtool", "trex client")]  # fmt: skip

SMALL = """
notebook: 07_trex
parameters: {topology: [veth_bridge], warmup_s: 0.4, ramp_s: 1.6, hold_s: 0.4, step_s: 0.4, target: 30kpps, test_s: 6,
             mult: [10, 20], line_rate_bps: 1000000000, generator: trex}
grid:
  - profile: ["64b"]
"""
TITLES = ["Rate, loss and latency over time", "How much of the line is carried", "Latency of the probes"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with sandbox(tmp_path_factory.mktemp("machine"), user=False) as made:
        made.project(trex=SMALL)
        capacity, server = json.dumps({"capacity_pps": 22_000}), str(release(made.folder / "v3.08"))
        made.sweep("trex", 300, FAKE_TREX=capacity, LABKIT_TREX=server)
        yield made.swept("load_test", "trex")


def test_report_has_figures_and_sentences(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    for words in (
        *TITLES, "published (TRex 2.88, 1 Gbit/s)", "64b through veth_bridge, test 1",
        "http_simple through veth_bridge, mult 10", "http_simple through veth_bridge, mult 20",
    ):  # fmt: skip
        assert words in text, words
    assert "mult 100" not in text  # the default, which no point measured
    assert [path.name for path in (folder / "stateful").iterdir() if path.is_dir()] == ["64b"]
    assert not (
        folder.parents[1] / "trex_stateful"
    ).exists()  # neither a point nor the report left a run of its own
    assert "Traceback" not in text
