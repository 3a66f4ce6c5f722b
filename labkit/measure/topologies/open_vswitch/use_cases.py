"""The use cases of the OVS test plan as topologies: a network and VMs on one switch, joined by wildcard rules.

`ovs+case=net_to_vm`: frames from the network are spread over the VMs. `vm_to_net`: every VM sends to the network.
`vm_to_vm`: every VM sends to all others. A pair adds a VM; `pairs=4` is the test plan's number. The VMs are namespaces
(or containers in them), or guests on taps; the network is a namespace. With `tunnel=vxlan` the network reaches the
switch through VXLAN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.common.errors import BadInput
from labkit.measure.endpoints import Endpoint, Namespace, Pair, namespaces
from labkit.measure.topologies.base import (
    BETWEEN,
    CLIENTS,
    EDGE,
    SERVERS,
    Interface,
    Meter,
    Spec,
    Topology,
    address,
    mac,
)
from labkit.measure.topologies.network.encapsulation import PORTS, headers, length_bytes
from labkit.measure.topologies.open_vswitch import dpdk, rules, switch_options
from labkit.measure.topologies.open_vswitch.configuration import Bridge, Port, operations
from labkit.measure.topologies.open_vswitch.mirrors import FAR, NEAR, UNDERLAY, UPLINK, UPLINK_SIDE
from labkit.measure.topologies.open_vswitch.offloads import complete_packets
from labkit.measure.topologies.open_vswitch.rules import Port as RulePort
from labkit.measure.topologies.open_vswitch.switch import Switch, switch
from labkit.measure.topologies.open_vswitch.switch_options import Datapath
from labkit.measure.topologies.tunnels import LARGEST, UNDER
from labkit.measure.topologies.veth import port
from labkit.system import netlink

if TYPE_CHECKING:
    from labkit.measure.endpoints.guest.qemu_guest import QemuGuest

BRIDGE = "switch"
NETWORK = "network"
NET_PORT, VM_PORT = 1, 10  # OpenFlow numbers of the network and of the first VM, as in the test plan
ROUTER_SIDE = 6  # the part of the MAC address that L3 rules give to a frame
VNI = 1


@dataclass(frozen=True)
class _End:
    """An end of a use case: a VM (`number` from 0), or the network, whose number comes after the last VM's.

    `space`: its namespace; of a VM that is a guest, the switch's, where its tap is.
    """

    name: str
    number: int
    space: Namespace
    address: Interface
    openflow: int

    def endpoint(self, guest: QemuGuest | None = None) -> Endpoint:
        tap = None if guest is None else f"port{self.number}"
        return Endpoint(self.name, self.space, "eth0", EDGE, str(self.address.ip), guest, tap)


@contextmanager
def use_case(name: str, spec: Spec, datapath: Datapath) -> Iterator[Topology]:
    """Build the use case that `name` asks for.

    Raises BadInput for too few rules, and the errors of `switch`, of a port, and of a rule that the switch refuses.
    """
    options = switch_options.options(name)
    if datapath is Datapath.DPDK:
        dpdk.check_mtu(spec.mtu_bytes)
    assert options.case is not None, "the name of the topology has a case"
    vms_count = max(spec.pairs, 2) if options.case == "vm_to_vm" else spec.pairs
    if options.rules_count < vms_count**2:
        raise BadInput(
            f"rules_count={options.rules_count} is too few for {vms_count} VMs: {vms_count**2} rules are the"
            " minimum for so many VMs"
        )
    under_bytes = spec.mtu_bytes + length_bytes(headers("vxlan"))
    if options.tunnel != "off" and under_bytes > LARGEST:
        raise BadInput(
            f"mtu_bytes={spec.mtu_bytes} does not fit into VXLAN over a veth: the limit is {LARGEST}"
        )
    in_guests = spec.endpoint == "guest"
    vm_names = [f"vm{number}" for number in range(vms_count)]
    net_names = [] if options.case == "vm_to_vm" else [NETWORK]
    space_names = [*([] if in_guests else vm_names), *net_names]
    with (
        namespaces([*space_names, BETWEEN], family=spec.family) as made,
        switch(made[-1]) as one,
        ExitStack() as stack,
    ):
        for space in made:
            space.netlink.do(netlink.set_link(1))
        between = made[-1]
        spaces = dict(zip(space_names, made, strict=False))
        # The address of a VM ends with its number, so the rules themselves carry a ping to it.
        vms = [
            _End(
                name,
                number,
                spaces.get(name, between),
                address(spec.family, SERVERS, number - 1),
                VM_PORT + number,
            )
            for number, name in enumerate(vm_names)
        ]
        net = [
            _End(name, vms_count, spaces[name], address(spec.family, CLIENTS, 0), NET_PORT)
            for name in net_names
        ]
        guests = vms if in_guests else []
        own = [end for end in (*vms, *net) if end not in guests]
        tunnelled = net if options.tunnel == "vxlan" else []
        between.netlink.do(*(port(spec, end.space, end.number, None) for end in own if end not in tunnelled))
        fds = [_tap(stack, spec, end) for end in guests]
        for end in tunnelled:
            _tunnel_end(spec, end, between, under_bytes)
        if datapath.in_userspace:
            for end in own:
                complete_packets(end.space, "eth0")
            for end in tunnelled:
                complete_packets(end.space, "under")
        ports = [
            Port(f"port{end.number}", number=end.openflow) for end in (*vms, *net) if end not in tunnelled
        ]
        configuration = operations(
            _bridges(datapath, ports, bool(tunnelled)), options.flow_limit, options.cpu
        )
        one.start(*configuration, datapath=datapath, cpu=options.cpu)
        for end in tunnelled:
            _tunnel_switch(spec, end, one, between, datapath)
        _give_addresses(spec, own, [*vms, *net])
        _install(options, spec, one, vms, net)
        runtimes = _booted(stack, spec, guests, fds, [*vms, *net])
        ends = {end.number: end.endpoint(runtimes.get(end.number)) for end in (*vms, *net)}
        pairs = _pairs(options.case, spec, [ends[vm.number] for vm in vms], [ends[end.number] for end in net])
        yield Topology(name, spec, pairs, made, switch=one, meter=_meter(one))


def _tap(stack: ExitStack, spec: Spec, end: _End) -> Sequence[int]:
    """Make the tap of a VM that is a guest; return the descriptors of its queues."""
    from labkit.measure.endpoints.guest.spec import parse  # what only guests need

    tap = netlink.Tap(end.space.fd, f"port{end.number}", parse(spec.guest).queues)
    stack.callback(tap.close)
    end.space.netlink.do(netlink.set_link(tap.index, mtu_bytes=spec.mtu_bytes))
    return tap.fds


def _booted(
    stack: ExitStack, spec: Spec, ends: Sequence[_End], fds: Sequence[Sequence[int]], all_ends: Sequence[_End]
) -> dict[int, QemuGuest]:
    """Boot the guests of these VMs on their taps; return them by number."""
    if not ends:
        return {}
    from labkit.measure.endpoints.guest.qemu_guest import guests
    from labkit.measure.endpoints.guest.spec import GuestAdditions, Nic

    nics = [
        Nic(
            end.name,
            queues,
            spec.mtu_bytes,
            str(end.address),
            mac(end.number, 0, spec.ours),
            _neighbours(spec, end, all_ends),
        )
        for end, queues in zip(ends, fds, strict=True)
    ]
    made = stack.enter_context(guests(spec.guest, nics, GuestAdditions(scripts=spec.guest_files)))
    return {end.number: guest for end, guest in zip(ends, made, strict=True)}


def _bridges(datapath: Datapath, ports: Sequence[Port], tunnelled: bool) -> list[Bridge]:
    if not tunnelled:
        return [Bridge(BRIDGE, datapath, ports)]
    options = {"remote_ip": str(FAR.ip), "local_ip": str(NEAR.ip), "key": str(VNI)}
    main = Bridge(BRIDGE, datapath, [*ports, Port(NETWORK, "vxlan", options, NET_PORT)])
    # Tunnels of the userspace datapath enter and leave through a bridge of their own that has the address.
    return [main, Bridge(UNDERLAY, Datapath.SOCKETS, [Port("uplink")])] if datapath.in_userspace else [main]


def _tunnel_end(spec: Spec, end: _End, between: Namespace, under_bytes: int) -> None:
    """Build the network's side: a cable `under` to the switch's `uplink`, and a VXLAN device over it."""
    near_mac, remote_mac = mac(0, UPLINK_SIDE, spec.ours), mac(1, UPLINK_SIDE, spec.ours)
    peer = {"name": "under", "index": UNDER, "netns": end.space.fd, "mac": remote_mac}
    between.netlink.do(
        netlink.new_link("veth", "uplink", index=UPLINK, mtu_bytes=under_bytes, mac=near_mac, peer=peer)
    )
    data = netlink.tunnel_data(
        "vxlan", local=str(FAR.ip), remote=str(NEAR.ip), number=VNI, port=PORTS["vxlan"], link=UNDER, learning=False
    )  # fmt: skip
    end.space.netlink.do(
        netlink.set_link(UNDER),
        netlink.new_address(UNDER, FAR),
        netlink.new_link(
            "vxlan",
            "eth0",
            index=EDGE,
            mtu_bytes=spec.mtu_bytes,
            mac=mac(end.number, 0, spec.ours),
            data=data,
        ),
    )


def _tunnel_switch(spec: Spec, end: _End, one: Switch, between: Namespace, datapath: Datapath) -> None:
    """Give the switch's side of the tunnel its address, and both sides each other as permanent neighbours."""
    index, remote_mac = UPLINK, mac(1, UPLINK_SIDE, spec.ours)
    if datapath.in_userspace:
        with netlink.inside(between.fd):
            index = netlink.index_of(UNDERLAY)
        one.command("tnl/arp/set", UNDERLAY, str(FAR.ip), remote_mac)
    between.netlink.do(
        netlink.set_link(index),
        netlink.new_address(index, NEAR),
        netlink.new_neighbour(index, str(FAR.ip), remote_mac),
    )
    # The userspace datapath takes frames out of the tunnel only if they are for the MAC address of its bridge, and the
    # kernel would answer ARP for that address with the MAC address of `uplink`.
    [near_mac] = [link.mac for link in netlink.links(between.netlink) if link.index == index]
    assert near_mac is not None, "it is Ethernet"
    end.space.netlink.do(netlink.new_neighbour(UNDER, str(NEAR.ip), near_mac))


def _give_addresses(spec: Spec, own: Sequence[_End], all_ends: Sequence[_End]) -> None:
    """Give each end that has a namespace its address, and all others as permanent neighbours."""
    for end in own:
        end.space.netlink.do(
            netlink.set_link(EDGE),
            netlink.new_address(EDGE, end.address),
            *(netlink.new_neighbour(EDGE, *other) for other in _neighbours(spec, end, all_ends)),
        )


def _neighbours(spec: Spec, end: _End, all_ends: Sequence[_End]) -> list[tuple[str, str]]:
    """Return the IP and MAC addresses of all other ends."""
    return [
        (str(other.address.ip), mac(other.number, 0, spec.ours)) for other in all_ends if other is not end
    ]


def _install(
    options: switch_options.SwitchOptions, spec: Spec, one: Switch, vms: Sequence[_End], net: Sequence[_End]
) -> None:
    """Add the rules. What no rule takes, as the answers to a ping, is switched by learning."""
    assert options.case is not None, "the name of the topology has a case"
    ports = [RulePort(end.openflow, mac(end.number, 0, spec.ours)) for end in (*vms, *net)]
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
