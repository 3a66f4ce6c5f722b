"""Write an existing network as a network of parts, which can be built again, and say what the copy lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_interface

import msgspec

from labkit.common.errors import BadInput
from labkit.common.topology_state import InterfaceState, State
from labkit.common.topology_state import Namespace as NamespaceState
from labkit.measure import topologies
from labkit.measure.existing.network import ExistingNetwork
from labkit.measure.topologies import Network
from labkit.measure.topologies.network.kinds import cables, tunnels, uppers
from labkit.measure.topologies.network.parts import (
    Bridge,
    Cable,
    CableEnd,
    Node,
    Part,
    Route,
    Tunnel,
    UpperDevice,
)

OUTSIDE = "outside"  # the node at the far end of a NIC, whose real one is not on this machine
LONGEST_NAME = 15
# Offloads that are usually off at a veth; the others are on.
USUALLY_OFF = ("generic-receive-offload", "large-receive-offload", "ntuple-filters", "receive-hashing")
FORWARDING = ("/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding")
SHORT = {
    "tx-checksumming": "tx", "rx-checksumming": "rx", "tcp-segmentation-offload": "tso",
    "generic-segmentation-offload": "gso", "generic-receive-offload": "gro", "scatter-gather": "sg",
}  # fmt: skip


def cloned(path: ExistingNetwork, name: str) -> tuple[Network, list[str]]:
    """Return a network like an existing one, and a sentence about each thing that it lacks.

    Raises BadInput if labkit cannot build such a network.
    """
    copy = _Copy(path.state)
    pair = path.pair
    forwarding = {
        space.name: space.read(FORWARDING[":" in pair.server.address]) for space in path.topology.namespaces
    }
    parts = copy.parts({at for at, value in forwarding.items() if value.strip() == "1"})
    ends = (copy.nodes[pair.client.namespace.name], copy.nodes[pair.server.namespace.name])
    mtu_bytes = next(one.mtu_bytes for one in copy.interfaces.values() if one.addresses)
    network = Network(name, tuple(parts), (ends,), mtu_bytes)
    try:
        topologies.check_network(network)
    except BadInput as error:  # the real one may lose packets, because what its tunnels carry does not fit
        fitting = [
            msgspec.structs.replace(one, mtu_bytes=None) if isinstance(one, Tunnel) else one for one in parts
        ]
        network = msgspec.structs.replace(network, parts=tuple(fitting))
        topologies.check_network(network)
        copy.lacks.append(f"the MTU of its tunnels, because labkit builds only what fits: {error}")
    return network, list(dict.fromkeys(copy.lacks))


class _Copy:
    """The parts of a network, by the state of the existing one.

    `nodes`: the names of the copy's nodes by those of namespaces. `lacks`: what has no part.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.lacks: list[str] = []
        self.nodes: dict[str, str] = {}
        for space in state.namespaces:
            short = re.sub(r"[^A-Za-z0-9_.-]", "", re.sub(r"^(container|netns):", "", space.name))[
                :LONGEST_NAME
            ]
            taken = self.nodes.values()
            self.nodes[space.name] = short if short not in taken else f"{short[:12]}-{len(self.nodes)}"
        self.interfaces = {
            (space.name, one.name): one for space in state.namespaces for one in space.interfaces
        }

    def parts(self, forwarding: set[str]) -> list[Part]:
        """Return all parts: nodes first, then interfaces in the order in which they can be made, then routes."""
        ends = {end.namespace for pair in self._state.pairs for end in pair}
        result: list[Part] = [
            Node(node, container=name in ends, forwards=name in forwarding and name not in ends)
            for name, node in self.nodes.items()
        ]
        if any(self._is_nic(one) for one in self.interfaces.values()):
            result.append(Node(OUTSIDE))
        of_kind: dict[int, list[Part]] = {}
        for space in self._state.namespaces:
            for one in space.interfaces:
                order, part = self._interface(space, one)
                of_kind.setdefault(order, []).extend([] if part is None else [part])
                self._note(space, one)
        result += [part for order in sorted(of_kind) for part in of_kind[order]]
        for space in self._state.namespaces:
            result += self._routes(space)
            if space.rules:
                self.lacks.append(
                    f"{len(space.rules)} chains and tables of rules at {self.nodes[space.name]}: save them from"
                    f" {space.name} with nft list ruleset, and add them as change='rules: nftables FILE at"
                    f" {self.nodes[space.name]}'"
                )
        return result

    def _is_nic(self, one: InterfaceState) -> bool:
        return one.kind in ("nic", "dummy") or (one.kind in cables() and not self._is_shown(one))

    def _is_shown(self, one: InterfaceState) -> bool:
        return one.peer is not None and (one.peer.namespace, one.peer.interface) in self.interfaces

    def _interface(self, space: NamespaceState, one: InterfaceState) -> tuple[int, Part | None]:
        """Return the part of an interface, and its place in the order. A cable is that of its first end."""
        at, here = self.nodes[space.name], (space.name, one.name)
        if one.kind == "bridge":
            return 0, Bridge(at, one.name, self._address(space, one), one.mac)
        if self._is_nic(one):
            far = CableEnd(OUTSIDE, f"far{len(self.lacks)}")
            self.lacks.append(
                f"what is behind {one.name} of {space.name}, which is a cable to {OUTSIDE} in the copy"
            )
            return 1, Cable(self._end(space, one), far, one.mtu_bytes)
        if one.kind in cables() and one.peer is not None:
            there = (one.peer.namespace, one.peer.interface)
            if list(self.interfaces).index(there) < list(self.interfaces).index(here):
                return 1, None
            far_space = next(each for each in self._state.namespaces if each.name == there[0])
            far_end = self.interfaces[there]
            if one.mtu_bytes != far_end.mtu_bytes:
                self.lacks.append(f"the larger MTU of one end of the cable from {one.name} of {space.name}")
            mtu_bytes = min(one.mtu_bytes, far_end.mtu_bytes)
            return 1, Cable(self._end(space, one), self._end(far_space, far_end), mtu_bytes, one.kind)
        if one.kind in uppers() and one.lower is not None and one.mode is not None:
            lower = (self.nodes.get(one.lower.namespace, OUTSIDE), one.lower.interface)
            mac = one.mac if one.kind != "ipvlan" else None
            return 2, UpperDevice(
                one.kind, at, one.name, lower, str(one.mode), self._address(space, one), mac
            )
        if one.kind in tunnels() and one.tunnel is not None and one.tunnel.remotes:
            own, remotes = one.tunnel, one.tunnel.remotes
            return 3, Tunnel(
                one.kind, at, one.name, remotes[0] if len(remotes) == 1 else tuple(remotes), own.local, own.id,
                own.port, address=self._address(space, one), master=one.master, mtu_bytes=one.mtu_bytes,
            )  # fmt: skip
        self.lacks.append(f"{one.name} of {space.name}, because labkit builds no {one.kind} of this form")
        return 4, None

    def _end(self, space: NamespaceState, one: InterfaceState) -> CableEnd:
        return CableEnd(self.nodes[space.name], one.name, self._address(space, one), one.master, one.mac)

    def _address(self, space: NamespaceState, one: InterfaceState) -> str | None:
        usable = [each for each in one.addresses if not ip_interface(each).is_link_local]
        family = 6 if ":" in self._state.pairs[0][1].address else 4
        alike = [each for each in usable if ip_interface(each).version == family]
        if others := [each for each in usable if each not in alike[:1]]:
            self.lacks.append(f"further addresses of {one.name} of {space.name}: {', '.join(others)}")
        return alike[0] if alike else None

    def _routes(self, space: NamespaceState) -> Iterator[Route]:
        family = 6 if ":" in self._state.pairs[0][1].address else 4
        for route in space.routes:
            vias = tuple(hop.via for hop in route.hops if hop.via is not None)
            version = ip_interface((*vias, route.to)[0].replace("default", "::")).version
            if not route.connected and version == family:
                out = None if vias else route.hops[0].interface
                yield Route(
                    self.nodes[space.name], route.to, vias[0] if len(vias) == 1 else vias, out, route.metric
                )

    def _note(self, space: NamespaceState, one: InterfaceState) -> None:
        """Say which settings of an interface the copy lacks, with the change that makes them, where there is one."""
        at = f"{self.nodes[space.name]}:{one.name}"
        if one.qdisc not in (None, "noqueue", "noop"):
            self.lacks.append(f"the qdisc {one.qdisc} of {at}: tc qdisc show has its options")
        if one.kind in cables():
            for name, on in one.offloads.items():
                if name in SHORT and on == (name in USUALLY_OFF):
                    value = f"{SHORT[name]} {'on' if on else 'off'}"
                    self.lacks.append(
                        f"{name} {'on' if on else 'off'} at {at}: change='{SHORT[name]}: offload {value} at {at}'"
                    )
