"""What is told of a topology that stands: namespaces, interfaces, tunnels, routes; names in the place of numbers."""

from __future__ import annotations

import msgspec

from labkit.common import packets


class Place(msgspec.Struct, frozen=True):
    """An interface, by names."""

    namespace: str
    interface: str


class TunnelState(msgspec.Struct, frozen=True, kw_only=True):
    """What an interface encapsulates with: identifier (VNI, key), outer addresses, UDP port; and `peers`, the other
    ends: interfaces with the same identifier at the remotes, which send back to here, or all of the same multicast
    group."""

    id: int | None = None
    local: str | None = None
    remotes: list[str] = []
    port: int | None = None
    peers: list[Place] = []


class InterfaceState(msgspec.Struct, frozen=True, kw_only=True):
    """An interface. `kind` is the kernel's word, `loopback` or `nic`; `up` is what was asked for, `carrier` whether it
    can carry; `master` the bridge that it is a port of, `peer` the far end of a veth, `lower` the device that it is
    made on; `copies` the ports whose packets a mirror copies to it. An MTU or index of 0: the kernel knows no such
    interface, only the switch does."""

    name: str
    index: int
    kind: str
    mode: str | None = None
    up: bool
    carrier: bool
    mtu_bytes: int
    mac: str | None = None
    addresses: list[str] = []
    master: str | None = None
    peer: Place | None = None
    lower: Place | None = None
    tunnel: TunnelState | None = None
    copies: list[Place] = []


class NextHop(msgspec.Struct, frozen=True):
    """Where a route leads: out of an interface, to a gateway or None. `state`: `dead` where it is not taken, `linkdown`
    where the interface has no carrier; in the kernel's order, or None."""

    interface: str | None
    via: str | None = None
    state: str | None = None


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A route of the main table; several `hops` are of equal cost. `connected`: the kernel made it, of an address."""

    to: str
    hops: list[NextHop]
    source: str | None = None
    metric: int | None = None
    connected: bool = False


class Namespace(msgspec.Struct, frozen=True):
    """A network namespace."""

    name: str
    interfaces: list[InterfaceState]
    routes: list[Route]


class PairEnd(msgspec.Struct, frozen=True):
    """One end of a pair: its name, and the interface and the address that carry the load."""

    name: str
    namespace: str
    interface: str
    address: str


class State(msgspec.Struct, frozen=True):
    """A topology as it stands. `pairs` are client and server."""

    topology: str
    kernel: str
    pairs: list[tuple[PairEnd, PairEnd]]
    namespaces: list[Namespace]

    def ports(self) -> dict[int, str]:
        """The UDP ports of the tunnels that stand and what comes in by them, beside those that everybody knows."""
        links = (link for space in self.namespaces for link in space.interfaces)
        own = {link.tunnel.port: link.kind for link in links if link.tunnel and link.tunnel.port}
        return {**packets.PORTS, **own}

    def owners(self) -> dict[str, str]:
        """Namespaces by their addresses, where only one has it."""
        result: dict[str, set[str]] = {}
        for space in self.namespaces:
            for link in space.interfaces:
                for address in link.addresses:
                    result.setdefault(address.partition("/")[0], set()).add(space.name)
        return {address: min(names) for address, names in result.items() if len(names) == 1}
