"""The macvlan and ipvlan topologies: the devices of all ends share one lower device, the parent.

The parent is one end of a veth in the namespace between (its far end is up, and reflects frames for VEPA), or a
named NIC of the machine. Such a NIC stays in its namespace. labkit creates the new devices directly in the endpoints'
namespaces; they disappear with these.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labkit.common.errors import Isolated, LabkitError
from labkit.measure.endpoints import Namespace
from labkit.measure.topologies.base import (
    EDGE,
    Spec,
    Topology,
    endpoint_addresses,
    ends_and_between,
    give_addresses,
    mac,
    pairs_of,
)
from labkit.measure.topologies.physical_nic import machine_nic
from labkit.system import netlink

PARENT, FAR, BRIDGE = netlink.FIRST_INDEX + 2, netlink.FIRST_INDEX + 3, netlink.FIRST_INDEX + 1

PARENT_MAC = mac(0, 3)

# linux/if_link.h
MACVLAN_MODES = {"private": 1, "vepa": 2, "bridge": 4, "passthru": 8}
IPVLAN_MODES = {"l2": 0, "l3": 1, "l3s": 2}


@contextmanager
def macvlan(name: str, spec: Spec) -> Iterator[Topology]:
    """Build macvlan in the mode that ends the name.

    Raises Isolated for passthru, because the kernel refuses the second device.
    """
    mode = name.removeprefix("macvlan_")
    # Random MAC addresses for each arm: arms on one NIC of the machine have the same IP addresses, and other machines
    # are on its wire.
    own = functools.partial(mac, ours=os.urandom(2))
    data = {"IFLA_MACVLAN_MODE": MACVLAN_MODES[mode]}
    with (
        ends_and_between(spec) as (ends, between),
        _parent(spec, between, reflecting=mode == "vepa") as (socket, parent),
        devices("macvlan", data, spec, socket, parent, ends, own),
    ):
        give_addresses(spec, ends, own)
        yield Topology(name, spec, pairs_of(spec, ends), [*ends, between])


@contextmanager
def ipvlan(name: str, spec: Spec) -> Iterator[Topology]:
    """Build ipvlan in the mode that ends the name: the ends share the parent's MAC address and differ in IP address."""
    mode = name.removeprefix("ipvlan_")
    with (
        ends_and_between(spec) as (ends, between),
        _parent(spec, between, reflecting=False) as (socket, parent),
        devices("ipvlan", {"IFLA_IPVLAN_MODE": IPVLAN_MODES[mode]}, spec, socket, parent, ends),
    ):
        # All devices have the parent's MAC address; the L3 modes resolve no addresses.
        give_addresses(spec, ends, (lambda _: PARENT_MAC) if mode == "l2" and spec.parent is None else None)
        yield Topology(name, spec, pairs_of(spec, ends), [*ends, between])


@contextmanager
def devices(
    kind: str,
    data: dict[str, int],
    spec: Spec,
    socket: netlink.Netlink,
    parent: int,
    ends: list[Namespace],
    mac_of: Callable[[int], str] | None = None,
) -> Iterator[None]:
    """Create eth0 of every end on the parent; `parent` is its index in the namespace of the netlink socket."""
    made: list[Namespace] = []
    try:
        for space, _, number in endpoint_addresses(spec, ends):
            message = netlink.new_link(
                kind,
                "eth0",
                index=EDGE,
                netns=space.fd,
                link=parent,
                mtu_bytes=spec.mtu_bytes,
                mac=mac_of(number) if mac_of else None,
                data=data,
            )
            try:
                socket.do(message)
            except netlink.LinkError as error:
                raise _meaning(error, data, number) from None
            made.append(space)
        yield
    finally:
        # The kernel deletes the devices of a closed namespace with a delay, and the NIC is not free for another mode
        # until then. So labkit deletes them here.
        for space in made if spec.parent is not None or spec.side is not None else []:
            with contextlib.suppress(netlink.LinkError):
                space.netlink.do(netlink.delete_link(EDGE))


def _meaning(error: netlink.LinkError, data: dict[str, int], number: int) -> LabkitError:
    """Return the error to raise when the kernel refused device `number`."""
    if number and data.get("IFLA_MACVLAN_MODE") == MACVLAN_MODES["passthru"]:
        return Isolated(
            "macvlan passthru takes one device on a parent; the kernel refused the second"
            f" ({os.strerror(error.errno)}), so two endpoints on one parent cannot communicate"
        )
    return error


@contextmanager
def _parent(spec: Spec, between: Namespace, *, reflecting: bool) -> Iterator[tuple[netlink.Netlink, int]]:
    """Make or find the parent; yield the netlink socket of its namespace and its index there."""
    if spec.parent is not None:
        with machine_nic(spec) as nic:
            yield nic.kernel, nic.index
        return
    far = {"name": "far", "index": FAR}
    between.netlink.do(
        netlink.new_link("veth", "parent", index=PARENT, mtu_bytes=spec.mtu_bytes, mac=PARENT_MAC, peer=far)
    )
    between.netlink.do(netlink.set_link(FAR))
    if reflecting:
        # VEPA (802.1Qbg) leaves switching to the external switch: a bridge port in hairpin mode returns each frame to
        # the port it came from.
        between.netlink.do(netlink.new_link("bridge", "bridge", index=BRIDGE, mtu_bytes=spec.mtu_bytes))
        between.netlink.do(netlink.set_master(FAR, BRIDGE))
        between.netlink.do(netlink.set_link(FAR, hairpin=True))
    yield between.netlink, PARENT
