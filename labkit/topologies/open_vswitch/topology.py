"""The topologies `ovs` and `ovs_netdev`: every end on a port of one private Open vSwitch, with mirrors.

The first switches in the kernel, the second in ovs-vswitchd itself."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from labkit import netlink
from labkit.endpoints import Namespace, namespaces
from labkit.topologies.base import (
    BETWEEN,
    Spec,
    Topology,
    give_addresses,
    names,
    numbers,
    pairs_of,
    sides,
)
from labkit.topologies.open_vswitch import words
from labkit.topologies.open_vswitch.configuration import Port, operations
from labkit.topologies.open_vswitch.mirrors import MONITOR, Mirrors
from labkit.topologies.open_vswitch.switch import switch
from labkit.topologies.veth import port

# Where the datapath is: the kernel's module, or ovs-vswitchd, which receives by packet sockets.
NAMES = {"ovs": "system", "ovs_netdev": "netdev"}
BRIDGE = "switch"
# linux/sockios.h, linux/ethtool.h
SIOCETHTOOL, ETHTOOL_STXCSUM, ETHTOOL_STSO = 0x8946, 0x17, 0x1F


@contextmanager
def ovs(name: str, spec: Spec) -> Iterator[Topology]:
    """A veth from every end to one switch. Raises BadInput for options that cannot be (`words.options`), Unsupported
    where Open vSwitch or its datapath is missing, Failed with its words."""
    asked = words.options(name)
    datapath = NAMES[name.partition("+")[0]]
    monitors = [MONITOR] if asked.mirrors else []
    with namespaces([*names(spec), BETWEEN, *monitors], family=spec.family) as made, ExitStack() as stack:
        for space in made:
            space.netlink.do(netlink.set_link(1))
        count = len(names(spec))
        ends, between, monitor = made[:count], made[count], next(iter(made[count + 1 :]), None)
        between.netlink.do(*(port(spec, space, number, None) for space, _, number in sides(spec, ends)))
        if datapath == "netdev":
            for space in ends:
                complete_packets(space, "eth0")
        mirrors = Mirrors(asked, spec, datapath, between, monitor)
        mirrors.lay_cables()
        ports = [
            Port(f"port{number}", number=number + 1, vlan=vlan_of(number, asked)) for number in numbers(spec)
        ]
        one = stack.enter_context(switch(between))
        one.start(*operations(mirrors.bridges(BRIDGE, ports)), kernel=datapath == "system")
        give_addresses(spec, ends)
        pairs = pairs_of(spec, ends)
        mirrors.connect(one)
        stack.enter_context(mirrors.counted())
        mirrors.prove(one, pairs)
        stack.enter_context(mirrors.read())
        yield Topology(name, spec, pairs, made, switch=one, meter=mirrors.meter(one))


def vlan_of(number: int, asked: words.SwitchOptions) -> int | None:
    """The VLAN that the port of end `number` belongs to, or None: then it is a trunk of all VLANs.

    Where mirrors copy into a VLAN, an end must not be in all of them, or the copies go there as well.
    """
    if not asked.vlans:
        return 1 if asked.output == "vlan" else None
    return 1 + number // 2 % asked.vlans


def complete_packets(space: Namespace, interface: str) -> None:
    """Switch transmit checksum and segmentation offload off: what a packet socket gives to the userspace datapath must
    be complete."""
    with netlink.inside(space.fd), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (ETHTOOL_STXCSUM, ETHTOOL_STSO):
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))  # struct ethtool_value
            request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))  # struct ifreq
            fcntl.ioctl(any_socket, SIOCETHTOOL, request.ljust(40, b"\0"))
