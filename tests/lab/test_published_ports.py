"""Ports that the host publishes: the load passes the host, by a process or by address translation."""

import gzip
import json
from pathlib import Path

import pytest
from sandbox import Sandbox

from labkit.measure.topologies.base import address
from labkit.measure.topologies.published_ports import HOST

pytestmark = [pytest.mark.long, pytest.mark.needs("user namespaces", "iperf3", "nft", "veth", "bridge")]

NAMES = ("veth_published_proxy", "veth_published_nat")


@pytest.mark.parametrize(("protocol", "family"), [("udp", 6), ("tcp", 4)])
def test_load_passes_the_host(protocol: str, family: int, machine: Sandbox) -> None:
    folder = machine.data / "datapaths" / f"{protocol}{family}"
    arms = ",".join(("veth_bridge", *NAMES))
    words = (f"topology={arms}", "pairs=2", f"protocol={protocol}", f"family={family}", "duration_s=1")
    rows = machine.rows(*words, "omit_s=0", "--folder", str(folder))
    assert {row["topology"] for row in rows} == {"veth_bridge", *NAMES}
    assert {row["status"] for row in rows} <= {"ok", "invalid"}, [row["reason"] for row in rows]
    assert not [row["reason"] for row in rows if "contradiction" in (row["reason"] or "")]
    for name in ("veth_bridge", *NAMES):
        accepted = {
            page["server"]["start"]["accepted_connection"]["host"].removeprefix("::ffff:")
            for page in pages(folder / f"artefacts/2-r0/{name}.json.gz")
        }
        clients = {str(address(family, 1, number).ip) for number in (0, 1)}
        assert accepted == (clients if name == "veth_bridge" else {str(address(family, HOST, 0).ip)})


def pages(path: Path) -> list[dict[str, dict[str, dict[str, dict[str, str]]]]]:
    """Return the reports of iperf3 in a run's artefact."""
    with gzip.open(path, "rt") as file:
        return list(json.load(file))


def test_slices_of_many_pairs(machine: Sandbox) -> None:
    arms = ",".join(("veth_bridge", *NAMES))
    rows = machine.rows(f"topology={arms}", "pairs=16", "slices=4", "whole_runs=0")
    sliced = [row for row in rows if row["method"] == "slice" and row["status"] == "ok"]
    assert {row["topology"] for row in sliced} == {"veth_bridge", *NAMES}
    assert all(row["throughput_bps"] > 0 for row in sliced)
