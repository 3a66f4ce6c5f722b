"""The overlay of the report that labkit started from.

VXLAN joins the bridges of two tenants into one L2 network. GRE between two leaves carries it, over either of two
spines. Containers of another subnet are reached by GRE alone.

  cs1, cs2 ─ bridge1 (con_ns1) ─ lc1 ═ sc1, sc2 ═ lc2 ─ bridge3 (con_ns3) ─ cs5
                                                  └─── bridge2 (con_ns2) ─ cs3, cs4
"""

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

VNI, VXLAN_PORT = 30, 4900
ROUTES = ("static", "metric", "ecmp")
PROVIDERS = ("gre", "ipip", "routed")
# Links between leaves and spines: leaf, spine, subnet. The spine has .1, the leaf .2.
FABRIC = (("lc1", "sc1", 25), ("lc1", "sc2", 26), ("lc2", "sc1", 27), ("lc2", "sc2", 28))
# Subnets behind each leaf: the uplink of its tenants, and the containers that are reached without VXLAN.
BEHIND = {"lc1": ("21.0.0.0/24", "20.0.0.0/24"), "lc2": ("23.0.0.0/24", "30.0.0.0/24")}


def leaf_spine_network(
    routes: str = "static", fabric_mtu_bytes: int = 1500, mtu_bytes: int = 1426, provider: str = "gre"
) -> Network:
    """Return the network of the report, with its names and addresses.

    `routes` between the leaves: static (spine 2 only, as in the report), metric (spine 1 as a second route), ecmp
    (both spines at equal cost). `fabric_mtu_bytes`: of the cables between leaves and spines. `mtu_bytes`: of the
    containers; GRE (24 bytes) and VXLAN (50 bytes) lie between both. `provider`: what carries the tenants' packets
    between the leaves: gre (as in the report), ipip, or routed (plain routes with VXLAN only, for kernels without
    GRE).
    """
    return Network(
        "overlay",
        (*_tenants(mtu_bytes), *_fabric(), *_leaves(), *_between(routes, provider)),
        pairs=(("cs1", "cs5"), ("cs1", "cs4")),
        mtu_bytes=fabric_mtu_bytes,
    )


def _tenants(mtu_bytes: int) -> list[Part]:
    """Return the tenants' bridges with their containers; VXLAN joins the first and the third."""
    parts: list[Part] = [
        Node("con_ns1"), Bridge("con_ns1", "bridge1"),
        Node("con_ns2"), Bridge("con_ns2", "bridge2"),
        Node("con_ns3"), Bridge("con_ns3", "bridge3"),
        Tunnel("vxlan", "con_ns1", "vxlan-cont", "23.0.0.1", id=VNI, port=VXLAN_PORT, link="br1_lc1", master="bridge1"),
        Tunnel("vxlan", "con_ns3", "vxlan-cont", "21.0.0.1", id=VNI, port=VXLAN_PORT, link="br3_lc2", master="bridge3"),
        Route("con_ns1", "23.0.0.0/24", via="21.0.0.2"),
        Route("con_ns3", "21.0.0.0/24", via="23.0.0.2"),
    ]  # fmt: skip
    for at, name, address, number, port in (
        ("cs1", "cs1_br1", "20.0.0.1", 1, "cs1"),
        ("cs2", "cs2_br1", "20.0.0.2", 1, "cs2"),
        ("cs5", "cs5_br3", "20.0.0.3", 3, "cs5"),
        ("cs3", "cs3_br2", "30.0.0.1", 2, "cs3"),
        ("cs4", "cs4_br2", "30.0.0.2", 2, "cs4"),
        # the leaves' own ports, through which containers reach other subnets
        ("lc1", "lc1-bridge1", "20.0.0.4", 1, "gate"),
        ("lc2", "lc2-br2", "30.0.0.3", 2, "gate"),
    ):
        own = CableEnd(at, name, f"{address}/24")
        there = CableEnd(f"con_ns{number}", f"br{number}_{port}", master=f"bridge{number}")
        cable = Cable(own, there, mtu_bytes)
        route = Route(at, "default", via="30.0.0.3" if number == 2 else "20.0.0.4")
        parts += [cable] if port == "gate" else [Node(at, container=True), cable, route]
    return parts


def _fabric() -> list[Part]:
    """Return two leaves, two spines, and a cable between each leaf and spine."""
    parts: list[Part] = [Node(name, forwards=True) for name in ("lc1", "lc2", "sc1", "sc2")]
    for leaf, spine, net in FABRIC:
        one, other = (
            CableEnd(leaf, f"{leaf}_{spine}", f"{net}.0.0.2/24"),
            CableEnd(spine, f"{spine}_{leaf}", f"{net}.0.0.1/24"),
        )
        parts.append(Cable(one, other))
    return parts


def _leaves() -> list[Part]:
    """Return the tenants' uplinks."""
    return [
        Cable(CableEnd("con_ns1", "br1_lc1", "21.0.0.1/24"), CableEnd("lc1", "lc1_br1", "21.0.0.2/24")),
        Cable(CableEnd("con_ns3", "br3_lc2", "23.0.0.1/24"), CableEnd("lc2", "lc2_br3", "23.0.0.2/24")),
    ]


def _between(routes: str, provider: str) -> list[Part]:
    """Return what carries packets between the leaves.

    Tunnels end in 26.0.0.0/24 and 28.0.0.0/24, the subnets of spine 2; over spine 1 they are reached through the other
    leaf.
    """
    ends = {"lc1": ("26.0.0.2", "28.0.0.2"), "lc2": ("28.0.0.2", "26.0.0.2")}
    parts: list[Part] = [
        Route("lc1", "27.0.0.0/24", via="25.0.0.1"),
        Route("lc2", "25.0.0.0/24", via="27.0.0.1"),
    ]
    for leaf, other, outside in (("lc1", "lc2", "28.0.0.0/24"), ("lc2", "lc1", "26.0.0.0/24")):
        parts += leaf_routes(leaf, outside, routes)
        if provider == "routed":
            parts += [route for to in BEHIND[other] for route in leaf_routes(leaf, to, routes)]
        else:
            local, remote = ends[leaf]
            parts.append(Tunnel(provider, leaf, "gretun-cont", remote, local=local))
            parts += [Route(leaf, to, out="gretun-cont") for to in BEHIND[other]]
    return [*parts, *_spines(routes, provider)]


def leaf_routes(leaf: str, to: str, routes: str) -> list[Part]:
    """Return the routes of a leaf over the spines."""
    by_spine_2, by_spine_1 = {"lc1": ("26.0.0.1", "25.0.0.1"), "lc2": ("28.0.0.1", "27.0.0.1")}[leaf]
    if routes == "ecmp":
        return [Route(leaf, to, via=(by_spine_2, by_spine_1))]
    second: list[Part] = [Route(leaf, to, via=by_spine_1, metric=100)] if routes == "metric" else []
    return [Route(leaf, to, via=by_spine_2), *second]


def _spines(routes: str, provider: str) -> list[Part]:
    """Return the spines' routes to subnets that they are not connected to."""
    leaves = {(spine, leaf): f"{net}.0.0.2" for leaf, spine, net in FABRIC}
    parts: list[Part] = []
    if routes != "static":
        parts += [Route("sc1", "26.0.0.0/24", via="25.0.0.2"), Route("sc1", "28.0.0.0/24", via="27.0.0.2")]
    if provider == "routed":
        parts += [
            Route(spine, to, via=leaves[spine, leaf])
            for spine in ("sc1", "sc2")
            for leaf, behind in BEHIND.items()
            for to in behind
        ]
    return parts
