"""Build networks in the kernel: those of topologies, and those of one's own after a check of the whole description."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from types import MappingProxyType
from typing import TypeVar

import msgspec

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.common.extensions import on_call
from labkit.common.units import counted
from labkit.measure.endpoints import Endpoint, Namespace, Pair, namespaces
from labkit.measure.endpoints.namespace import SETTLE_S
from labkit.measure.topologies.base import BuiltSide, Spec, Topology, end_name, numbers, remote_ends
from labkit.measure.topologies.network import kinds, parts, validate
from labkit.measure.topologies.network.model import (
    DescribedInterface,
    Key,
    NetworkIndex,
    check_unique,
    target,
)
from labkit.measure.topologies.network.validate import MAX_BYTES, Mtus
from labkit.system import netlink

# What only some networks need
_NETWORK = "labkit.measure.topologies.network"
_encrypt, _rejection = on_call(f"{_NETWORK}.encryption:begin"), on_call(f"{_NETWORK}.encryption:rejection")
_redirect, _impair = on_call(f"{_NETWORK}.redirects:attach"), on_call(f"{_NETWORK}.impairments:apply")
_set = on_call(f"{_NETWORK}.settings:apply")
# No spanning tree, and a new port forwards at once.
PLAIN_BRIDGE = {"IFLA_BR_STP_STATE": 0, "IFLA_BR_FORWARD_DELAY": 0}
Describe = Callable[[str, Spec], parts.Network]
Built = TypeVar("Built")


@contextmanager
def build(network: parts.Network) -> Iterator[Topology]:
    """Build a network; it exists until the block ends.

    The ends of its pairs are containers, with the first address of each. Raises BadInput for an invalid description,
    Unsupported if this kernel lacks a kind of tunnel, LinkError for other refusals of the kernel, Failed if a bridge
    does not start to carry.
    """
    described, mtus = validate.check(network)
    own = usual(network)
    spec = Spec(len(network.pairs), own["mtu_bytes"], own["family"])
    # Return paths may differ (ECMP), so no reverse path filter; no redirects, because a capture would show packets that
    # the description does not predict. labkit's own datapaths have the machine's values, as what they stand for.
    sysctls = {"rp_filter": 0, "send_redirects": 0}
    with ExitStack() as stack:
        yield entered(stack, _built(described, mtus, spec, sysctls)).topology(network.name, spec)


def usual(network: parts.Network) -> dict[str, int]:
    """Return the MTU and the IP version of the first pair's client. Raises BadInput for what cannot be built."""
    described, mtus = validate.check(network)
    [client, *_] = described.interfaces_with_address(network.pairs[0][0])
    return {
        "mtu_bytes": mtus.of_packets(client),
        "family": 4 if client.address is None else client.address.version,
    }


def check_load(network: parts.Network, pairs: int, mtu_bytes: int, family: int) -> None:
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
        for word, own, wanted in (
            ("mtu_bytes", mtus.of_packets(end), mtu_bytes),
            ("family", version, family),
        ):
            if own != wanted:
                raise BadInput(
                    f"{word}={wanted}: in the network {network.name} {end} has {own}: use {word}={own}, or change its"
                    " file"
                )


def why_no_tags(network: parts.Network) -> str | None:
    """Return why this network passes no frame with a VLAN tag, None if it does: only IP packets are routed."""
    described, _mtus = validate.check(network)
    for pair in network.pairs:
        client, server = (described.interfaces_with_address(name)[0].address for name in pair)
        if client is not None and server is not None and client.network != server.network:
            return f"{pair[0]} and {pair[1]} are in two subnets, and its routers have no interface in a VLAN"
    return None


def takes_frames(network: parts.Network) -> bool:
    """Return whether frames that a generator gives to the interfaces of the ends take the described way.

    They pass by ESP in transport mode, and the queueing discipline of an impairment, at these interfaces.
    """
    described, _mtus = validate.check(network)
    passed = {key for part in described.esp for key in (part.one, part.other)}
    passed |= {(one.at, one.interface) for one in described.impairments}
    ends = {name for pair in network.pairs for name in pair}
    return not any(described.interfaces_with_address(name)[0].key in passed for name in ends)


@contextmanager
def arm(network: parts.Network, spec: Spec) -> Iterator[Topology]:
    """Build a network as a topology to be measured, with the number of its pairs that `spec` has."""
    check_load(network, spec.pairs, spec.mtu_bytes, spec.family)
    with build(msgspec.structs.replace(network, pairs=network.pairs[: spec.pairs])) as topology:
        yield dataclasses.replace(topology, spec=spec)


def check_overlay(name: str, pairs: int, mtu_bytes: int, family: int) -> None:
    """Raise BadInput for what the report's overlay cannot have or carry."""
    if pairs != 1:
        raise BadInput(f"pairs={pairs}: {name} has one pair, cs1 and cs5: use pairs=1")
    if family != 4:
        raise BadInput(f"family={family}: {name} has IPv4 addresses only")
    if mtu_bytes + kinds.overhead_bytes("gre", "vxlan") > MAX_BYTES:
        raise BadInput(
            f"mtu_bytes={mtu_bytes} does not fit into {name}:"
            f" {kinds.arithmetic(MAX_BYTES, 'a veth', kinds.headers('gre', 'vxlan'))}"
        )


@contextmanager
def overlay(_name: str, spec: Spec) -> Iterator[Topology]:
    """Build the report's overlay, from cs1 to cs5: VXLAN in GRE between two leaves, over one of two spines.

    The containers have the requested MTU; the provider network has the MTU that this needs.
    """
    fabric = spec.mtu_bytes + kinds.overhead_bytes("gre", "vxlan")
    from labkit.measure.topologies.network.leaf_spine_overlay import leaf_spine_network  # no other needs it

    network = leaf_spine_network(fabric_mtu_bytes=fabric, mtu_bytes=spec.mtu_bytes)
    with build(msgspec.structs.replace(network, pairs=network.pairs[:1])) as topology:
        yield dataclasses.replace(topology, spec=spec)


def entered(stack: ExitStack, builder: contextlib.AbstractContextManager[Built]) -> Built:
    """Enter a builder and return what it builds. Raises Unsupported if this kernel lacks a link kind that it needs."""
    try:
        return stack.enter_context(builder)
    except netlink.LinkError as error:
        if error.unknown is None:
            raise
        raise Unsupported(
            f"this kernel has no {error.unknown} (CONFIG_{kinds.option(error.unknown)} is not set and no module was"
            f" found): {kinds.remedy(error.unknown)}"
        ) from None


def described(describe: Describe) -> Callable[[str, Spec], contextlib.AbstractContextManager[Topology]]:
    """Return the builder of a topology from the function that describes it."""

    @contextmanager
    def build_described(name: str, spec: Spec) -> Iterator[Topology]:
        with joined(describe(name, spec), spec) as network:
            yield network.topology(name, spec)

    return build_described


@contextmanager
def joined(network: parts.Network, spec: Spec) -> Iterator[BuiltNetwork]:
    """Build a network that labkit itself describes; it exists until the block ends."""
    index = NetworkIndex(network)
    with _built(index, Mtus(index), spec) as result:
        yield result


@contextmanager
def one_side(describe: Describe, name: str, spec: Spec) -> Iterator[BuiltSide]:
    """Build the ends of one side of a topology, which a cable between NICs joins with those of another host."""
    with joined(describe(name, spec), spec) as network:
        yield BuiltSide([network.endpoint(end_name(number)) for number in numbers(spec)], remote_ends(spec))


@contextmanager
def _built(
    index: NetworkIndex, mtus: Mtus, spec: Spec, sysctls: Mapping[str, int] = MappingProxyType({})
) -> Iterator[BuiltNetwork]:
    """Build a network. sysctls: those of all interfaces of routers and of ends with several addresses."""
    family = 6 if spec.family == 6 or any(address.version == 6 for address in index.owner) else 4
    with namespaces(list(index.nodes), family=family) as spaces, ExitStack() as stack:
        result = BuiltNetwork(index, mtus, spaces)
        for node in index.nodes.values():
            result.make_node(node, family, sysctls)
        for part in index.network.parts:
            if isinstance(part, parts.Nic):
                result.borrow(part, spec, stack)
        result.make_cables()
        result.make_uppers(stack)
        if index.is_encrypted:  # ESP, which needs no device, before there is a packet
            _encrypt(index, result.index, result.space, False)
        result.configure()
        if index.is_encrypted:
            _encrypt(index, result.index, result.space, True)
        if index.redirects:
            _redirect(index, result.index, result.space, stack)
        if index.impairments:
            _impair(index, mtus, result.space)
        if index.has_settings:
            _set(index, result.space)
        result.settle()
        yield result


class BuiltNetwork:
    """A network in the kernel. `spaces`: its namespaces, in the order of the nodes. `index`: of each interface."""

    def __init__(self, described: NetworkIndex, mtus: Mtus, spaces: list[Namespace]) -> None:
        self.described, self.mtus, self.spaces = described, mtus, spaces
        self.space = {space.name: space for space in spaces}
        # Indexes are unique across namespaces: if both ends of a veth have the same index, the kernel takes it for
        # hardware and reports a lost carrier to routes up to a second late (linkwatch_urgent_event,
        # net/core/link_watch.c).
        self.index = {key: netlink.FIRST_INDEX + number for number, key in enumerate(described.interfaces)}
        # Where a lower device is: a NIC of the machine stays in its own namespace.
        self._kernel = {one.key: self.space[one.at].netlink for one in described.interfaces.values()}

    def make_node(self, node: parts.Node, family: int, sysctls: Mapping[str, int]) -> None:
        """Set the sysctls of a namespace, and create its bridges. Defaults for interfaces are set before there are
        any."""
        space = self.space[node.name]
        addresses = self.described.interfaces_with_address(node.name)
        for which in ("all", "default") if node.forwards or len(addresses) > 1 else ():
            for setting, value in sysctls.items():
                space.sysctl(f"ipv4/conf/{which}/{setting}", value)
        for which in ("all", "default") if node.ignores_linkdown else ():
            for version in ("ipv4", "ipv6") if family == 6 else ("ipv4",):
                space.sysctl(f"{version}/conf/{which}/ignore_routes_with_linkdown", 1)
        if node.forwards:
            space.sysctl("ipv4/ip_forward", 1)
            if family == 6:
                space.sysctl("ipv6/conf/all/forwarding", 1)
        bridges = [
            (one, one.part) for one in self.described.of_node[node.name] if isinstance(one.part, parts.Bridge)
        ]
        space.netlink.do(
            netlink.set_link(1),
            *(
                netlink.new_link("bridge", one.name, index=self._at(one), mac=bridge.mac, data=PLAIN_BRIDGE)
                for one, bridge in bridges
            ),
        )

    def borrow(self, nic: parts.Nic, spec: Spec, stack: ExitStack) -> None:
        """Borrow a NIC of the machine until the network is gone."""
        from labkit.measure.topologies.physical_nic import borrowed_nic  # what only such a network needs

        key, space = (nic.at, nic.name), self.space[nic.at]
        borrowed = borrowed_nic(spec, space, moved=nic.moves, index=self.index[key])
        self._kernel[key], self.index[key] = stack.enter_context(borrowed)
        if nic.master is not None:
            space.netlink.do(netlink.set_master(self.index[key], self.index[nic.at, nic.master]))

    def make_cables(self) -> None:
        """Create the interfaces that have a peer, and make them bridge ports."""
        messages: dict[str, list[netlink.Message]] = {}
        programmed = {(each.at, each.interface) for each in self.described.redirects if each.hook == "netkit"}
        for cable in (part for part in self.described.network.parts if isinstance(part, parts.Cable)):
            one, other = (self.described.interfaces[end.at, end.name] for end in (cable.one, cable.other))
            far = {
                "name": other.name, "index": self._at(other), "netns": self.space[other.at].fd, "mac": cable.other.mac,
            }  # fmt: skip
            kind = kinds.KINDS[cable.kind]
            data = kind.cable_data(cable.mode, [end.key in programmed for end in (one, other)])
            message = netlink.new_link(
                cable.kind, one.name, index=self._at(one), mtu_bytes=self.mtus.of(one), mac=cable.one.mac,
                master=self._master(one), peer=far, peer_attribute=kind.peer_attribute, data=data,
            )  # fmt: skip
            messages.setdefault(one.at, []).append(message)
        self._do(messages)

    def make_uppers(self, stack: ExitStack) -> None:
        """Create the devices on a lower device, from the lower device's namespace."""
        count: dict[Key, int] = {}
        for one in self.described.interfaces.values():
            part = one.part
            if not isinstance(part, parts.UpperDevice):
                continue
            kind = kinds.KINDS[part.kind]
            message = netlink.new_link(
                part.kind, part.name, index=self._at(one), netns=self.space[part.at].fd,
                link=self.index[part.lower], mtu_bytes=self.mtus.of(one), mac=part.mac,
                data={kind.mode_attribute: kind.modes[part.mode]},
            )  # fmt: skip
            number = count[part.lower] = count.get(part.lower, -1) + 1
            try:
                self._kernel[part.lower].do(message)
            except netlink.LinkError as error:
                raise kind.meaning(error, part.mode, number) from None
            if isinstance(self.described.interfaces[part.lower].part, parts.Nic):
                # The kernel deletes the devices of a closed namespace with a delay, and the NIC is not free for
                # another mode until then. So labkit deletes them here.
                stack.callback(self._delete, one)

    def _delete(self, one: DescribedInterface) -> None:
        with contextlib.suppress(netlink.LinkError):
            self.space[one.at].netlink.do(netlink.delete_link(self._at(one)))

    def configure(self) -> None:
        """Set interfaces up, create tunnels, and add addresses, neighbours and routes."""
        messages: dict[str, list[netlink.Message]] = {name: [] for name in self.space}
        for one in self.described.interfaces.values():
            part, own = one.part, messages[one.at]
            is_peer = isinstance(part, parts.Cable) and one.key == (part.other.at, part.other.name)
            if is_peer and one.master is not None:
                own.append(netlink.set_master(self._at(one), self._master(one) or 0))
            if is_peer or isinstance(part, parts.Bridge):
                # A peer is down: veth_open fails before both ends exist.
                own.append(netlink.set_link(self._at(one), mtu_bytes=self.mtus.of(one)))
            if isinstance(part, parts.Cable) and (part.other if is_peer else part.one).hairpin:
                own.append(netlink.set_link(self._at(one), hairpin=True))
            if not isinstance(part, parts.Tunnel):
                own += self._addresses(one)
        for one in self._tunnels_in_order():
            messages[one.at] += self._tunnel(one)
        for entry in (part for part in self.described.network.parts if isinstance(part, parts.Neighbour)):
            index = self.index[entry.at, entry.out]
            messages[entry.at].append(netlink.new_neighbour(index, entry.address, entry.mac))
        for route in self.described.routes:
            hops = [
                (self._at(hop.out), None if hop.via is None else str(hop.via))
                for hop in self.described.hops(route)
            ]
            onlink = any(
                self.described.connected(route.at, ip_address(one)) is None for one in route.gateways
            )
            out = self.described.interfaces.get((route.at, route.out or ""))
            message = netlink.new_route(
                route.to,
                hops,
                metric=route.metric,
                limits=route.limits,
                onlink=onlink,
                family=target(route).version,
                source=route.source,
                replaces=not route.gateways
                and bool(out and out.address and out.address.network == target(route)),
            )
            messages[route.at].append(message)
        self._do(messages)

    def _do(self, messages: dict[str, list[netlink.Message]]) -> None:
        for name, own in messages.items():
            self.space[name].netlink.do(*own)

    def _tunnels_in_order(self) -> list[DescribedInterface]:
        """Return the tunnels, each after the interface that it is bound to."""
        result: list[DescribedInterface] = []
        waiting = list(self.described.tunnels)
        while waiting:
            keys = {one.key for one in waiting}
            ready = [one for one in waiting if self._lower(one) not in keys] or waiting
            result += ready
            waiting = [one for one in waiting if one not in ready]
        return result

    def _lower(self, one: DescribedInterface) -> Key | None:
        return (one.at, one.part.link) if isinstance(one.part, parts.Tunnel) and one.part.link else None

    def _tunnel(self, one: DescribedInterface) -> list[netlink.Message]:
        tunnel, lower, index = one.part, self._lower(one), self._at(one)
        assert isinstance(tunnel, parts.Tunnel)
        kind = kinds.KINDS[tunnel.kind]
        data = kind.tunnel_attributes(tunnel, None if lower is None else self.index[lower])
        on_lower = None if lower is None or kind.outer else self.index[lower]
        return [
            netlink.new_link(
                tunnel.kind, one.name, index=index, mtu_bytes=self.mtus.of(one), mac=tunnel.mac,
                link=on_lower, master=self._master(one), data=data,
            ),
            # macsec_newlink sets its own MTU (drivers/net/macsec.c)
            *([netlink.set_link(index, mtu_bytes=self.mtus.of(one))] if on_lower is not None else []),
            *(netlink.new_remote(index, remote) for remote in tunnel.remotes if len(tunnel.remotes) > 1),
            *([netlink.new_qdisc(index, tunnel.qdisc)] if tunnel.qdisc is not None else []),
            *self._addresses(one),
        ]  # fmt: skip

    def why_silent(self) -> str:
        """Return why ends cannot reach each other, if encryption is the reason."""
        is_encrypted = self.described.is_encrypted
        return str(_rejection(self.described, self.index, self.space)) if is_encrypted else ""

    def settle(self) -> None:
        """Wait until every interface is operational, and every namespace takes packets for its addresses.

        The kernel reports carriers to bridges, queueing disciplines and IPv6 up to a second late
        (net/core/link_watch.c). Packets sent before are lost: over a macvlan, 22 of 100 first TCP connections took a
        second. NICs of the machine, and what is on them, may have no carrier. Raises Failed after SETTLE_S.
        """
        ports = {(one.at, one.master) for one in self.described.interfaces.values()}
        deadline = time.monotonic() + SETTLE_S
        for at, space in self.space.items():
            settling = [one for one in self.described.of_node[at] if self._settles(one, ports)]
            for one in settling:
                # Until their first carrier is reported, these are in state unknown. Tunnels in IP are for ever.
                is_late = isinstance(one.part, parts.Cable | parts.Bridge) or not kinds.KINDS[one.kind].outer
                ready = ("up",) if is_late else ("up", "unknown")
                while netlink.operstate(space.netlink, self._at(one)) not in ready:
                    if time.monotonic() > deadline:
                        raise Failed(
                            f"{one} carries nothing after {SETTLE_S:.0f} s, although it is up: build it again, on a"
                            " less busy machine"
                        )
                    time.sleep(0.002)
            space.wait_for_addresses([one.address.ip for one in settling if one.address is not None])

    def _settles(self, one: DescribedInterface, ports: set[tuple[str, str | None]]) -> bool:
        part = one.part
        if isinstance(part, parts.Bridge):  # it carries when one port does
            return one.key in ports
        lower = self.described.interfaces[part.lower].part if isinstance(part, parts.UpperDevice) else part
        return not isinstance(lower, parts.Nic)

    def topology(self, name: str, spec: Spec) -> Topology:
        """Return the network as a topology whose ends are those of its pairs."""
        pairs = [Pair(*map(self.endpoint, pair)) for pair in self.described.network.pairs]
        redirects = tuple(self.described.redirects)
        return Topology(name, spec, pairs, self.spaces, redirects=redirects, why_silent=self.why_silent)

    def endpoint(self, name: str) -> Endpoint:
        """Return a container as an end of a pair: its first interface with an address carries the load."""
        [one, *_] = self.described.interfaces_with_address(name)
        assert one.address is not None
        end = Endpoint(name, self.space[name], one.name, self._at(one), str(one.address.ip))
        return dataclasses.replace(end, more_header_bytes=self.mtus.of(one) - self.mtus.of_packets(one))

    def _at(self, one: DescribedInterface) -> int:
        return self.index[one.key]

    def _master(self, one: DescribedInterface) -> int | None:
        return None if one.master is None else self.index[one.at, one.master]

    def _addresses(self, one: DescribedInterface) -> list[netlink.Message]:
        return [] if one.address is None else [netlink.new_address(self._at(one), one.address)]
