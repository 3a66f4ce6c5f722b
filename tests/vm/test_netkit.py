"""netkit on a kernel that has it: reachability, which hops packets pass, and how it is drawn."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import printed_at, require

from benchmarks.set_up import netkit_kernel
from labkit import live
from labkit.analysis import drawing
from labkit.measure import hosts
from labkit.measure.topologies.linux_datapaths import REDIRECTS, ROUTED
from labkit.measure.topologies.network.parts import Cable, CableEnd, Network, Node, Redirect
from labkit.measure.topologies.state import packet_path

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "qemu", "netkit kernel")

NAMES = [name for name in (*ROUTED, *REDIRECTS) if name.startswith("netkit")]
WHOLE = ["client0:eth0 out", "between:port0 in", "between:port1 out", "server0:eth0 in"]
# The first hop that requests skip: a program of netkit runs before the port receives them.
SKIPPED = {
    "netkit_l2_redirect": "between:port0 in",
    "netkit_redirect": "between:port0 in",
    "netkit_redirect_peer": "between:port1 out",
}
PINGS = 10


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Boot the kernel once for all tests of this file, in the profile that is safe where captures patch its code."""
    require("netkit kernel")  # fixtures of a module are made before its marks are asked
    result = f"vm:{netkit_kernel()},profile=tracing"
    with hosts.leasing(tmp_path_factory.mktemp("netkit"), print) as lease:
        lease(result)
        yield result


def test_netkit_reaches_up_to_the_mtu(where: str) -> None:
    requests = [
        {"name": name, "pairs": pairs, "mtu_bytes": mtu, "family": family}
        for name in NAMES
        for pairs, mtu, family in ((2, 1500, 4), (1, 9000, 6))
    ]
    answers = printed_at(where, "lab/build_topologies.py", json.dumps(requests))
    for request, answer in zip(requests, answers, strict=True):
        assert "error" not in answer, answer
        assert answer["full"] == answer["one_more_refused"] == [True] * request["pairs"]
        assert answer["reachable"] is None
        assert answer["ttl"] == [63 if request["name"] in ROUTED else 64] * request["pairs"]


@pytest.mark.parametrize("name", NAMES)
def test_packets_skip_the_hop_that_the_path_leaves_out(name: str, where: str) -> None:
    with live.build(name, where=where) as net:
        before = packets(net)
        with net.capture() as seen:
            pinged = net.client0.run("ping", "-n", f"-c{PINGS}", "-i0.05", net.server0.address or "")
        after = packets(net)
        [path] = packet_path.packet_paths(net.state)
        tree = drawing.tree(net.state)
    steps = [f"{step.namespace}:{step.interface} {step.direction}" for step in path]
    assert steps == [step for step in WHOLE if step != SKIPPED.get(name)]
    assert " 0% packet loss" in pinged
    for step, counter in (("between:port0 in", ("port0", "rx")), ("between:port1 out", ("port1", "tx"))):
        passed = after[counter] - before[counter]
        assert passed >= PINGS if step in steps else passed < PINGS, (step, passed)
    # Each reply skips the same hop of the other port.
    assert seen.counts["between:port0"].captured_count == (PINGS if name in SKIPPED else 2 * PINGS)
    assert ("netkit l2" if name in ("netkit", "netkit_l2_redirect") else "netkit l3") in tree
    assert ("skips between/port" in tree) == (name in SKIPPED)
    assert ("bpf_redirect at netkit to between/port1" in tree) == (name == "netkit_redirect")


def packets(net: live.LiveTopology) -> dict[tuple[str, str], int]:
    """Return how many packets the kernel has counted at each port."""
    links: list[dict[str, Any]] = json.loads(net.endpoints["between"].run("ip", "-s", "-j", "link", "show"))
    return {(one["ifname"], way): one["stats64"][way]["packets"] for one in links for way in ("rx", "tx")}


def test_network_of_ones_own_has_programs_at_both_ends(where: str) -> None:
    """Only the primary end takes programs, also the one for what arrives at its peer. What no program redirects is
    dropped."""
    nodes = (Node("a", True), Node("b", True), Node("n"))
    one, two = (CableEnd("n", f"p{number}") for number in (1, 2))
    a, b = CableEnd("a", "eth0", "10.0.0.1/24"), CableEnd("b", "eth0", "10.0.0.2/24")
    cables = (Cable(one, a, kind="netkit", mode="l3"), Cable(b, two, kind="netkit", mode="l3"))
    both = (Redirect("n", "p1", "p2", hook="netkit"), Redirect("n", "p2", "p1", hook="netkit"))
    with live.build(Network("own", (*nodes, *cables, *both), (("a", "b"),)), where=where) as net:
        assert " 0% packet loss" in net.endpoints["a"].run("ping", "-n", "-c3", "-i0.05", "10.0.0.2")
