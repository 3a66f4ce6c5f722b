"""The topologies loopback, veth, veth_bridge and veth_routed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from labkit.measure.endpoints import Endpoint, Namespace, Pair, namespaces
from labkit.measure.topologies.base import (
    EDGE,
    PORT,
    Spec,
    Topology,
    address,
    endpoint_addresses,
    ends_and_between,
    give_addresses,
    mac,
    names,
    pairs_of,
)
from labkit.system import netlink

BRIDGE = netlink.FIRST_INDEX + 1
PORT_SIDE = 1  # `part` in the MAC addresses of the ports between the ends


@contextmanager
def loopback(name: str, spec: Spec) -> Iterator[Topology]:
    """Build both ends of each pair in one namespace, over lo: the upper limit of what the network stack can do."""
    # Single-address prefixes: in a shared subnet the second address is a secondary one, and UDP replies would not have
    # it as their source.
    alone = 32 if spec.family == 4 else 128
    with namespaces([f"both{number}" for number in range(spec.pairs)], family=spec.family) as made:
        pairs = []
        for number, space in enumerate(made):
            space.netlink.do(
                netlink.set_link(1, mtu_bytes=spec.mtu_bytes),
                *(netlink.new_address(1, address(spec.family, side, number, alone)) for side in (1, 2)),
            )
            client, server = (
                Endpoint(f"{role}{number}", space, "lo", 1, str(address(spec.family, side, number).ip))
                for side, role in ((1, "client"), (2, "server"))
            )
            pairs.append(Pair(client, server))
        yield Topology(name, spec, pairs, made)


@contextmanager
def veth(name: str, spec: Spec) -> Iterator[Topology]:
    """Build one veth between the two ends of each pair (veth(4)).

    The receive path of the far end runs in the sender's softirq.
    """
    with namespaces(names(spec), family=spec.family) as made:
        for number in range(0, len(made), 2):
            client, server = made[number : number + 2]
            for space in (client, server):
                space.netlink.do(netlink.set_link(1))
            peer = {"name": "eth0", "index": EDGE, "netns": server.fd, "mac": mac(number + 1)}
            client.netlink.do(
                netlink.new_link(
                    "veth", "eth0", index=EDGE, mtu_bytes=spec.mtu_bytes, mac=mac(number), peer=peer
                )
            )
        give_addresses(spec, made)
        yield Topology(name, spec, pairs_of(spec, made), made)


@contextmanager
def veth_bridge(name: str, spec: Spec) -> Iterator[Topology]:
    """Build a veth from every end to one Linux bridge, as Docker's default network.

    The bridge has no spanning tree and no VLAN filtering.
    """
    with joined_by_bridge(name, spec) as (topology, _between):
        yield topology


@contextmanager
def joined_by_bridge(
    name: str, spec: Spec, bridge_mac: str | None = None
) -> Iterator[tuple[Topology, Namespace]]:
    """Build a veth from every end to one Linux bridge; yield the topology and the bridge's namespace.

    `bridge_mac`: the bridge's own MAC address; None: the kernel takes that of a port.
    """
    with ends_and_between(spec) as (ends, between):
        between.netlink.do(
            netlink.new_link("bridge", "bridge", index=BRIDGE, mtu_bytes=spec.mtu_bytes, mac=bridge_mac)
        )
        cables = [port(spec, space, number, BRIDGE) for space, _, number in endpoint_addresses(spec, ends)]
        between.netlink.do(*cables)
        give_addresses(spec, ends)
        yield Topology(name, spec, pairs_of(spec, ends), [*ends, between]), between


def port(spec: Spec, end: Namespace, number: int, master: int | None) -> netlink.Message:
    """Return the netlink request for a veth from end `number` to its port in the namespace between.

    `master` is the index of the bridge that the port joins, or None.
    """
    return netlink.new_link(
        "veth",
        f"port{number}",
        index=PORT + number,
        mtu_bytes=spec.mtu_bytes,
        mac=mac(number, PORT_SIDE, spec.ours),
        master=master,
        peer={"name": "eth0", "index": EDGE, "netns": end.fd, "mac": mac(number, 0, spec.ours)},
    )


@contextmanager
def veth_routed(name: str, spec: Spec) -> Iterator[Topology]:
    """Build a veth from every end to a router namespace, each with a subnet of two addresses.

    Calico does the same, and adds policies.
    """
    with ends_and_between(spec) as (ends, between):
        between.sysctl("ipv4/ip_forward" if spec.family == 4 else "ipv6/conf/all/forwarding", 1)
        between.netlink.do(
            *(port(spec, space, number, None) for space, _, number in endpoint_addresses(spec, ends))
        )
        pairs: list[Endpoint] = []
        for number, space in enumerate(ends):
            # RFC 3021: a /31 has two usable addresses, the even one is the router's; /127 likewise (RFC 6164)
            short = 31 if spec.family == 4 else 127
            side, even = 1 + number % 2, 2 * (number // 2) + 1
            gateway, own = (
                address(spec.family, side, even, short),
                address(spec.family, side, even + 1, short),
            )
            between.netlink.do(
                netlink.new_address(PORT + number, gateway),
                netlink.new_neighbour(PORT + number, str(own.ip), mac(number)),
            )
            space.netlink.do(
                netlink.set_link(EDGE),
                netlink.new_address(EDGE, own),
                netlink.new_neighbour(EDGE, str(gateway.ip), mac(number, PORT_SIDE)),
                netlink.new_route("default", [(EDGE, str(gateway.ip))], family=gateway.version),
            )
            pairs.append(Endpoint(space.name, space, "eth0", EDGE, str(own.ip)))
        made = [Pair(client, server) for client, server in zip(pairs[::2], pairs[1::2], strict=True)]
        yield Topology(name, spec, made, [*ends, between])
