"""Reachability: the kernel handles every packet as the walk over the description predicts, and rows report every
difference."""

from pathlib import Path
from typing import Any

import pytest
from conftest import require
from sandbox import printed

pytestmark = pytest.mark.long  # test_overlay.py checks paths in `make test`
Rows = list[dict[str, Any]]
# In the order of the description. csX and csY reach each other alone.
CONTAINERS = ("cs1", "cs2", "cs5", "cs3", "cs4", "csX", "csX1", "csA", "csY", "csY1", "csB")
APART = {"csX", "csY"}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    require("namespaces", "ping", "veth", "bridge", "vxlan")
    folder = tmp_path_factory.mktemp("run") / "artefacts"
    rows: dict[str, Rows] = printed(
        Path(__file__).with_name("check_reachability.py"), str(folder), timeout_s=150
    )
    return rows


def test_packets_take_the_expected_paths(result: dict[str, Rows]) -> None:
    rows = result["overlay"]
    assert [(row["source"], row["target"]) for row in rows] == [
        (one, other) for one in CONTAINERS for other in CONTAINERS if one != other
    ]
    for row in rows:
        assert row["doubts"] is None, row
        if len({row["source"], row["target"]} & APART) == 1:
            assert (row["expected_paths"], row["received_count"], row["as_expected"]) == ([], 0, True), row
            assert "has no route to" in row["reason"]
            continue
        assert row["path"] in row["expected_paths"], row
        assert (row["ttl"], row["received_count"], row["as_expected"]) == (row["expected_ttl"], 3, True), row
        assert 0 < row["rtt_min_s"] <= row["rtt_p50_s"] <= row["rtt_max_s"]
        assert row["artefact"] == "artefacts/overlay/capture.pcapng"
    between = [row for row in rows if {row["source"], row["target"]} == {"cs1", "cs5"}]
    assert [len(row["expected_paths"]) for row in between] == [2, 2]
    assert all(row["spine"] in ("sc1", "sc2") and row["spine"] in row["path"] for row in between)
    assert [row["spine"] for row in rows if {row["source"], row["target"]} == {"cs1", "cs2"}] == [None, None]


def test_unexpected_path_is_detected(result: dict[str, Rows]) -> None:
    """The network is compared with a description in which the leaves use the first spine. Every packet takes the
    second one."""
    for row, way in zip(
        result["other"], (["h1", "l1", "s2", "l2", "h2"], ["h2", "l2", "s2", "l1", "h1"]), strict=True
    ):
        assert (row["path"], row["spine"], row["as_expected"]) == (way, "s2", False), row
        assert row["expected_paths"] == [["s1" if name == "s2" else name for name in way]]
        assert row["received_count"] == row["sent_count"], row


def test_lost_packet_is_followed_to_its_last_hop(result: dict[str, Rows]) -> None:
    there, back = result["broken"]
    assert there["path"] == ["h1", "l1", "s2"]
    assert back["path"] == ["h2", "l2", "s2"]
    for row in (there, back):
        assert (row["sent_count"], row["received_count"], row["ttl"], row["rtt_p50_s"]) == (3, 0, None, None)
        assert not row["as_expected"]
        assert row["reason"] is None  # the description gives no reason
