"""The notebook of the virtual TAP on the userspace datapath: a small sweep of mirrors, one that leaves the host, and a
report with the thesis' figures beside them."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from sandbox import sandbox

from labkit.analysis import load
from studies.virtual_tap import finding as virtual_tap

# test_docs_site.py executes the notebook with published rows, test_open_vswitch.py and test_two_hosts.py measure it.
pytestmark = [pytest.mark.exhaustive,
              pytest.mark.needs("namespaces", "ip", "ping", "iperf3", "veth", "openvswitch", "ethtool")]  # fmt: skip

SMALL = """
notebook: 05_virtual_tap
parameters: {readers: [none, record], rounds: 2, slices: 2, duration_s: 1, omit_s: 0}
grid:
  - output: [veth]
    parameters: {mirrors: [0, 1, 2], loads: ["tcp:64"]}
  - output: [gre]
    parameters: {mirrors: [0, 1], readers: [], uplink_bps: 1.0e+7, loads: ["udp:1024@2e7"]}
"""
TITLES = ["The mirror tax", "Throughput against the number of mirrors", "A mirror that leaves the host"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with sandbox(tmp_path_factory.mktemp("machine")) as made:
        made.project(virtual_tap=SMALL)
        made.sweep("virtual_tap", 300)
        yield made.swept("virtual_tap", "virtual_tap")


@pytest.fixture(scope="module")
def rows(folder: Path) -> pd.DataFrame:
    result = load.load(folder)
    assert set(result["status"]) <= {"ok", "invalid"}, list(result["reason"])
    return result[result["status"].eq("ok")]


def test_the_link_drops_what_does_not_fit(rows: pd.DataFrame) -> None:
    """The link carries half of the load. Its queue drops the other half, and the table says where."""
    table = virtual_tap.uplink(rows).set_index("topology")
    line = table.loc["ovs_netdev+mirrors=1+output=gre+uplink_bps=10000000"]
    assert 0.3 < line["arrived_share"] < 0.6
    assert line["link_lost_share"] == pytest.approx(1 - line["arrived_share"], abs=0.1)
    assert abs(line["other_lost_share"]) < 0.1


def test_report_has_the_thesis_beside_it(folder: Path) -> None:
    text = (folder / "report.html").read_text().replace("&nbsp;", " ")
    for words in (*TITLES, "Senanayake 2024", "up to 20 %", "A/A"):
        assert words in text
    assert "Traceback" not in text
