"""The report's overlay with all of its tenants, which are in the routing tables of its leaves and in no capture.

  csX ─ csX-br (csX-ns) ─ lc1 ═ lc2 ─ csY-ns (csY-br) ─ csY      one L2 network: VXLAN without GRE, over plain routes
           csX1 ─ csX1-br ─ lc1 ═ lc2 ─ csY1-br ─ csY1           two subnets: a second GRE tunnel
             csA ─ csA-br ─ lc1 ═ lc2 ─ csB-br ─ csB             two subnets: plain routes

The tables name the leaves' interfaces, the subnets 41, 43, 100, 101, 110 and 111, and the next hops. What they leave
open is like that of the first tenant: the addresses, and the subnet 40.0.0.0/24 of csX and csY, which the leaves do
not know. The second tunnel is between the leaves' addresses at spine 1, because no other packet needs their routes to
each other over it.
"""

import msgspec

from labkit.measure.topologies.network import leaf_spine_overlay
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

VNI = 40
OTHER = {"lc1": "lc2", "lc2": "lc1"}
# Of each leaf: a tenant with a namespace of its own, its container's address, and the subnet of its uplink
NAMESPACES = {"lc1": ("csX", "40.0.0.1", 41), "lc2": ("csY", "40.0.0.2", 43)}
# Of each leaf: the tenant behind the second tunnel, its subnet, and the tunnel's address and name
TUNNELLED = {"lc1": ("csX1", 100, "25.0.0.2", "gretun-csX1"), "lc2": ("csY1", 101, "27.0.0.2", "gretun-csY1")}
ROUTED = {"lc1": ("csA", 110), "lc2": ("csB", 111)}


def network(routes: str, fabric_mtu_bytes: int, mtu_bytes: int, provider: str) -> Network:
    """Return the overlay with all tenants; for the parameters see `leaf_spine_overlay.leaf_spine_network`.

    Without GRE (`provider` routed), plain routes stand in for the second tunnel, too. With ipip, it is of that kind.
    """
    overlay = leaf_spine_overlay.leaf_spine_network(routes, fabric_mtu_bytes, mtu_bytes, provider)
    parts = [*overlay.parts]
    for leaf, other in OTHER.items():
        parts += _in_namespace(leaf, mtu_bytes)
        plain = [NAMESPACES[leaf][2], ROUTED[leaf][1]]
        for container, net in (TUNNELLED[leaf][:2], ROUTED[leaf]):
            parts += _behind_bridge(leaf, container, net, mtu_bytes)
        if provider == "routed":
            plain.append(TUNNELLED[leaf][1])
        else:
            (_, _, local, name), (_, net, remote, _) = TUNNELLED[leaf], TUNNELLED[other]
            parts += [
                Tunnel(provider, leaf, name, remote, local=local),
                Route(leaf, f"{net}.0.0.0/24", out=name),
            ]
        for net in plain:
            parts += _plain(leaf, f"{net}.0.0.0/24", routes)
    return msgspec.structs.replace(overlay, parts=tuple(parts))


def _in_namespace(leaf: str, mtu_bytes: int) -> list[Part]:
    """Return a tenant with a namespace of its own, whose bridge VXLAN joins with that at the other leaf."""
    (name, address, net), (_, _, far) = NAMESPACES[leaf], NAMESPACES[OTHER[leaf]]
    space, bridge, uplink = f"{name}-ns", f"{name}-br", f"{name}_{leaf}"
    return [
        Node(space), Bridge(space, bridge), Node(name, container=True),
        Cable(CableEnd(name, f"{name}_br", f"{address}/24"), CableEnd(space, f"br_{name}", master=bridge), mtu_bytes),
        Cable(CableEnd(space, uplink, f"{net}.0.0.1/24"), CableEnd(leaf, f"{leaf}-{space}", f"{net}.0.0.2/24")),
        Tunnel(
            "vxlan", space, "vxlan-cont", f"{far}.0.0.1", id=VNI, port=leaf_spine_overlay.VXLAN_PORT, link=uplink,
            master=bridge,
        ),
        Route(space, f"{far}.0.0.0/24", via=f"{net}.0.0.2"),
    ]  # fmt: skip


def _behind_bridge(leaf: str, container: str, net: int, mtu_bytes: int) -> list[Part]:
    """Return a container of a subnet whose gateway is the leaf's port of a bridge."""
    bridge = f"{container}-br"
    own = CableEnd(container, f"{container}_br", f"{net}.0.0.1/24")
    gateway = CableEnd(leaf, f"{leaf}-{bridge}", f"{net}.0.0.2/24")
    return [
        Node(bridge), Bridge(bridge, bridge), Node(container, container=True),
        Cable(own, CableEnd(bridge, f"br_{container}", master=bridge), mtu_bytes),
        Cable(gateway, CableEnd(bridge, "br_gate", master=bridge), mtu_bytes),
        Route(container, "default", via=f"{net}.0.0.2"),
    ]  # fmt: skip


def _plain(leaf: str, net: str, routes: str) -> list[Part]:
    """Return the routes to a leaf's subnet: of the other leaf, and of the spines that it uses."""
    spines = {spine: f"{one}.0.0.2" for at, spine, one in leaf_spine_overlay.FABRIC if at == leaf}
    used = ("sc2",) if routes == "static" else ("sc1", "sc2")
    return [
        *leaf_spine_overlay.leaf_routes(OTHER[leaf], net, routes),
        *(Route(spine, net, via=spines[spine]) for spine in used),
    ]
