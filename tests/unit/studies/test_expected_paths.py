"""The paths that a Network's description predicts agree with paths that its author wrote down by hand."""

import itertools

import pytest

from labkit.common.errors import BadInput
from labkit.measure.topologies.network import leaf_spine_overlay
from labkit.measure.topologies.network.model import NetworkIndex
from labkit.measure.topologies.network.parts import (
    Bridge,
    Cable,
    CableEnd,
    Network,
    Node,
    Part,
    Route,
    Tunnel,
)
from studies.overlay import tenants
from studies.overlay.expected_paths import Path, no_path, paths

# From the report: the bridge of each container, and what that bridge reaches.
BRIDGE = {"cs1": 1, "cs2": 1, "cs3": 2, "cs4": 2, "cs5": 3}


def only(result: list[Path]) -> Path:
    assert len(result) == 1, result
    return result[0]


def router(*names: str) -> list[Part]:
    return [Node(name, forwards=True) for name in names]


def cable(
    one: str, one_address: str | None, other: str, other_address: str | None, /, **masters: str
) -> Cable:
    return Cable(
        CableEnd(one, f"{one}_{other}", one_address, masters.get("one")),
        CableEnd(other, f"{other}_{one}", other_address, masters.get("other")),
    )


def network(*parts: Part) -> Network:
    return Network("made", parts, ())


# `route -n` on both leaves in the report, without Docker's network: subnet, and gateway or interface
TABLES = {
    "lc1": "20 lc1-bridge1, 21 lc1_br1, 23 gretun-cont, 25 lc1_sc1, 26 lc1_sc2, 27 25.0.0.1, 28 26.0.0.1, "
    "30 gretun-cont, 41 lc1-csX-ns, 43 26.0.0.1, 100 lc1-csX1-br, 101 gretun-csX1, 110 lc1-csA-br, 111 26.0.0.1",
    "lc2": "20 gretun-cont, 21 gretun-cont, 23 lc2_br3, 25 27.0.0.1, 26 28.0.0.1, 27 lc2_sc1, 28 lc2_sc2, "
    "30 lc2-br2, 41 28.0.0.1, 43 lc2-csY-ns, 100 gretun-csY1, 101 lc2-csY1-br, 110 28.0.0.1, 111 lc2-csB-br",
}


@pytest.mark.parametrize("leaf", TABLES)
def test_leaves_have_the_routing_tables_of_the_report(leaf: str) -> None:
    table = NetworkIndex(tenants.network("static", 1500, 1426, "gre")).routing_tables[leaf]
    hops = [(str(one.to).partition(".")[0], one.hops) for one in sorted(table, key=lambda one: one.to)]
    assert ", ".join(f"{net} {hop.via or hop.out.name}" for net, [hop] in hops) == TABLES[leaf]


@pytest.mark.parametrize("provider", ["gre", "routed"])
@pytest.mark.parametrize("routes", leaf_spine_overlay.ROUTES)
def test_full_reachability(routes: str, provider: str) -> None:
    made = leaf_spine_overlay.leaf_spine_network(routes, provider=provider)
    for source, target in itertools.permutations(BRIDGE, 2):
        result = paths(made, source, target)
        one, other = BRIDGE[source], BRIDGE[target]
        crossings = sum(name.startswith("sc") for name in result[0].nodes)
        # Bridges 1 and 3 share a subnet whose gateway is on bridge 1. Packets from bridge 3 to another subnet go there.
        assert crossings == (0 if one == other else 2 if {one, other} == {2, 3} else 1)
        assert len(result) == len(set(result)) == (2**crossings if routes == "ecmp" else 1)
        # Without a tunnel, a spine is one more router for a packet that is not in VXLAN.
        plain = int(provider == "routed")
        assert {path.ttl for path in result} == {64 if 2 not in (one, other) or one == other else 62 - plain}
        assert {(path.nodes[0], path.nodes[-1]) for path in result} == {(source, target)}
        spines = {name for path in result for name in path.nodes if name.startswith("sc")}
        assert spines == (set() if not crossings else {"sc1", "sc2"} if routes == "ecmp" else {"sc2"})


@pytest.mark.parametrize("failed", ["sc2", "lc1:lc1_sc2", "sc2:sc2_lc1"])
def test_reachability_without_a_spine(failed: str) -> None:
    for routes in ("metric", "ecmp"):
        made = leaf_spine_overlay.leaf_spine_network(routes)
        assert "sc1" in only(paths(made, "cs1", "cs5", without={failed}, noticed=True)).nodes
    static = leaf_spine_overlay.leaf_spine_network("static")
    assert paths(static, "cs1", "cs5", without={failed}, noticed=True) == []
    assert no_path(static, "cs1", "cs5", without={failed}, noticed=True) == "lc1 has no route to 28.0.0.2"
    assert no_path(static, "cs1", "cs5") is None
    assert only(paths(static, "cs1", "cs5", without={"sc1"}, noticed=True)).nodes[3] == "sc2"


def test_unnoticed_dead_link_stays_in_use() -> None:
    assert paths(leaf_spine_overlay.leaf_spine_network("metric"), "cs1", "cs5", without={"sc2"}) == []
    words = no_path(leaf_spine_overlay.leaf_spine_network("metric"), "cs1", "cs5", without={"sc2"})
    assert words == "no node answers for 26.0.0.1 at lc1:lc1_sc2"
    left = only(paths(leaf_spine_overlay.leaf_spine_network("ecmp"), "cs1", "cs5", without={"sc2"}))
    assert "sc1" in left.nodes  # for a flow whose hash selects it


def star(*tunnels: Tunnel) -> Network:
    """Return three ends around a router, each a bridge with a container."""
    parts: list[Part] = router("hub")
    for number in (1, 2, 3):
        end, box = f"end{number}", f"box{number}"
        parts += [
            Node(end), Node(box, container=True), Bridge(end, "br0"),
            cable(end, f"10.0.{number}.2/24", "hub", f"10.0.{number}.1/24"),
            cable(box, f"192.168.0.{number}/24", end, None, other="br0"),
            Route(end, "default", via=f"10.0.{number}.1"),
        ]  # fmt: skip
    return network(*parts, *tunnels)


def outer(number: int) -> str:
    return f"10.0.{number}.2"


@pytest.mark.parametrize("local", [True, False])
def test_vxlan_with_three_endpoints(local: bool) -> None:
    made = star(
        *(
            Tunnel("vxlan", f"end{one}", "vx", tuple(outer(two) for two in (1, 2, 3) if two != one),
                   local=outer(one) if local else None, id=7, master="br0")
            for one in (1, 2, 3)
        )
    )  # fmt: skip
    for one, other in itertools.permutations((1, 2, 3), 2):
        path = only(paths(made, f"box{one}", f"box{other}"))
        assert path.nodes == (f"box{one}", f"end{one}", "hub", f"end{other}", f"box{other}")
        assert path.ttl == 64
        assert path.stacks[3] == (
            f"Ethernet / IP {outer(one)} > {outer(other)} / UDP 4789 / VXLAN 7"
            f" / Ethernet / IP 192.168.0.{one} > 192.168.0.{other}"
        )


@pytest.mark.parametrize(
    ("kind", "header"), [("gretap", "GRE key 5"), ("geneve", "UDP 6081 / Geneve 5")], ids=["gretap", "geneve"]
)
def test_tunnels_between_two_ends_check_the_sender(kind: str, header: str) -> None:
    def made(remote: str, number: int = 5) -> Network:
        return star(
            Tunnel(kind, "end1", "tun", outer(2), id=5, master="br0"),
            Tunnel(kind, "end2", "tun", remote, id=number, master="br0"),
        )

    path = only(paths(made(outer(1)), "box1", "box2", length_bytes=100))
    assert path.stacks[3] == (
        f"Ethernet / IP 10.0.1.2 > 10.0.2.2 / {header} / Ethernet / IP 192.168.0.1 > 192.168.0.2"
    )
    assert path.lengths_bytes[3] == 14 + 20 + {"gretap": 8, "geneve": 8 + 8}[kind] + 14 + 100
    for other in (made(outer(1), 6), made(outer(3))):
        words = no_path(other, "box1", "box2")
        assert words == f"end2 has no {kind} that accepts packets from 10.0.1.2 to 10.0.2.2"


def test_longest_prefix_and_bridge_addresses() -> None:
    made = network(
        Node("box"), *router("one", "two"), Node("far"), Bridge("box", "br0", "10.0.0.1/24"),
        cable("box", None, "one", "10.0.0.2/24", one="br0"), cable("box", "10.0.1.1/24", "two", "10.0.1.2/24"),
        cable("one", "10.1.0.1/24", "far", "10.1.0.9/24"), cable("two", "10.2.0.1/24", "far", "10.2.0.9/24"),
        Route("box", "default", via="10.0.1.2"), Route("box", "10.1.0.0/16", via="10.0.0.2"),
        Route("box", "10.1.0.9", via="10.0.1.2", metric=9), Route("two", "10.1.0.0/24", via="10.2.0.9"),
    )  # fmt: skip
    # far accepts packets for 10.1.0.9 on any interface (the weak host model)
    path = only(paths(made, "box", "10.1.0.9"))
    assert (path.nodes, path.ttl) == (("box", "two", "far"), 63)
    path = only(paths(made, "box", "10.1.0.1"))
    assert path.interfaces == ("box:br0", "box:box_one", "one:one_box")
    assert only(paths(made, "one", "10.0.0.1")).interfaces[-1] == "box:br0"


def test_ipv6_paths() -> None:
    made = network(
        Node("one"), *router("hub"), Node("two"), cable("one", "fd00:1::2/64", "hub", "fd00:1::1/64"),
        cable("hub", "fd00:2::1/64", "two", "fd00:2::2/64"), Route("one", "default", via="fd00:1::1"),
    )  # fmt: skip
    path = only(paths(made, "one", "two"))
    assert (path.ttl, path.stacks[0]) == (63, "Ethernet / IP6 fd00:1::2 > fd00:2::2")


CIRCLE = network(
    Node("box"), *router("one", "two"), cable("box", "10.0.0.1/24", "one", "10.0.0.2/24"),
    cable("one", "10.0.1.1/24", "two", "10.0.1.2/24"), Route("box", "default", via="10.0.0.2"),
    Route("one", "default", via="10.0.1.2"), Route("two", "default", via="10.0.1.1"),
)  # fmt: skip
RING = network(
    *(Node(f"n{at}") for at in range(4)), *(Bridge(f"n{at}", "br0") for at in range(4)), Node("box"),
    *(cable(f"n{at}", None, f"n{(at + 1) % 4}", None, one="br0", other="br0") for at in range(4)),
    cable("box", "10.0.0.1/24", "n0", None, other="br0"),
)  # fmt: skip
INTO_ITSELF = network(
    Node("box"), Node("hub"), cable("box", "10.0.0.1/24", "hub", "10.0.0.2/24"),
    Tunnel("gre", "box", "tun", "10.9.0.1", local="10.0.0.1"), Route("box", "10.9.0.0/24", out="tun"),
)  # fmt: skip
DEAD_ENDS = {
    "circle": (CIRCLE, "10.9.9.9", "the packet returns to one:one_two, which is a routing loop"),
    "ring": (RING, "10.0.0.9", "the packet returns to n0:br0"),
    "itself": (INTO_ITSELF, "10.9.0.9", "the path from box:tun to its other end nests tunnels without end"),
    "nobody": (CIRCLE, "10.0.0.77", "no node answers for 10.0.0.77 at box:box_one"),
    "no route": (INTO_ITSELF, "11.0.0.1", "box has no route to 11.0.0.1"),
    "no router": (
        network(*INTO_ITSELF.parts, Route("box", "default", via="10.0.0.2")),
        "11.0.0.1",
        "hub does not forward, and 11.0.0.1 is not its address",
    ),
}


def test_unreachable_reasons() -> None:
    for name, (made, target, why) in DEAD_ENDS.items():
        assert paths(made, "box", target) == []
        result = no_path(made, "box", target)
        assert result.startswith(why) or (name == "ring" and "routing loop" in result)


def test_a_node_without_an_address_has_no_paths() -> None:
    with pytest.raises(BadInput, match="con_ns2 has no address"):
        paths(leaf_spine_overlay.leaf_spine_network(), "cs1", "con_ns2")


def line(kind: str) -> Network:
    """Return a network of 80 nodes in a row, which use a TTL up, with a tunnel from n40 to the last."""
    parts = router(*(f"n{number}" for number in range(80)))
    for one in range(79):
        far = f"10.0.{one}.2"
        parts += [
            cable(f"n{one}", f"10.0.{one}.1/24", f"n{one + 1}", f"{far}/24"),
            Route(f"n{one}", "default", via=far),
        ]
    ends = (("n40", "10.0.78.2", "172.16.0.1/30"), ("n79", "10.0.40.1", "172.16.0.2/30"))
    number = 9 if kind == "vxlan" else None
    parts += [Tunnel(kind, node, "tun", far, id=number, address=own) for node, far, own in ends]
    return network(*parts)


def test_inherited_and_own_ttl() -> None:
    """40 routers forward it before the tunnel, so a TTL of 24 is left. 38 more routers forward it inside the tunnel."""
    assert paths(line("gre"), "n0", "172.16.0.2") == []
    assert no_path(line("gre"), "n0", "172.16.0.2") == "the TTL expires at n64"
    assert only(paths(line("vxlan"), "n0", "172.16.0.2")).ttl == 64 - 40
