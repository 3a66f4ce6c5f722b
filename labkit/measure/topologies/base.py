"""What all topologies share: the specification, the built topology, addresses, and common building blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import TYPE_CHECKING, Any

import msgspec

from labkit.measure.endpoints import Endpoint, Namespace, Pair, RemoteEnd, RemotePair
from labkit.system import netlink

if TYPE_CHECKING:
    from labkit.common.topology_state import InterfaceState, Step
    from labkit.measure.topologies.network.kinds import LinkKind
    from labkit.measure.topologies.network.parts import Redirect
    from labkit.measure.topologies.open_vswitch.switch import Switch

EDGE = netlink.FIRST_INDEX  # the index of eth0 in guests
MACHINE = "machine"  # the machine's own network namespace, which holds a NIC that is a parent
BETWEEN = "between"  # the name of the namespace between the endpoints
MONITOR = "monitor"  # the namespace where copies arrive: on this host, or a second host behind a tunnel

Interface = IPv4Interface | IPv6Interface
CLIENTS, SERVERS = 1, 2
_OURS = os.urandom(2)
Meter = Callable[[], Callable[[], dict[str, Any]]]


class Copies(msgspec.Struct, frozen=True):
    """Copies of mirrors that have arrived at a monitor.

    `count`: all of them. `of_mirrors`: those of each mirror; None: they are not told apart. `unread`: those that each
    reader did not take; None: nobody can know.
    """

    count: int
    of_mirrors: tuple[int, ...] | None = None
    unread: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class RemoteMonitor:
    """A second host that receives what leaves this one by a cable.

    `ask`: sends it a request and returns the answer. `parent`: this host's NIC at the cable; None: that of a lab VM.
    """

    ask: Callable[..., Any]
    parent: str | None

    def receive(self, switch: str, mtu_bytes: int) -> str:
        """Let the other host count and read the copies of this switch (the topology's name) that arrive at its NIC.

        Returns the NIC's MAC address.
        """
        return str(self.ask("monitor", switch=switch, mtu_bytes=mtu_bytes))

    def counts(self) -> Copies:
        """Return the copies that have arrived there."""
        return msgspec.convert(self.ask("copies"), Copies)

    def stop(self) -> None:
        """Let the other host end its readers and give its NIC back."""
        self.ask("clear")


@dataclass(frozen=True)
class Spec:
    """What to build.

    `parent`: the NIC of the machine under macvlan and ipvlan; `machine_netns` is a file descriptor of its namespace.

    `endpoint`: where the programs run: a namespace, a container or a guest; `guest` describes the guest (guest.parse).
    `guest_files`: Python files that programs in a guest need. `programs`: paths of programs, by the name of the one
    that each replaces at the ends and as the switch.

    `side`: build only the client ends (1) or the server ends (2), because the others are on another host. `ours`: two
    bytes that the MAC addresses of both sides share. `monitor`: where a topology sends what leaves the host.
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
    guest_files: tuple[str, ...] = ()
    monitor: RemoteMonitor | None = None
    programs: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Topology:
    """A built topology: its pairs of endpoints and all its namespaces (for inspection).

    `switch`: the Open vSwitch that joins the ends, if any. `meter`: reads counters of what joins the ends and returns
    a function; that function reads them again and returns the row columns for the time between. `doubts`: reasons to
    doubt every row of this topology. `redirects`: what its BPF programs redirect. `relays`: programs in BETWEEN that
    relay data, each between the interface whose packets it takes (`peer`) and its own (`lower`). `why_silent`: returns
    why its ends cannot reach each other, if it knows. `shown`: of an existing network, the interfaces on its path by
    namespace; None: all. `steps`: its path, forward and back. `at_end`: what has to be undone before the topology is
    removed.
    """

    name: str
    spec: Spec
    pairs: list[Pair]
    namespaces: list[Namespace]
    switch: Switch | None = None
    meter: Meter | None = None
    doubts: tuple[str, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    relays: Sequence[InterfaceState] = ()
    shown: Mapping[str, Collection[str]] | None = None
    steps: tuple[Sequence[Step], Sequence[Step]] = ((), ())
    why_silent: Callable[[], str] = lambda: ""
    at_end: ExitStack = field(default_factory=ExitStack, compare=False)

    @property
    def ends(self) -> list[Endpoint]:
        """All ends of its pairs: client, server, client, server …"""
        return [end for pair in self.pairs for end in (pair.client, pair.server)]


Builder = Callable[[str, Spec], AbstractContextManager[Topology]]
# Where packets are forwarded between containers (draft-ietf-bmwg-containerized-infra-08). ONE_HOST: they are not.
ONE_HOST, KERNEL_SPACE, USER_SPACE, EBPF, HARDWARE = NETWORKING_MODELS = (
    "one host's own traffic",
    "kernel space",
    "user space",
    "eBPF acceleration",
    "smart NIC acceleration",
)


@dataclass(frozen=True)
class BuiltSide:
    """One side of a topology across two hosts: its ends, and those of the other side as it knows them (`far`).

    `switch`, `meter` and `doubts` are those of a `Topology`. `begin`: starts what needs both sides, with the pairs.
    """

    ends: list[Endpoint]
    far: list[RemoteEnd]
    switch: Switch | None = None
    meter: Meter | None = None
    doubts: tuple[str, ...] = ()
    begin: Callable[[Sequence[RemotePair]], object] = lambda _pairs: None


SideBuilder = Callable[[str, Spec], AbstractContextManager[BuiltSide]]


@dataclass(frozen=True)
class TopologyKind:
    """An entry of the registry: how to build a topology, and what else it supports.

    `with_options`: returns the entry with the options behind the topology's name, and raises BadInput for invalid ones;
    None if it takes none. `check_load`: raises BadInput if the topology (its name) cannot carry this many pairs, MTU in
    bytes and IP version. `guests`: the builder for each kind of endpoint in guests (guest, shared_guest). `side`:
    builds one side of it across two hosts. `takes_parent`: whether it is built on a NIC. `why_no_tags`: returns the
    reason why the topology (its name) drops frames with a VLAN tag; None if it passes them. `isolated`: why no packet
    may pass, if it must isolate its ends. `copies_leave`: whether it sends copies of packets to another host.
    `shares_ends`: whether an end belongs to several pairs. `generators`: the only generators whose load takes the way
    that the topology is about; None: all. `links`: kinds of links that labkit lacks. `networking_model`: one of
    NETWORKING_MODELS.
    """

    build: Builder
    with_options: Callable[[str], TopologyKind] | None = None
    check_load: Callable[[str, int, int, int], object] = lambda _name, _pairs, _mtu_bytes, _family: None
    guests: Mapping[str, Builder] = field(default_factory=dict)
    side: SideBuilder | None = None
    takes_parent: bool = False
    why_no_tags: Callable[[str], str | None] = lambda _name: None
    isolated: str | None = None
    copies_leave: bool = False
    shares_ends: bool = False
    generators: tuple[str, ...] | None = None
    links: tuple[LinkKind, ...] = ()
    networking_model: str = KERNEL_SPACE


def address(family: int, side: int, number: int, prefix: int | None = None) -> Interface:
    """Return the address of client (side 1) or server (side 2) `number`: 10.1.0.1/8 …, fd00::1:1/64 ….

    There is room for 65,000 of each.
    """
    if family == 4:
        return ip_interface(
            f"10.{side}.{(number + 1) >> 8}.{(number + 1) & 255}/{8 if prefix is None else prefix}"
        )
    return ip_interface(f"fd00::{side}:{number + 1:x}/{64 if prefix is None else prefix}")


def subnet(spec: Spec, side: int, number: int) -> tuple[Interface, Interface]:
    """Return both addresses of a subnet of two (RFC 3021, RFC 6164) for client (side 1) or server (2) `number`: the
    router's, which is even, and the end's."""
    short = 31 if spec.family == 4 else 127
    router, own = (address(spec.family, side, 2 * number + which, short) for which in (1, 2))
    return router, own


def mac(number: int, part: int = 0, ours: bytes = _OURS) -> str:
    """Return a locally administered MAC address: of end `number` (part 0), or of another device that belongs to it."""
    return ":".join(f"{byte:02x}" for byte in (2, *ours, part, number >> 8, number & 255))


def nic_mac(spec: Spec, side: int) -> str:
    """Return the MAC address that labkit gives its own NIC of the clients' node (side 1) or the servers' (2)."""
    return mac(side, 4, spec.ours)


def numbers(spec: Spec) -> range:
    """Return the numbers of the ends: a client has an even number, its server the next one."""
    return range(2 * spec.pairs) if spec.side is None else range(spec.side - 1, 2 * spec.pairs, 2)


def end_name(number: int) -> str:
    return f"{('client', 'server')[number % 2]}{number // 2}"


def end_address(spec: Spec, number: int) -> Interface:
    """Return the address of end `number` in a topology where all ends are in one subnet."""
    return address(spec.family, 1 + number % 2, number // 2)


def paired(ends: list[Endpoint]) -> list[Pair]:
    """Return the pairs of these ends, which are in the order client, server, client, server …"""
    return [Pair(client, server) for client, server in zip(ends[::2], ends[1::2], strict=True)]


def remote_ends(spec: Spec) -> list[RemoteEnd]:
    """Return the ends of the other side of two hosts, as this one knows them."""
    partners = [number ^ 1 for number in numbers(spec)]
    return [RemoteEnd(end_name(number), str(end_address(spec, number).ip)) for number in partners]
