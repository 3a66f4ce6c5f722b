"""The notebook of packet sizes on this kernel: a small sweep, one report with figures and sentences, and one sentence
for each invalid request."""

from pathlib import Path

import pytest
from sandbox import Sandbox, machine_fixture

from labkit.analysis import load
from studies.packet_size import cost_model
from studies.packet_size.cost_model import fragments_count

# test_docs_site.py executes the notebook with published rows, and test_open_vswitch.py measures packet sizes.
pytestmark = [pytest.mark.exhaustive,
              pytest.mark.needs("user namespaces", "iperf3", "ip", "ping", "ethtool", "veth", "bridge")]  # fmt: skip

SMALL = """
notebook: 03_packet_size
parameters: {topology: [veth, veth_bridge], rounds: 2, slices: 3, observe: [function_times], observe_bytes: [400],
             profile_rounds: 1}
grid:
  - size_bytes: [[16, 400, 1472, 4000, 65507]]
"""
TITLES = ["Throughput, packets and busy CPUs, by size", "Fixed cost, cost of a byte, cost of a fragment"]

machine = machine_fixture("module", sweeps={"packet_size": SMALL})


@pytest.fixture(scope="module")
def lines(machine: Sandbox) -> str:
    """Return what the sweep prints in the terminal."""
    return " ".join(machine.sweep("packet_size", 400).split())


@pytest.fixture(scope="module")
def folder(machine: Sandbox, lines: str) -> Path:
    return machine.swept("packet_size", "packet_size")


def test_every_size_in_every_round(folder: Path) -> None:
    rows = load.load(folder)
    assert "unfinished" not in rows.attrs
    assert set(rows["experiment"]) == {"packet_size"}
    slices = rows[rows["status"].eq("ok")].groupby(["arm", "length_bytes", "round"])["slice"].nunique()
    assert len(slices) == 3 * 5 * 2
    assert set(slices) == {3}


def test_fragment_count(folder: Path) -> None:
    rounds = cost_model.per_round(load.load(folder))
    assert set(rounds["fragments_count"]) == {1, 3, 45}
    seen = rounds[rounds["seen_fragments_ratio"].notna()]
    assert set(seen["length_bytes"]) == {16, 400, 1472, 4000, 65507}
    for one in seen.to_dict("records"):
        expected = fragments_count(one["length_bytes"], 1500)
        assert one["seen_fragments_ratio"] == pytest.approx(expected, rel=0.05)


def test_findings_in_the_output(lines: str) -> None:
    for words in (
        "IPv4 carries up to 1472 bytes unfragmented, and sends 3 fragments for 4000 bytes, 45 fragments for",
        "The senders' kernel counted the computed number of fragments",
        "veth_bridge, CPU time of a datagram received, whole machine: ",
        "veth_bridge against veth, CPU time of a datagram received, whole machine: ",
        "ip_rcv",
    ):
        assert words in lines


def test_report_figures_and_sentences(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    for words in (*TITLES, "The cost of a packet by its size", "cut: each further one"):
        assert words in text
    assert "Traceback" not in text
    # Function times exist for one of the two sizes or none. Either way, one sentence says that it cannot be decided.
    assert "takes half as long for 800 bytes as for 400 cannot be determined here: " in text
