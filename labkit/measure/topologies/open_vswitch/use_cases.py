"""The use cases of the OVS test plan as topologies: a network and VMs on one switch, joined by wildcard rules.

`ovs+case=net_to_vm`: frames from the network are spread over the VMs. `vm_to_net`: every VM sends to the network.
`vm_to_vm`: every VM sends to all others. A pair adds a VM; `pairs=4` is the test plan's number. The VMs are namespaces
(or containers in them), or guests on taps; the network is a namespace. With `tunnel=vxlan` the network reaches the
switch through VXLAN, and with `tunnel=vlan` in a VLAN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from labkit.common.errors import BadInput
from labkit.common.switch_options import Datapath, SwitchOptions
from labkit.measure.endpoints import Endpoint, Pair
from labkit.measure.topologies.base import (
    BETWEEN,
    CLIENTS,
    SERVERS,
    Interface,
    Meter,
    Spec,
    Topology,
    address,
    mac,
)
from labkit.measure.topologies.containers_and_guests import booted, tap_of
from labkit.measure.topologies.linux_datapaths import PORT_SIDE
from labkit.measure.topologies.network.build import BuiltNetwork, joined
from labkit.measure.topologies.network.kinds import headers, length_bytes
from labkit.measure.topologies.network.parts import Cable, CableEnd, Neighbour, Network, Node, Part, Tunnel
from labkit.measure.topologies.network.validate import MAX_BYTES
from labkit.measure.topologies.open_vswitch import rules
from labkit.measure.topologies.open_vswitch.configuration import Bridge, Port
from labkit.measure.topologies.open_vswitch.mirrors import (
    FAR,
    NEAR,
    UNDERLAY,
    UPLINK,
    UPLINK_SIDE,
    connect_underlay,
)
from labkit.measure.topologies.open_vswitch.rules import Port as RulePort
from labkit.measure.topologies.open_vswitch.switch import DAEMON, Switch, switch
from labkit.system import netlink
from labkit.system.netlink.ethtool import complete_packets

if TYPE_CHECKING:
    from labkit.measure.endpoints.guest.spec import Nic

BRIDGE = "switch"
NETWORK = "network"
NET_PORT, VM_PORT = 1, 10  # OpenFlow numbers of the network and of the first VM, as in the test plan
ROUTER_SIDE = 6  # the part of the MAC address that L3 rules give to a frame
VNI = VLAN = 1


@dataclass(frozen=True)
class _End:
    """An end of a use case: a VM (`number` from 0), or the network, whose number comes after the last VM's.

    `openflow`: the number of its port. `vlan`: the VLAN between it and the switch; None: its frames have no tag.
    """

    name: str
    number: int
    address: Interface
    openflow: int
    vlan: int | None = None


@contextmanager
def use_case(options: SwitchOptions, name: str, spec: Spec) -> Iterator[Topology]:
    """Build a use case.

    Raises BadInput for an MTU that a tunnel cannot carry, and the errors of `switch`, of a port, and of a rule that the
    switch refuses.
    """
    assert options.case is not None, "the name of the topology has a case"
    vms_count = max(spec.pairs, 2) if options.case == "vm_to_vm" else spec.pairs
    under_bytes = spec.mtu_bytes + length_bytes(headers("vxlan"))
    if options.tunnel == "vxlan" and under_bytes > MAX_BYTES:
        raise BadInput(
            f"mtu_bytes={spec.mtu_bytes} does not fit into VXLAN over a veth: the limit is {MAX_BYTES}"
        )
    # The address of a VM ends with its number, so the rules themselves carry a ping to it.
    vms = [
        _End(f"vm{number}", number, address(spec.family, SERVERS, number - 1), VM_PORT + number)
        for number in range(vms_count)
    ]
    at, vlan = address(spec.family, CLIENTS, 0), VLAN if options.tunnel == "vlan" else None
    net = [_End(NETWORK, vms_count, at, NET_PORT, vlan)] if options.case != "vm_to_vm" else []
    guests = vms if spec.endpoint == "guest" else []
    own = [end for end in (*vms, *net) if end not in guests]
    tunnelled = net if options.tunnel == "vxlan" else []
    described = _network(name, spec, own, [*vms, *net], {end.name: under_bytes for end in tunnelled})
    with joined(described, spec) as built, switch(built.space[BETWEEN]) as one, ExitStack() as stack:
        between = built.space[BETWEEN]
        taps = {end: tap_of(stack, spec, between, end.number) for end in guests}
        if options.datapath.in_userspace:
            for end in own:
                complete_packets(built.space[end.name].fd, "eth0")
            for end in tunnelled:
                complete_packets(built.space[end.name].fd, "under")
        ports = [
            Port(f"port{end.number}", number=end.openflow) for end in (*vms, *net) if end not in tunnelled
        ]
        bridges = _bridges(options.datapath, ports, bool(tunnelled))
        one.start(bridges, options, spec.programs.get(DAEMON, DAEMON))
        for end in tunnelled:
            _tunnel_switch(end, one, built)
        _install(options, spec, one, vms, net)
        nics = {end.number: _nic(spec, end, tap.fds, [*vms, *net]) for end, tap in taps.items()}
        ends = {end.number: replace(built.endpoint(end.name), vlan=end.vlan) for end in own}
        ends |= booted(stack, spec, between, nics)
        pairs = _pairs(options.case, spec, [ends[vm.number] for vm in vms], [ends[end.number] for end in net])
        yield Topology(name, spec, pairs, built.spaces, switch=one, meter=_meter(one))


def _nic(spec: Spec, end: _End, fds: Sequence[int], all_ends: Sequence[_End]) -> Nic:
    """Return the NIC of the guest that is this VM."""
    from labkit.measure.endpoints.guest.spec import Nic  # what only guests need

    own_mac, neighbours = mac(end.number, 0, spec.ours), _neighbours(spec, end, all_ends)
    return Nic(end.name, fds, spec.mtu_bytes, str(end.address), own_mac, neighbours)


def _bridges(datapath: Datapath, ports: Sequence[Port], tunnelled: bool) -> list[Bridge]:
    if not tunnelled:
        return [Bridge(BRIDGE, datapath, ports)]
    options = {"remote_ip": str(FAR.ip), "local_ip": str(NEAR.ip), "key": str(VNI)}
    main = Bridge(BRIDGE, datapath, [*ports, Port(NETWORK, "vxlan", options, NET_PORT)])
    # Tunnels of the userspace datapath enter and leave through a bridge of their own that has the address.
    return [main, Bridge(UNDERLAY, Datapath.SOCKETS, [Port(UPLINK)])] if datapath.in_userspace else [main]


def _network(
    name: str, spec: Spec, own: Sequence[_End], all_ends: Sequence[_End], under_bytes: Mapping[str, int]
) -> Network:
    """Describe the ends that have a namespace, each with a port at the switch and all others as neighbours.

    under_bytes: the MTU of the cable under a VXLAN tunnel to the switch, for the ends that have one.
    """
    parts: list[Part] = []
    for end in own:
        own_mac, at = mac(end.number, 0, spec.ours), str(end.address)
        parts += [Node(end.name, container=True)]
        parts += [Neighbour(end.name, "eth0", *other) for other in _neighbours(spec, end, all_ends)]
        if end.name in under_bytes:
            near, far = (mac(number, UPLINK_SIDE, spec.ours) for number in (0, 1))
            under = CableEnd(end.name, "under", str(FAR), mac=far)
            parts += [
                Tunnel(
                    "vxlan", end.name, "eth0", str(NEAR.ip), local=str(FAR.ip), id=VNI, link="under",
                    learning=False, address=at, mtu_bytes=spec.mtu_bytes, mac=own_mac,
                ),
                Cable(CableEnd(BETWEEN, UPLINK, mac=near), under, under_bytes[end.name]),
            ]  # fmt: skip
        else:
            port = CableEnd(BETWEEN, f"port{end.number}", mac=mac(end.number, PORT_SIDE, spec.ours))
            parts.append(Cable(port, CableEnd(end.name, "eth0", at, mac=own_mac)))
    return Network(name, (*parts, Node(BETWEEN)), mtu_bytes=spec.mtu_bytes)


def _tunnel_switch(end: _End, one: Switch, built: BuiltNetwork) -> None:
    """Give the switch's side of the tunnel its address, and both sides each other as permanent neighbours."""
    between, under = built.space[BETWEEN], built.index[end.name, "under"]
    there = built.space[end.name].netlink
    index = connect_underlay(one, between, built.index[BETWEEN, UPLINK], _mac_of(there, under))
    # The userspace datapath takes frames out of the tunnel only if they are for the MAC address of its bridge, and the
    # kernel would answer ARP for that address with the MAC address of `uplink`.
    there.do(netlink.new_neighbour(under, str(NEAR.ip), _mac_of(between.netlink, index)))


def _mac_of(kernel: netlink.Netlink, index: int) -> str:
    [mac_text] = [link.mac for link in netlink.links(kernel) if link.index == index]
    assert mac_text is not None, "it is Ethernet"
    return mac_text


def _neighbours(spec: Spec, end: _End, all_ends: Sequence[_End]) -> list[tuple[str, str]]:
    """Return the IP and MAC addresses of all other ends."""
    return [
        (str(other.address.ip), mac(other.number, 0, spec.ours)) for other in all_ends if other is not end
    ]


def _install(
    options: SwitchOptions, spec: Spec, one: Switch, vms: Sequence[_End], net: Sequence[_End]
) -> None:
    """Add the rules. What no rule takes, as the answers to a ping, is switched by learning."""
    assert options.case is not None, "the name of the topology has a case"
    ports = [RulePort(end.openflow, mac(end.number, 0, spec.ours), end.vlan) for end in (*vms, *net)]
    towards = rules.directions(options.case, ports[-1], ports[: len(vms)])
    lines = rules.rules(
        options.rules, options.rules_count, spec.family, towards, mac(0, ROUTER_SIDE, spec.ours)
    )
    rules.install(one, BRIDGE, lines)


def _pairs(case: str, spec: Spec, vms: Sequence[Endpoint], net: Sequence[Endpoint]) -> list[Pair]:
    """Return a pair of each VM with the network, or with the next VM."""
    if case == "vm_to_vm":
        following = [*vms[1:], vms[0]]
        return [Pair(*both) for both in zip(vms, following, strict=True)][: spec.pairs]
    [network] = net
    return [Pair(network, vm) if case == "net_to_vm" else Pair(vm, network) for vm in vms]


def _meter(one: Switch) -> Meter:
    """Reads the switch's CPU time; what it returns gives the column for the time since."""

    def begin() -> Callable[[], dict[str, Any]]:
        before_s = one.cpu_s()
        return lambda: {"switch_cpu_s": one.cpu_s() - before_s}

    return begin
