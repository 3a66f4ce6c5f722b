"""Build a Network in the kernel, after checking the whole description."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from labkit.common.errors import BadInput, Failed
from labkit.common.units import counted
from labkit.measure.endpoints import Endpoint, Namespace, Pair, namespaces
from labkit.measure.topologies.base import Spec, Topology, entered
from labkit.measure.topologies.network import encapsulation, validate
from labkit.measure.topologies.network.leaf_spine_overlay import leaf_spine_network
from labkit.measure.topologies.network.model import (
    DescribedInterface,
    Key,
    NetworkIndex,
    RouteChoice,
    port,
    remotes,
    target,
)
from labkit.measure.topologies.network.mtu import MAX_BYTES, Mtus
from labkit.measure.topologies.network.parts import Cable, Network, Node, Tunnel
from labkit.measure.topologies.network.validate_addresses import check_unique
from labkit.system import netlink

SETTLE_S = 30.0  # for a slow machine; usually a second is enough
# No spanning tree, and a new port forwards at once.
PLAIN_BRIDGE = {"IFLA_BR_STP_STATE": 0, "IFLA_BR_FORWARD_DELAY": 0}


def check(network: Network) -> None:
    """Raise BadInput, with one sentence, for the first part of a network that cannot be built."""
    validate.check(network)


@contextmanager
def build(network: Network) -> Iterator[Topology]:
    """Build a network; it exists until the block ends.

    The ends of its pairs are containers, with the first address of each. Raises BadInput for an invalid description,
    Unsupported if this kernel lacks a kind of tunnel, LinkError for other refusals of the kernel, Failed if a bridge
    does not start to carry.
    """
    described, mtus = validate.check(network)
    with ExitStack() as stack:
        yield entered(stack, _build(described, mtus))


def usual(network: Network) -> dict[str, int]:
    """Return the MTU and the IP version of the first pair's client. Raises BadInput for what cannot be built."""
    described, mtus = validate.check(network)
    [client, *_] = described.interfaces_with_address(network.pairs[0][0])
    return {"mtu_bytes": mtus.of(client), "family": 4 if client.address is None else client.address.version}


def check_load(network: Network, pairs: int, mtu_bytes: int, family: int) -> None:
    """Raise BadInput unless the first `pairs` pairs of the network can be loaded with this MTU and IP version.

    A network has its own MTU and addresses, and only arms with equal ones are compared.
    """
    described, mtus = validate.check(network)
    if pairs > len(network.pairs):
        raise BadInput(
            f"pairs={pairs}: the network {network.name} names {counted(len(network.pairs), 'pair')}: use at most that"
            " many, or add more to its file"
        )
    ends = [name for pair in network.pairs[:pairs] for name in pair]
    check_unique(
        ends, lambda name: f"{name} is in two pairs of {network.name}: put each endpoint into one pair"
    )
    for name in ends:
        [end, *_] = described.interfaces_with_address(name)
        version = 4 if end.address is None else end.address.version
        for word, own, wanted in (("mtu_bytes", mtus.of(end), mtu_bytes), ("family", version, family)):
            if own != wanted:
                raise BadInput(
                    f"{word}={wanted}: in the network {network.name} {end} has {own}: use {word}={own}, or change its"
                    " file"
                )


def why_no_tags(network: Network) -> str | None:
    """Return why this network passes no frame with a VLAN tag, None if it does: only IP packets are routed."""
    described, _mtus = validate.check(network)
    for pair in network.pairs:
        client, server = (described.interfaces_with_address(name)[0].address for name in pair)
        if client is not None and server is not None and client.network != server.network:
            return f"{pair[0]} and {pair[1]} are in two subnets, and its routers have no interface in a VLAN"
    return None


@contextmanager
def arm(network: Network, spec: Spec) -> Iterator[Topology]:
    """Build a network as a topology to be measured, with the number of its pairs that `spec` has."""
    check_load(network, spec.pairs, spec.mtu_bytes, spec.family)
    with build(msgspec.structs.replace(network, pairs=network.pairs[: spec.pairs])) as topology:
        yield dataclasses.replace(topology, spec=spec)


@contextmanager
def overlay(name: str, spec: Spec) -> Iterator[Topology]:
    """Build the report's overlay, from cs1 to cs5: VXLAN in GRE between two leaves, over one of two spines.

    The containers have the requested MTU; the provider network has the MTU that this needs.
    """
    if spec.pairs != 1:
        raise BadInput(f"pairs={spec.pairs}: {name} has one pair, cs1 and cs5")
    if spec.family != 4:
        raise BadInput(f"family={spec.family}: {name} has IPv4 addresses only")
    fabric = spec.mtu_bytes + encapsulation.overhead_bytes("vxlan_gre")
    if fabric > MAX_BYTES:
        raise BadInput(
            f"mtu_bytes={spec.mtu_bytes} does not fit into {name}:"
            f" {encapsulation.arithmetic(MAX_BYTES, 'a veth', encapsulation.headers('vxlan_gre'))}"
        )
    network = leaf_spine_network(fabric_mtu_bytes=fabric, mtu_bytes=spec.mtu_bytes)
    with build(msgspec.structs.replace(network, pairs=network.pairs[:1])) as topology:
        yield dataclasses.replace(topology, spec=spec)


@contextmanager
def _build(described: NetworkIndex, mtus: Mtus) -> Iterator[Topology]:
    family = 6 if any(address.version == 6 for address in described.owner) else 4
    with namespaces(list(described.nodes), family=family) as made:
        under_construction = _Building(described, mtus, {space.name: space for space in made})
        for node in described.nodes.values():
            under_construction.node(node, family)
        under_construction.links()
        under_construction.tunnels()
        under_construction.routes()
        under_construction.settle()
        network = described.network
        pairs = [Pair(*map(under_construction.endpoint, pair)) for pair in network.pairs]
        client = under_construction.carrier(network.pairs[0][0])
        version = client.address.version if client.address is not None else family
        spec = Spec(pairs=len(pairs), mtu_bytes=mtus.of(client), family=version)
        yield Topology(network.name, spec, pairs, made)


class _Building:
    """The namespaces of a network under construction."""

    def __init__(self, described: NetworkIndex, mtus: Mtus, spaces: dict[str, Namespace]) -> None:
        self.described, self.mtus, self.spaces = described, mtus, spaces
        # Indexes are unique across namespaces: if both ends of a veth have the same index, the kernel takes it for
        # hardware and reports a lost carrier to routes up to a second late (linkwatch_urgent_event,
        # net/core/link_watch.c).
        self.index = {key: netlink.FIRST_INDEX + number for number, key in enumerate(described.interfaces)}

    def node(self, node: Node, family: int) -> None:
        """Create the sysctls and bridges of a namespace. Defaults for interfaces are set before there are any."""
        space = self.spaces[node.name]
        for which in ("all", "default"):
            # Return paths may differ (ECMP), so no reverse path filter; no redirects, because a capture would show
            # packets that the description does not predict.
            space.sysctl(f"ipv4/conf/{which}/rp_filter", 0)
            space.sysctl(f"ipv4/conf/{which}/send_redirects", 0)
            if node.ignores_linkdown:
                space.sysctl(f"ipv4/conf/{which}/ignore_routes_with_linkdown", 1)
        if node.forwards:
            space.sysctl("ipv4/ip_forward", 1)
            if family == 6:
                space.sysctl("ipv6/conf/all/forwarding", 1)
        bridges = [one for one in self._in(node.name) if one.kind == "bridge"]
        space.netlink.do(
            netlink.set_link(1),
            *(
                netlink.new_link("bridge", one.name, index=self._at(one), data=PLAIN_BRIDGE)
                for one in bridges
            ),
        )

    def links(self) -> None:
        """Create cables and bridge ports, and set addresses."""
        for part in self.described.network.parts:
            if isinstance(part, Cable):
                self._cable(part)
        for name, space in self.spaces.items():
            plain = [one for one in self._in(name) if not isinstance(one.part, Tunnel)]
            for one in plain:
                mtu_bytes = self.mtus.of(one) if one.kind == "bridge" else None
                space.netlink.do(netlink.set_link(self._at(one), mtu_bytes=mtu_bytes), *self._addresses(one))

    def _cable(self, cable: Cable) -> None:
        one, other = (self.described.interfaces[end.at, end.name] for end in (cable.one, cable.other))
        peer = {"name": other.name, "index": self._at(other), "netns": self.spaces[other.at].fd}
        kernel = self.spaces[one.at].netlink
        kernel.do(
            netlink.new_link(
                "veth", one.name, index=self._at(one), mtu_bytes=self.mtus.of(one), peer=peer, master=self._master(one)
            )
        )  # fmt: skip
        if other.master is not None:
            self.spaces[other.at].netlink.do(netlink.set_master(self._at(other), self._master(other) or 0))

    def tunnels(self) -> None:
        """Create tunnels, each after the interface that it is bound to."""
        waiting = list(self.described.tunnels)
        made: set[Key] = set()
        while waiting:
            ready = [one for one in waiting if self._lower(one) not in {other.key for other in waiting}]
            for one in ready or waiting:
                self._tunnel(one)
                made.add(one.key)
            waiting = [one for one in waiting if one.key not in made]

    def _lower(self, one: DescribedInterface) -> Key | None:
        return (one.at, one.part.link) if isinstance(one.part, Tunnel) and one.part.link else None

    def _tunnel(self, one: DescribedInterface) -> None:
        tunnel = one.part
        assert isinstance(tunnel, Tunnel)
        far, lower = remotes(tunnel), self._lower(one)
        data = netlink.tunnel_data(
            tunnel.kind,
            local=tunnel.local,
            remote=far[0] if len(far) == 1 else None,
            number=tunnel.id,
            port=port(tunnel),
            link=self.index[lower] if lower is not None else None,
            learning=tunnel.learning,
        )
        index = self._at(one)
        self.spaces[one.at].netlink.do(
            netlink.new_link(
                tunnel.kind, one.name, index=index, mtu_bytes=self.mtus.of(one), master=self._master(one), data=data
            ),
            *(netlink.new_remote(index, remote) for remote in far if len(far) > 1),
            *self._addresses(one),
        )  # fmt: skip

    def routes(self) -> None:
        """Add static routes."""
        for route in self.described.routes:
            hops = [self._hop(hop) for hop in self.described.hops(route)]
            message = netlink.new_route(route.to, hops, metric=route.metric, family=target(route).version)
            self.spaces[route.at].netlink.do(message)

    def settle(self) -> None:
        """Wait until all bridges with ports carry.

        The kernel reports carriers to bridges up to a second late, and packets sent before are lost
        (net/core/link_watch.c). A bridge carries when one port does, and both ends of all cables are up. Raises Failed
        after SETTLE_S.
        """
        ports = [one for one in self.described.interfaces.values() if one.master is not None]
        deadline = time.monotonic() + SETTLE_S
        for at in dict.fromkeys(one.at for one in ports):
            wanted = {self._master(one): one for one in ports if one.at == at}
            while silent := self._without_carrier(at) & wanted.keys():
                if time.monotonic() > deadline:
                    port = wanted[min(silent, key=str)]
                    raise Failed(
                        f"the bridge {port.master} ({at}) does not forward after {SETTLE_S:.0f} s, although its port"
                        f" {port.name} is up: build it again, on a less busy machine"
                    )
                time.sleep(0.01)

    def _without_carrier(self, at: str) -> set[int | None]:
        return {link.index for link in netlink.links(self.spaces[at].netlink) if not link.carrier}

    def _hop(self, hop: RouteChoice) -> tuple[int, str | None]:
        return self._at(hop.out), None if hop.via is None else str(hop.via)

    def endpoint(self, name: str) -> Endpoint:
        """Return a container as an end of a pair."""
        one = self.carrier(name)
        assert one.address is not None
        return Endpoint(name, self.spaces[name], one.name, self._at(one), str(one.address.ip))

    def carrier(self, name: str) -> DescribedInterface:
        """Return the interface of a container that carries the load: the first with an address."""
        return self.described.interfaces_with_address(name)[0]

    def _in(self, name: str) -> list[DescribedInterface]:
        return [one for one in self.described.interfaces.values() if one.at == name]

    def _at(self, one: DescribedInterface) -> int:
        return self.index[one.key]

    def _master(self, one: DescribedInterface) -> int | None:
        return None if one.master is None else self.index[one.at, one.master]

    def _addresses(self, one: DescribedInterface) -> list[netlink.Message]:
        return [] if one.address is None else [netlink.new_address(self._at(one), one.address)]
