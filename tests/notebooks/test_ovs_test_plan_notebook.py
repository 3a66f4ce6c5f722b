"""The notebook of the OVS test plan on the userspace datapath: a small sweep of searches, and one report with figures
and sentences."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from sandbox import sandbox

from labkit.analysis import load
from studies.ovs_test_plan import finding as ovs_test_plan

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "nft", "veth", "openvswitch", "ethtool")

SMALL = """
notebook: 08_ovs_test_plan
parameters:
  {case: [net_to_vm, vm_to_vm], tunnel: ["off"], rounds: 1, flows: [4000], sum_s: 0.4, passes: 1, limit_s: 12,
   latency: false}
grid:
  - frame_bytes: [["64"]]
"""
TITLES = ["What matters most", "Throughput by use case and frame size", "Loss against load"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with sandbox(tmp_path_factory.mktemp("machine"), user=False) as made:
        made.project(ovs_test_plan=SMALL)
        made.sweep("ovs_test_plan", 500)
        yield made.swept("ovs_test_plan", "ovs_test_plan")


@pytest.fixture(scope="module")
def rows(folder: Path) -> pd.DataFrame:
    """Return all rows, including those of trials."""
    return load.load(folder, None)


def test_every_switch_is_searched(rows: pd.DataFrame) -> None:
    searches = rows[rows["method"].eq("search") & rows["loss_goal_ratio"].notna()]
    assert set(searches["status"]) <= {"ok", "invalid"}, list(searches["reason"])
    counts = searches.groupby(["arm", "frame", "round", "loss_goal_ratio"]).size()
    assert len(counts) == 3 * 2  # two cases and the control, NDR and PDR
    assert set(counts) == {1}
    assert set(searches["use_case"]) == {"net_to_vm", "vm_to_vm"}
    assert set(searches["rules_count"]) == {1000}


def test_rates_found_have_their_cost(rows: pd.DataFrame) -> None:
    ok = rows[rows["method"].eq("search") & rows["status"].eq("ok")]
    assert len(ok), "no search found a rate"
    for one in ok.to_dict("records"):
        assert 0 < one["megaflows_count"] < 5000
        assert 1 <= one["masks_count"] < 100
        assert one["datapath_cpu_s"] > 0
    assert len(ovs_test_plan.by_vm(ok))


def test_report_figures_and_sentences(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    for words in (*TITLES, "the plan's read-out", "VMs and network are: namespace of this machine", "A/A"):
        assert words in text
    assert "Traceback" not in text
