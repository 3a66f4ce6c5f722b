"""A spine fails under a flow, and the kernel reacts as the description, the sysctl and the kind of failure predict."""

import functools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sandbox import printed

pytestmark = [pytest.mark.long, pytest.mark.needs("namespaces", "ping", "veth")]

Row = dict[str, Any]
FAILURES = [["carrier", False], ["carrier", True], ["silent", True]]
ROUTES = ("static", "metric", "ecmp")


@functools.cache
def rows() -> dict[tuple[str, str, bool], Row]:
    """Return the rows by routes, kind of failure, and sysctl. The three networks are separate, so they exist at the
    same time."""
    program = Path(__file__).with_name("fail_spines.py")
    with ThreadPoolExecutor(len(ROUTES)) as pool:
        asked = [
            pool.submit(printed, program, json.dumps([routes, FAILURES]), timeout_s=120) for routes in ROUTES
        ]
    return {
        (routes, str(how), bool(ignores)): row
        for routes, answer in zip(ROUTES, asked, strict=True)
        for (how, ignores), row in zip(FAILURES, answer.result(), strict=True)
    }


def in_time(row: Row) -> float:
    """Return the share of probes sent while the spine was down that were answered before it came back."""
    sent = [(at, rtt) for at, rtt in row["probes"] if row["down_s"] < at < row["up_s"] - 0.1]
    assert len(sent) >= 5, row
    return sum(rtt is not None and at + rtt < row["up_s"] for at, rtt in sent) / len(sent)


CASES = [(routes, str(how), bool(ignores)) for routes in ROUTES for how, ignores in FAILURES]


@pytest.mark.parametrize(("routes", "how", "ignores"), CASES)
def test_outage_of_each_kind_of_failure(routes: str, how: str, ignores: bool) -> None:
    row = rows()[routes, how, ignores]
    survives = routes != "static" and how == "carrier" and ignores
    failed, other = row["failed"], {"s1": "s2", "s2": "s1"}[row["failed"]]
    assert (row["failure"], row["ignores_linkdown"], row["hash_policy"]) == (how, ignores, 0)
    # The counters show that it carried the flow in both directions, and that it does so again afterwards.
    assert row["path_before"] == row["path_after"] == [failed, failed]
    assert failed == "s2" or routes == "ecmp"
    assert row["path_during"] == ([other, other] if survives else [None, None])
    assert row["outage_over"]
    if survives:
        assert in_time(row) > 0.2  # it would be 0 if no packet changed the spine
        assert row["expected_during"] == [other]
    else:
        assert in_time(row) < 0.1
        since_s = row["outage_since_s"]
        lasted_s = min(since_s + row["outage_s"], row["up_s"]) - max(since_s, row["down_s"])
        assert lasted_s > (row["up_s"] - row["down_s"]) / 2, row  # a loaded machine answers late
        # Both gateways are still in the route, and a flow whose hash selects the other spine would use it.
        assert row["expected_during"] == ([other] if routes == "ecmp" else [])
    assert row["sent_count"] == len(row["probes"])
    assert row["received_count"] == sum(rtt is not None for _, rtt in row["probes"])


@pytest.mark.parametrize("routes", ROUTES)
def test_packets_queued_for_an_unresolved_neighbour(routes: str) -> None:
    """Where the route stays, packets wait at the dead link for the neighbour's address and arrive a second late
    (arp(7), unres_qlen). Where the spine drops packets silently, they are lost."""
    waited, gone = rows()[routes, "carrier", False], rows()[routes, "silent", True]
    assert max(rtt for _, rtt in waited["probes"] if rtt is not None) > 0.5
    meanwhile = sum(gone["down_s"] < at < gone["up_s"] for at, _ in gone["probes"])
    assert gone["sent_count"] - gone["received_count"] > meanwhile / 2 > 2
