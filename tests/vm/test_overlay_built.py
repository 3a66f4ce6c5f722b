"""The report's overlay, and every kind of tunnel, built on a kernel that has them all: one boot for the whole file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import networks
import pytest

from labkit import drawing, hosts, live
from labkit.errors import Failed
from labkit.topologies import Network, overlay
from labkit.topologies.parts import Cable, End, Node, Tunnel

pytestmark = pytest.mark.needs("namespaces", "qemu", "full kernel")

CS5, CS4 = "20.0.0.3", "30.0.0.2"


@pytest.fixture(scope="module")
def where(full_kernel: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    name = f"vm:{full_kernel}"
    with hosts.lending(tmp_path_factory.mktemp("lent"), print) as lend:
        lend(name)
        yield name


def ping(net: live.Live, source: str, target: str, mtu_bytes: int, patience_s: int = 30) -> str:
    """What ping says of a packet that fills the MTU and must not be fragmented. Raises Failed when none comes back."""
    size = mtu_bytes - (48 if ":" in target else 28)
    words = ("ping", "-n", "-c1", "-i0.2", f"-w{patience_s}", "-Mdo", f"-s{size}", target)
    return net.endpoints[source].run(*words)


def attentive(network: Network) -> Network:
    """The network, with nodes that take no route over a link without carrier."""
    parts = tuple(
        msgspec.structs.replace(part, ignores_linkdown=True) if isinstance(part, Node) else part
        for part in network.parts
    )
    return msgspec.structs.replace(network, parts=parts)


def without_spine_2(net: live.Live) -> None:
    for name in ("sc2_lc1", "sc2_lc2"):
        net.endpoints["sc2"].run("ip", "link", "set", name, "down")


@pytest.mark.parametrize("routes", overlay.ROUTES)
def test_containers_reach_each_other_whatever_the_routes(where: str, routes: str) -> None:
    with live.build(attentive(overlay.seed(routes)), where) as net:
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


def test_by_name_and_with_ipip(where: str) -> None:
    with live.build("overlay", where, mtu_bytes=9000) as net:
        assert [end.name for end in net.endpoints.values() if end.address] == ["cs1", "cs5"]
        assert "ttl=64" in ping(net, "cs1", CS5, 9000)
    with live.build(overlay.seed(mtu_bytes=1430, provider="ipip"), where) as net:
        assert "ttl=64" in ping(net, "cs1", CS5, 1430)
        assert (
            "gretun-cont  ipip      MTU 1480   tunnel 26.0.0.2 to 28.0.0.2 (lc2/gretun-cont)"
            in drawing.tree(net.state)
        )


@pytest.mark.parametrize(
    ("tunnel", "mtu_bytes", "told"),
    [
        ({"kind": "geneve", "id": 77}, 1450, "tunnel any to 192.168.2.1 port 6081 (n2/tun)"),
        ({"kind": "gretap", "id": 0xFFFFFFFF}, 1458, "tunnel any to 192.168.2.1 (n2/tun)"),
        ({"kind": "gretap"}, 1462, "tunnel any to 192.168.2.1 (n2/tun)"),
    ],
)
def test_tunnels_of_layer_2(where: str, tunnel: dict[str, Any], mtu_bytes: int, told: str) -> None:
    with live.build(networks.routed(tunnel, mtu_bytes), where) as net:
        assert "ttl=64" in ping(net, "c1", "10.0.0.2", mtu_bytes)
        tree = drawing.tree(net.state)
        assert told in tree
        assert f"{tunnel['kind']} {tunnel.get('id', '')}".strip() in tree


def test_ipv6_in_gre_with_a_key(where: str) -> None:
    parts = (
        Node("a", container=True),
        Node("b", container=True),
        Cable(End("a", "eth0", "10.0.0.1/24"), End("b", "eth0", "10.0.0.2/24")),
        Tunnel("gre", "a", "tun", "10.0.0.2", local="10.0.0.1", id=9, address="fd00::1/64"),
        Tunnel("gre", "b", "tun", "10.0.0.1", local="10.0.0.2", id=9, address="fd00::2/64"),
    )
    with live.build(Network("keyed", parts, (("a", "b"),), 1308), where) as net:
        assert "1 received" in ping(net, "a", "fd00::2", 1280)
