"""What all topologies share: the request, the result, addresses, the plain parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import TYPE_CHECKING, Any, TypeVar

from labkit.common.errors import Unsupported
from labkit.measure.endpoints import Endpoint, Namespace, Pair, namespaces
from labkit.system import netlink

if TYPE_CHECKING:
    from labkit.measure.topologies.open_vswitch.switch import Switch

EDGE = netlink.FIRST_INDEX  # the index of eth0 in every endpoint
PORT = netlink.FIRST_INDEX + 10  # the first of the ports in the namespace between the endpoints
BETWEEN = "between"

Interface = IPv4Interface | IPv6Interface
CLIENTS, SERVERS = 1, 2
T = TypeVar("T")
# The kernel's options for kinds of links that are not called like them.
OPTIONS = {"gre": "NET_IPGRE", "gretap": "NET_IPGRE", "ipip": "NET_IPIP"}
_OURS = os.urandom(2)
Meter = Callable[[], Callable[[], dict[str, Any]]]


@dataclass(frozen=True)
class Spec:
    """What a topology is asked for. `parent`: a NIC of the machine under macvlan and ipvlan, reached through
    `machine_netns`.

    `endpoint`: what programs run in, a namespace, a container or a guest; `guest` is what the latter is (guest.parse).

    `side`: only the clients' ends (1) or the servers' (2) are built, the others are on another host; `ours` then is
    what the MAC addresses of both sides have in common.
    """

    pairs: int = 1
    mtu_bytes: int = 1500
    family: int = 4
    parent: str | None = None
    machine_netns: int | None = None
    side: int | None = None
    ours: bytes = _OURS
    delay_s: float | None = None
    endpoint: str = "namespace"
    guest: str = "debian"


@dataclass(frozen=True)
class Topology:
    """What was built: the pairs, and every namespace of it by name (to look around in).

    `switch`: an Open vSwitch that joins the ends. `meter`: it reads counters of what joins them; what it returns reads
    them again, and gives columns of a row for the time between. `doubts`: what is to be doubted of every row of it.
    """

    name: str
    spec: Spec
    pairs: list[Pair]
    namespaces: list[Namespace]
    switch: Switch | None = None
    meter: Meter | None = None
    doubts: tuple[str, ...] = ()


Builder = Callable[[str, Spec], AbstractContextManager[Topology]]


def address(family: int, side: int, number: int, prefix: int | None = None) -> Interface:
    """The address of client (side 1) or server (side 2) `number`: 10.1.0.1/8 …, fd00::1:1/64 …; with room for
    65,000 of each."""
    if family == 4:
        return ip_interface(
            f"10.{side}.{(number + 1) >> 8}.{(number + 1) & 255}/{8 if prefix is None else prefix}"
        )
    return ip_interface(f"fd00::{side}:{number + 1:x}/{64 if prefix is None else prefix}")


def mac(number: int, part: int = 0, ours: bytes = _OURS) -> str:
    """A locally administered MAC address: that of end `number` (part 0), or of another part that belongs to it."""
    return ":".join(f"{byte:02x}" for byte in (2, *ours, part, number >> 8, number & 255))


def numbers(spec: Spec) -> range:
    """The numbers of the ends: even ones are clients, the next number is its server."""
    return range(2 * spec.pairs) if spec.side is None else range(spec.side - 1, 2 * spec.pairs, 2)


def names(spec: Spec) -> list[str]:
    """client0 server0 client1 server1 …"""
    return [end_name(number) for number in numbers(spec)]


def end_name(number: int) -> str:
    """The name of end `number`."""
    return f"{('client', 'server')[number % 2]}{number // 2}"


def end_address(spec: Spec, number: int) -> Interface:
    """The address of end `number`, where all are in one subnet."""
    return address(spec.family, 1 + number % 2, number // 2)


def endpoint_addresses(spec: Spec, spaces: list[Namespace]) -> Iterator[tuple[Namespace, Interface, int]]:
    """Each endpoint namespace with its address and the number that is its port's."""
    for number, space in zip(numbers(spec), spaces, strict=True):
        yield space, end_address(spec, number), number


def pairs_of(spec: Spec, spaces: list[Namespace], interface: str = "eth0", index: int = EDGE) -> list[Pair]:
    """The pairs of namespaces that stand client, server, client, server …"""
    ends = ends_of(spec, spaces, interface, index)
    return [Pair(client, server) for client, server in zip(ends[::2], ends[1::2], strict=True)]


def ends_of(
    spec: Spec, spaces: list[Namespace], interface: str = "eth0", index: int = EDGE
) -> list[Endpoint]:
    """The ends that these namespaces are."""
    return [
        Endpoint(space.name, space, interface, index, str(at.ip))
        for space, at, _ in endpoint_addresses(spec, spaces)
    ]


@contextmanager
def ends_and_between(spec: Spec) -> Iterator[tuple[list[Namespace], Namespace]]:
    """A namespace for each end and one between them all, loopback interfaces up."""
    with namespaces([*names(spec), BETWEEN], family=spec.family) as made:
        for space in made:
            space.netlink.do(netlink.set_link(1))
        yield made[:-1], made[-1]


def give_addresses(spec: Spec, spaces: list[Namespace], mac_of: Callable[[int], str] | None = mac) -> None:
    """Each endpoint's eth0 up, with its address, and with its partner as a permanent neighbour.

    `mac_of` tells the MAC address of end `number`; None leaves it to be asked for.
    """
    for space, at, number in endpoint_addresses(spec, spaces):
        messages = [netlink.set_link(EDGE), netlink.new_address(EDGE, at)]
        if mac_of is not None:
            partner = number ^ 1
            neighbour = str(end_address(spec, partner).ip)
            messages.append(netlink.new_neighbour(EDGE, neighbour, mac_of(partner)))
        space.netlink.do(*messages)


def entered(stack: ExitStack, builder: AbstractContextManager[T]) -> T:
    """What a builder builds. Raises Unsupported where this kernel lacks a kind of link that it needs."""
    try:
        return stack.enter_context(builder)
    except netlink.LinkError as error:
        if error.unknown is None:
            raise
        option = OPTIONS.get(error.unknown, error.unknown.upper())
        raise Unsupported(
            f"this kernel has no {error.unknown} (CONFIG_{option} is not set and no module was found):"
            " use a kernel that has it (where=vm:debian boots one in a lab VM)"
        ) from None
