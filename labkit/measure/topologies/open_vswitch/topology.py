"""The topologies `ovs`, `ovs_netdev` and `ovs_dpdk`: every end is connected to one private Open vSwitch, with mirrors.

The first switches in the kernel, the others in ovs-vswitchd itself, which receives by packet sockets.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from labkit.common.errors import BadInput
from labkit.measure.endpoints import Endpoint, Namespace, Pair, RemotePair, namespaces
from labkit.measure.topologies.base import (
    BETWEEN,
    CLIENTS,
    EDGE,
    PORT,
    BuiltSide,
    Spec,
    Topology,
    endpoint_addresses,
    give_addresses,
    mac,
    names,
    numbers,
    paired,
    pairs_of,
)
from labkit.measure.topologies.containers_and_guests import nic_of
from labkit.measure.topologies.open_vswitch import dpdk, switch_options
from labkit.measure.topologies.open_vswitch.configuration import Port, operations
from labkit.measure.topologies.open_vswitch.mirrors import MONITOR, Mirrors
from labkit.measure.topologies.open_vswitch.offloads import complete_packets
from labkit.measure.topologies.open_vswitch.switch import Switch, switch
from labkit.measure.topologies.open_vswitch.use_cases import BRIDGE, use_case
from labkit.measure.topologies.physical_nic import borrowed_nic
from labkit.measure.topologies.veth import port
from labkit.system import netlink


@contextmanager
def ovs(name: str, spec: Spec) -> Iterator[Topology]:
    """Build a veth from every end to one switch.

    Raises BadInput for invalid options (`switch_options.options`), Unsupported if Open vSwitch or its datapath is
    missing, Failed with its message.
    """
    if switch_options.options(name).case is not None:
        with use_case(name, spec, _datapath(name)) as topology:
            yield topology
        return
    count = len(names(spec))
    with (
        namespaces([*names(spec), BETWEEN, *_monitors(name, spec)], family=spec.family) as made,
        ExitStack() as stack,
    ):
        for space in made:
            space.netlink.do(netlink.set_link(1))
        ends, between = made[:count], made[count]
        between.netlink.do(
            *(port(spec, space, number, None) for space, _, number in endpoint_addresses(spec, ends))
        )
        if _datapath(name).in_userspace:
            for space in ends:
                complete_packets(space, "eth0")
        indices = {number: PORT + number for number in numbers(spec)}
        one, mirrors = stack.enter_context(_start_switch(name, spec, made[count:], indices))
        give_addresses(spec, ends)
        yield stack.enter_context(_prove_mirrors(name, spec, pairs_of(spec, ends), made, one, mirrors))


@contextmanager
def ovs_guests(name: str, spec: Spec) -> Iterator[Topology]:
    """Build a tap from every guest to one switch.

    Raises as `ovs`, and BadInput for guests whose packets the userspace datapath cannot carry.
    """
    from labkit.measure.endpoints.guest.qemu_guest import guests  # what only guests need
    from labkit.measure.endpoints.guest.spec import GuestAdditions, parse

    parameters = parse(spec.guest)
    if _datapath(name).in_userspace and parameters.offloads:
        raise BadInput(
            f"guest={spec.guest}: {name} receives through packet sockets, which need complete packets: use"
            f" guest={spec.guest},offloads=off"
        )
    if switch_options.options(name).case is not None:
        with use_case(name, spec, _datapath(name)) as topology:
            yield topology
        return
    with namespaces([BETWEEN, *_monitors(name, spec)], family=spec.family) as made, ExitStack() as stack:
        for space in made:
            space.netlink.do(netlink.set_link(1))
        between, nics, indices = made[0], [], {}
        for number in numbers(spec):
            tap = netlink.Tap(between.fd, f"port{number}", parameters.queues)
            stack.callback(tap.close)
            between.netlink.do(netlink.set_link(tap.index, mtu_bytes=spec.mtu_bytes))
            nics.append(nic_of(spec, number, tap.fds))
            indices[number] = tap.index
        one, mirrors = stack.enter_context(_start_switch(name, spec, made, indices))
        booted = stack.enter_context(guests(spec.guest, nics, GuestAdditions(scripts=spec.guest_files)))
        ends = [
            Endpoint(guest.name, between, "eth0", EDGE, nic.address.partition("/")[0], guest, f"port{number}")
            for number, guest, nic in zip(numbers(spec), booted, nics, strict=True)
        ]
        yield stack.enter_context(_prove_mirrors(name, spec, paired(ends), made, one, mirrors))


def side(name: str, spec: Spec, ends: list[Namespace], between: Namespace, stack: ExitStack) -> BuiltSide:
    """Build a switch with a veth for each end of this host, and the NIC as one more port.

    Mirrors are on the clients' host. Raises as `ovs`, and BadInput for a use case.
    """
    parameters = switch_options.options(name)
    if parameters.case is not None:
        raise BadInput(f"{name}: a case has its network and its VMs on one host: use nodes=one")
    between.netlink.do(
        *(port(spec, space, number, None) for space, _, number in endpoint_addresses(spec, ends))
    )
    if _datapath(name).in_userspace:
        for space in ends:
            complete_packets(space, "eth0")
    _kernel, nic = stack.enter_context(borrowed_nic(spec, between, moved=True))
    [cable] = [link.name for link in netlink.links(between.netlink) if link.index == nic]
    here = name if spec.side == CLIENTS else _without_mirrors(name)
    monitor = stack.enter_context(namespaces(_monitors(here, spec), family=spec.family))
    for space in monitor:
        space.netlink.do(netlink.set_link(1))
    indices = {number: PORT + number for number in numbers(spec)}
    switched = _start_switch(here, spec, [between, *monitor], indices, _cable(cable, indices, parameters))
    one, mirrors = stack.enter_context(switched)

    def begin(pairs: Sequence[RemotePair]) -> None:
        mirrors.prove(one, pairs)
        stack.enter_context(mirrors.read())

    mac_of = functools.partial(mac, ours=spec.ours)
    return BuiltSide(mac_of, one, mirrors.meter(one), mirrors.doubts(), begin)


def _cable(nic: str, numbers: Iterable[int], parameters: switch_options.SwitchOptions) -> Port:
    """Return the port of the cable to the other host. It carries no VLAN of copies."""
    if parameters.output != "vlan":
        return Port(nic)
    if not parameters.vlans:
        return Port(nic, vlan=vlan_of(0, parameters))
    vlans = {vlan for number in numbers if (vlan := vlan_of(number, parameters)) is not None}
    return Port(nic, trunks=tuple(sorted(vlans)))


def _without_mirrors(name: str) -> str:
    """Return the name of the same switch without mirrors."""
    given, plain = switch_options.options(name), switch_options.SwitchOptions()
    of_mirrors = ("mirrors", "select", "output", "readers", "snaplen", "uplink_bps", "uplink_mtu")
    usual = {one: getattr(plain, one) for one in of_mirrors}
    return replace(given, **usual).name(name.partition("+")[0])


def _datapath(name: str) -> switch_options.Datapath:
    return switch_options.NAMES[name.partition("+")[0]]


def _monitors(name: str, spec: Spec) -> list[str]:
    """Return the name of the namespace where copies arrive, if they do on this host."""
    if spec.monitor is not None and switch_options.copies_leave(name):
        return []
    return [MONITOR] if switch_options.options(name).mirrors else []


@contextmanager
def _start_switch(
    name: str, spec: Spec, spaces: Sequence[Namespace], indices: dict[int, int], *more: Port
) -> Iterator[tuple[Switch, Mirrors]]:
    """Start the switch in the first of these namespaces, and its mirrors, whose copies arrive in the second.

    Its ports are the ends' interfaces there (`indices`, by the ends' numbers), and `more`.
    """
    parameters, between = switch_options.options(name), spaces[0]
    if _datapath(name) is switch_options.Datapath.DPDK:
        dpdk.check_mtu(spec.mtu_bytes)
    mirrors = Mirrors(parameters, spec, _datapath(name), between, next(iter(spaces[1:]), None), indices)
    ports = [Port(f"port{number}", number=number + 1, vlan=vlan_of(number, parameters)) for number in indices]
    with mirrors.cables(), switch(between) as one:
        configuration = operations(
            mirrors.bridges(BRIDGE, [*ports, *more]), parameters.flow_limit, parameters.cpu
        )
        one.start(*configuration, datapath=_datapath(name), cpu=parameters.cpu)
        mirrors.connect(one)
        with mirrors.counted():
            yield one, mirrors


@contextmanager
def _prove_mirrors(
    name: str,
    spec: Spec,
    pairs: list[Pair],
    made: list[Namespace],
    one: Switch,
    mirrors: Mirrors,
) -> Iterator[Topology]:
    """Yield the topology when its mirrors have proved to copy what these pairs send; copies are read meanwhile."""
    mirrors.prove(one, pairs)
    with mirrors.read():
        yield Topology(name, spec, pairs, made, switch=one, meter=mirrors.meter(one), doubts=mirrors.doubts())


def vlan_of(number: int, parameters: switch_options.SwitchOptions) -> int | None:
    """Return the VLAN of end `number`'s port; None makes it a trunk of all VLANs.

    If mirrors copy into a VLAN, an end must not be in all VLANs, or it would receive the copies.
    """
    if not parameters.vlans:
        return 1 if parameters.output == "vlan" else None
    return 1 + number // 2 % parameters.vlans
