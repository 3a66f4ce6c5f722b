"""What all topologies share: the request, the result, addresses, the plain parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_interface

from labkit import netlink
from labkit.endpoints import Endpoint, Namespace, Pair, namespaces

EDGE = netlink.FIRST_INDEX  # the index of eth0 in every endpoint
PORT = netlink.FIRST_INDEX + 10  # the first of the ports in the namespace between the endpoints
BETWEEN = "between"

Interface = IPv4Interface | IPv6Interface


@dataclass(frozen=True)
class Spec:
    """What a topology is asked for. `parent`: a NIC of the machine under macvlan and ipvlan, reached through
    `machine_netns`."""

    pairs: int = 1
    mtu_bytes: int = 1500
    family: int = 4
    parent: str | None = None
    machine_netns: int | None = None


@dataclass(frozen=True)
class Topology:
    """What was built: the pairs, and every namespace of it by name (to look around in)."""

    name: str
    spec: Spec
    pairs: list[Pair]
    namespaces: list[Namespace]


Builder = Callable[[str, Spec], AbstractContextManager[Topology]]


def address(family: int, side: int, number: int, prefix: int | None = None) -> Interface:
    """The address of client (side 1) or server (side 2) `number`: 10.1.0.1/8 …, fd00::1:1/64 …; with room for
    65,000 of each."""
    if family == 4:
        return ip_interface(
            f"10.{side}.{(number + 1) >> 8}.{(number + 1) & 255}/{8 if prefix is None else prefix}"
        )
    return ip_interface(f"fd00::{side}:{number + 1:x}/{64 if prefix is None else prefix}")


_OURS = os.urandom(2)


def mac(number: int, part: int = 0, ours: bytes = _OURS) -> str:
    """A locally administered MAC address: that of end `number` (part 0), or of another part that belongs to it."""
    return ":".join(f"{byte:02x}" for byte in (2, *ours, part, number >> 8, number & 255))


def names(pairs: int) -> list[str]:
    """client0 server0 client1 server1 …"""
    return [f"{side}{number}" for number in range(pairs) for side in ("client", "server")]


def sides(spec: Spec, spaces: list[Namespace]) -> Iterator[tuple[Namespace, Interface, int]]:
    """Each endpoint namespace with its address and the number that is its port's."""
    for number, space in enumerate(spaces):
        yield space, address(spec.family, 1 + number % 2, number // 2), number


def pairs_of(spec: Spec, spaces: list[Namespace], interface: str = "eth0", index: int = EDGE) -> list[Pair]:
    """The pairs of namespaces that stand client, server, client, server …"""
    ends = [Endpoint(space.name, space, interface, index, str(at.ip)) for space, at, _ in sides(spec, spaces)]
    return [Pair(client, server) for client, server in zip(ends[::2], ends[1::2], strict=True)]


@contextmanager
def ends_and_between(spec: Spec) -> Iterator[tuple[list[Namespace], Namespace]]:
    """Two namespaces for each pair and one between them all, loopback interfaces up."""
    with namespaces([*names(spec.pairs), BETWEEN], family=spec.family) as made:
        for space in made:
            space.netlink.do(netlink.set_link(1))
        yield made[:-1], made[-1]


def give_addresses(spec: Spec, spaces: list[Namespace], mac_of: Callable[[int], str] | None = mac) -> None:
    """Each endpoint's eth0 up, with its address, and with its partner as a permanent neighbour.

    `mac_of` tells the MAC address of end `number`; None leaves it to be asked for.
    """
    ends = list(sides(spec, spaces))
    for space, at, number in ends:
        messages = [netlink.set_link(EDGE), netlink.new_address(EDGE, at)]
        if mac_of is not None:
            partner = number ^ 1
            messages.append(netlink.new_neighbour(EDGE, str(ends[partner][1].ip), mac_of(partner)))
        space.netlink.do(*messages)
