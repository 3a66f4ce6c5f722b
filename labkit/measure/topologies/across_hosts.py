"""One side of a topology across two hosts: all clients or all servers, on a NIC with a cable to the other host.

`Spec` determines the addresses of the other side, and except for ipvlan its MAC addresses: the hosts exchange nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from labkit.measure.endpoints import Endpoint, Namespace, RemoteEnd
from labkit.measure.topologies.base import (
    BuiltSide,
    SideBuilder,
    Spec,
    end_address,
    end_name,
    endpoint_addresses,
    ends_and_between,
    ends_of,
    give_addresses,
    mac,
    numbers,
)
from labkit.measure.topologies.macvlan_ipvlan import IPVLAN_MODES, MACVLAN_MODES, devices
from labkit.measure.topologies.physical_nic import borrowed_nic
from labkit.measure.topologies.veth import BRIDGE, port
from labkit.system import netlink


def veth_bridge(
    _name: str, spec: Spec, ends: list[Namespace], between: Namespace, stack: ExitStack
) -> BuiltSide:
    """Build a bridge with a veth for each end and the NIC as one more port."""
    between.netlink.do(netlink.new_link("bridge", "bridge", index=BRIDGE, mtu_bytes=spec.mtu_bytes))
    between.netlink.do(
        *(port(spec, space, number, BRIDGE) for space, _, number in endpoint_addresses(spec, ends))
    )
    _kernel, nic = stack.enter_context(borrowed_nic(spec, between, moved=True))
    between.netlink.do(netlink.set_master(nic, BRIDGE))
    return BuiltSide(functools.partial(mac, ours=spec.ours))


def macvlan_bridge(
    _name: str, spec: Spec, ends: list[Namespace], between: Namespace, stack: ExitStack
) -> BuiltSide:
    """Build macvlan devices in bridge mode on the NIC."""
    own = functools.partial(mac, ours=spec.ours)
    data = {"IFLA_MACVLAN_MODE": MACVLAN_MODES["bridge"]}
    kernel, nic = stack.enter_context(borrowed_nic(spec, between, moved=False))
    stack.enter_context(devices("macvlan", data, spec, kernel, nic, ends, own))
    return BuiltSide(own)


def ipvlan_l2(
    _name: str, spec: Spec, ends: list[Namespace], between: Namespace, stack: ExitStack
) -> BuiltSide:
    """Build ipvlan devices in L2 mode on the NIC. They share its MAC address; the other side resolves it with ARP."""
    data = {"IFLA_IPVLAN_MODE": IPVLAN_MODES["l2"]}
    kernel, nic = stack.enter_context(borrowed_nic(spec, between, moved=False))
    stack.enter_context(devices("ipvlan", data, spec, kernel, nic, ends))
    return BuiltSide(None)


@contextmanager
def one_side(name: str, spec: Spec, build: SideBuilder) -> Iterator[tuple[list[Endpoint], BuiltSide]]:
    """Build side `spec.side` of the topology `name` until the block ends. Yield its ends, and what joins them.

    Raises BadInput for a NIC that cannot be used.
    """
    with ends_and_between(spec) as (ends, between), ExitStack() as stack:
        side = build(name, spec, ends, between, stack)
        give_addresses(spec, ends, side.mac_of)
        yield ends_of(spec, ends), side


def remote_ends(spec: Spec) -> list[RemoteEnd]:
    """Return the ends of the other side, as this host knows them."""
    partners = [number ^ 1 for number in numbers(spec)]
    return [RemoteEnd(end_name(number), str(end_address(spec, number).ip)) for number in partners]
