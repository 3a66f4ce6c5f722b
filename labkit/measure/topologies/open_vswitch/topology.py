"""The topologies of one private Open vSwitch to which every end is connected, with mirrors.

`ovs` switches in the kernel, the others in ovs-vswitchd itself, which receives by packet sockets or AF_XDP sockets.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import msgspec

from labkit.common.errors import BadInput
from labkit.common.switch_options import SwitchOptions
from labkit.measure.endpoints import RemotePair
from labkit.measure.topologies.base import (
    BETWEEN,
    CLIENTS,
    BuiltSide,
    Spec,
    Topology,
    end_name,
    numbers,
    paired,
    remote_ends,
)
from labkit.measure.topologies.containers_and_guests import booted, nic_of, tap_of
from labkit.measure.topologies.linux_datapaths import ends_with_known_macs, network, ports
from labkit.measure.topologies.network.build import BuiltNetwork, joined
from labkit.measure.topologies.network.parts import Network, Nic, Node, Part
from labkit.measure.topologies.open_vswitch.configuration import Port
from labkit.measure.topologies.open_vswitch.mirrors import Mirrors, monitor_parts
from labkit.measure.topologies.open_vswitch.switch import DAEMON, Switch, switch
from labkit.measure.topologies.open_vswitch.use_cases import BRIDGE, use_case
from labkit.system import netlink
from labkit.system.netlink.ethtool import complete_packets


@contextmanager
def ovs(wanted: SwitchOptions, name: str, spec: Spec) -> Iterator[Topology]:
    """Build a veth from every end to one switch.

    Raises Unsupported if Open vSwitch or its datapath is missing, Failed with its message.
    """
    if wanted.case is not None:
        with use_case(wanted, name, spec) as topology:
            yield topology
        return
    described = _network(wanted, name, spec)
    with joined(described, spec) as built, _start_switch(wanted, spec, built) as (one, mirrors):
        with _proved(replace(built.topology(name, spec), switch=one), one, mirrors) as topology:
            yield topology


@contextmanager
def ovs_guests(wanted: SwitchOptions, name: str, spec: Spec) -> Iterator[Topology]:
    """Build a tap from every guest to one switch.

    Raises as `ovs`, and BadInput for guests whose packets the userspace datapath cannot carry.
    """
    from labkit.measure.endpoints.guest.spec import parse  # what only guests need

    if wanted.datapath.in_userspace and parse(spec.guest).offloads:
        raise BadInput(
            f"guest={spec.guest}: {name} receives through packet sockets, which need complete packets: use"
            f" guest={spec.guest},offloads=off"
        )
    if wanted.case is not None:
        with use_case(wanted, name, spec) as topology:
            yield topology
        return
    with joined(_network(wanted, name, spec, with_ends=False), spec) as built, ExitStack() as stack:
        between = built.space[BETWEEN]
        taps = {number: tap_of(stack, spec, between, number) for number in numbers(spec)}
        indices = {number: tap.index for number, tap in taps.items()}
        one, mirrors = stack.enter_context(_start_switch(wanted, spec, built, indices))
        nics = {number: nic_of(spec, number, tap.fds) for number, tap in taps.items()}
        ends = paired(list(booted(stack, spec, between, nics).values()))
        with _proved(Topology(name, spec, ends, built.spaces, switch=one), one, mirrors) as topology:
            yield topology


@contextmanager
def side(wanted: SwitchOptions, name: str, spec: Spec) -> Iterator[BuiltSide]:
    """Build a switch with a veth for each end of this host, and the NIC as one more port.

    Mirrors are on the clients' host. Raises as `ovs`, and BadInput for a use case.
    """
    if wanted.case is not None:
        raise BadInput(f"{name}: a case has its network and its VMs on one host: use nodes=one")
    here = wanted if spec.side == CLIENTS else wanted.without_mirrors
    with joined(_network(here, name, spec), spec) as built, ExitStack() as stack:
        nic = built.index[BETWEEN, "nic"]
        [cable] = [link.name for link in netlink.links(built.space[BETWEEN].netlink) if link.index == nic]
        switched = _start_switch(here, spec, built, None, _cable(cable, numbers(spec), wanted))
        one, mirrors = stack.enter_context(switched)

        def begin(pairs: Sequence[RemotePair]) -> None:
            mirrors.prove(one, pairs)
            stack.enter_context(mirrors.read())

        made = [built.endpoint(end_name(number)) for number in numbers(spec)]
        yield BuiltSide(made, remote_ends(spec), one, mirrors.meter(one), mirrors.doubts(), begin)


def _network(wanted: SwitchOptions, name: str, spec: Spec, *, with_ends: bool = True) -> Network:
    """Describe the ends with their ports, the NIC of one of two hosts, and where mirrors' copies arrive."""
    own: list[Part] = [*ends_with_known_macs(spec), *ports(spec, None)] if with_ends else []
    nic = [Nic(BETWEEN, "nic", moves=True)] if spec.side else []
    monitor = monitor_parts(wanted, spec)
    described = network(name, spec, [*own, Node(BETWEEN), *nic, *monitor])
    return described if with_ends else msgspec.structs.replace(described, pairs=())


def _cable(nic: str, numbers: Iterable[int], parameters: SwitchOptions) -> Port:
    """Return the port of the cable to the other host. It carries no VLAN of copies."""
    if parameters.output != "vlan":
        return Port(nic)
    if not parameters.vlans:
        return Port(nic, vlan=vlan_of(0, parameters))
    vlans = {vlan for number in numbers if (vlan := vlan_of(number, parameters)) is not None}
    return Port(nic, trunks=tuple(sorted(vlans)))


@contextmanager
def _start_switch(
    wanted: SwitchOptions, spec: Spec, built: BuiltNetwork, taps: dict[int, int] | None = None, *more: Port
) -> Iterator[tuple[Switch, Mirrors]]:
    """Start the switch in the namespace between the ends, and its mirrors.

    Its ports are the ends' interfaces there, or those of guests (`taps`: indexes by the ends' numbers), and `more`.
    """
    between = built.space[BETWEEN]
    if wanted.datapath.in_userspace and taps is None:
        for number in numbers(spec):
            complete_packets(built.space[end_name(number)].fd, "eth0")
    indices = taps or {number: built.index[BETWEEN, f"port{number}"] for number in numbers(spec)}
    mirrors = Mirrors(wanted, spec, built, indices)
    ports = [Port(f"port{number}", number=number + 1, vlan=vlan_of(number, wanted)) for number in indices]
    with mirrors.uplink(), switch(between) as one:
        one.start(mirrors.bridges(BRIDGE, [*ports, *more]), wanted, spec.programs.get(DAEMON, DAEMON))
        mirrors.connect(one)
        with mirrors.counted():
            yield one, mirrors


@contextmanager
def _proved(topology: Topology, one: Switch, mirrors: Mirrors) -> Iterator[Topology]:
    """Prove that mirrors copy what the pairs send; yield the topology with its meter while copies are read."""
    mirrors.prove(one, topology.pairs)
    with mirrors.read():
        yield replace(topology, meter=mirrors.meter(one), doubts=mirrors.doubts())


def vlan_of(number: int, parameters: SwitchOptions) -> int | None:
    """Return the VLAN of end `number`'s port; None makes it a trunk of all VLANs.

    If mirrors copy into a VLAN, an end must not be in all VLANs, or it would receive the copies.
    """
    if not parameters.vlans:
        return 1 if parameters.output == "vlan" else None
    return 1 + number // 2 % parameters.vlans
