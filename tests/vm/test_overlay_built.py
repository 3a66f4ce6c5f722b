"""The report's overlay and every kind of tunnel, built on a kernel that supports them all, and the experiment's rows
there."""

from typing import Any

import example_networks
import msgspec
import overlay_checks
import pytest
from conftest import SharedVm
from sandbox import also

from labkit import live
from labkit.analysis import drawing
from labkit.common import run_folder
from labkit.common.errors import Failed
from labkit.measure.topologies import Network
from labkit.measure.topologies.network import leaf_spine_overlay
from labkit.measure.topologies.network.parts import Node, Tunnel

pytestmark = pytest.mark.needs("namespaces", "qemu", "full kernel")

CS5, CS4 = "20.0.0.3", "30.0.0.2"


@pytest.fixture(scope="module")
def where(shared_vm: SharedVm) -> str:
    return shared_vm.where


def ping(net: live.LiveTopology, source: str, target: str, mtu_bytes: int, patience_s: int = 30) -> str:
    """Return ping's output for a packet that fills the MTU and must not be fragmented. Raises Failed without a
    reply."""
    size = mtu_bytes - (48 if ":" in target else 28)
    words = ("ping", "-n", "-c1", "-i0.2", f"-w{patience_s}", "-Mdo", f"-s{size}", target)
    return net.endpoints[source].run(*words)


def attentive(network: Network) -> Network:
    """Return the network with nodes that ignore routes over links without carrier."""
    parts = tuple(
        msgspec.structs.replace(part, ignores_linkdown=True) if isinstance(part, Node) else part
        for part in network.parts
    )
    return msgspec.structs.replace(network, parts=parts)


def without_spine_2(net: live.LiveTopology) -> None:
    for name in ("sc2_lc1", "sc2_lc2"):
        net.endpoints["sc2"].run("ip", "link", "set", name, "down")


@pytest.mark.parametrize("routes", ["ecmp", *also("exhaustive", "static", "metric")])
def test_reachability_with_every_kind_of_routes(where: str, routes: str) -> None:
    with live.build(attentive(leaf_spine_overlay.leaf_spine_network(routes)), where) as net:
        assert "ttl=64" in ping(net, "cs1", CS5, 1426)
        assert "ttl=62" in ping(net, "cs1", CS4, 1426)
        with pytest.raises(Failed, match=r"(?i)message too long"):
            ping(net, "cs1", CS5, 1427, patience_s=2)
        tree = drawing.tree(net.state)
        assert "gretun-cont  gre       MTU 1476   tunnel 26.0.0.2 to 28.0.0.2 (lc2/gretun-cont)" in tree
        assert "tunnel any to 23.0.0.1 port 4900 (con_ns3/vxlan-cont)" in tree
        assert {
            "static": "route 28.0.0.0/24 via 26.0.0.1 dev lc1_sc2\n",
            "metric": "route 28.0.0.0/24 via 25.0.0.1 dev lc1_sc1 metric 100\n",
            "ecmp": "route 28.0.0.0/24 via 26.0.0.1 dev lc1_sc2, via 25.0.0.1 dev lc1_sc1\n",
        }[routes] in tree
        without_spine_2(net)
        if routes == "static":
            with pytest.raises(Failed, match="100% packet loss"):
                ping(net, "cs1", CS5, 1426, patience_s=3)
        else:
            assert "via 26.0.0.1 dev lc1_sc2 dead linkdown" in drawing.tree(net.state)
            assert "ttl=64" in ping(net, "cs1", CS5, 1426)


@pytest.mark.exhaustive
def test_overlay_by_name_and_with_ipip(where: str) -> None:
    with live.build("overlay", where, mtu_bytes=9000) as net:
        assert [end.name for end in net.endpoints.values() if end.address] == ["cs1", "cs5"]
        assert "ttl=64" in ping(net, "cs1", CS5, 9000)
    with live.build(leaf_spine_overlay.leaf_spine_network(mtu_bytes=1430, provider="ipip"), where) as net:
        assert "ttl=64" in ping(net, "cs1", CS5, 1430)
        assert (
            "gretun-cont  ipip      MTU 1480   tunnel 26.0.0.2 to 28.0.0.2 (lc2/gretun-cont)"
            in drawing.tree(net.state)
        )


def test_gretap_and_gre_with_keys(where: str) -> None:
    """The largest key, and IPv6 in GRE, between the same two nodes."""
    routed = example_networks.routed({"kind": "gretap", "id": 0xFFFFFFFF}, 1458)
    nodes = ("192.168.1.1", "192.168.2.1")
    both = (
        Tunnel("gre", f"n{number}", "six", remote, local=local, id=9, address=f"fd00::{number}/64")
        for number, local, remote in ((1, *nodes), (2, *reversed(nodes)))
    )
    with live.build(msgspec.structs.replace(routed, parts=(*routed.parts, *both)), where) as net:
        assert "ttl=64" in ping(net, "c1", "10.0.0.2", 1458)
        tree = drawing.tree(net.state)
        assert "tunnel any to 192.168.2.1 (n2/tun)" in tree
        assert "gretap 4294967295" in tree
        assert "1 received" in ping(net, "n1", "fd00::2", 1280)


@pytest.fixture(scope="module")
def rows(shared_vm: SharedVm) -> list[dict[str, Any]]:
    """Return the rows of the experiment in the report's own network. test_reachability.py has all pairs of tenants."""
    result = run_folder.read_rows(shared_vm.run("overlay", "part=path", "routes=static"))
    assert {(row["status"], row["reason"]) for row in result} == {("ok", None)}
    doubts = {doubt for row in result for doubt in (row["doubts"] or "").split("; ")}
    # other tests may run at the same time
    assert not [
        doubt
        for doubt in doubts
        if doubt and "other programs took" not in doubt and "waited for" not in doubt
    ]
    return result


def test_ping_hop_by_hop(rows: list[dict[str, Any]]) -> None:
    """The captures equal the report's tcpdump.

    That shows `UDP, length 106` at lc1_br1, `GREv0, length 138` on both sides of the spine, VXLAN alone again at
    lc2_br3, and plain ICMP at cs5. For a container of another subnet it shows GRE alone, `length 88`.
    """
    within = "IP 21.0.0.1 > 23.0.0.1 / UDP 4900 / VXLAN 30"
    for at, (stack, name, length) in {
        "lc1:lc1_br1": (f"Ethernet / {within}", "udp", 106 + 8),
        "sc2:sc2_lc1": (f"Ethernet / IP 26.0.0.2 > 28.0.0.2 / GRE / {within}", "gre", 138),
        "lc2:lc2_sc2": (f"Ethernet / IP 26.0.0.2 > 28.0.0.2 / GRE / {within}", "gre", 138),
        "lc2:lc2_br3": (f"Ethernet / {within}", "udp", 106 + 8),
    }.items():
        seen = overlay_checks.seen(rows, "cs1 > cs5 echo request", at)
        assert seen["stack"] == f"{stack} / Ethernet / IP 20.0.0.1 > 20.0.0.3 / ICMP echo request"
        assert next(each["length_bytes"] for each in seen["layers"] if each["name"] == name) == length
    last = overlay_checks.seen(rows, "cs1 > cs5 echo request", "cs5:cs5_br3")
    assert (last["stack"], last["layers"][-1]["length_bytes"]) == (
        "Ethernet / IP 20.0.0.1 > 20.0.0.3 / ICMP echo request",
        64,
    )
    alone = overlay_checks.seen(rows, "cs1 > cs4 echo request", "sc2:sc2_lc1")
    assert alone["stack"] == (
        "Ethernet / IP 26.0.0.2 > 28.0.0.2 / GRE / IP 20.0.0.1 > 30.0.0.2 / ICMP echo request"
    )
    assert next(each["length_bytes"] for each in alone["layers"] if each["name"] == "gre") == 88
    overlay_checks.as_promised(rows, leaf_spine_overlay.leaf_spine_network("static"))
