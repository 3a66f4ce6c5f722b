"""The topologies `ovs` and `ovs_netdev`: every end on a port of one private Open vSwitch, which switches in the kernel or
in user space, with mirrors."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from labkit import netlink
from labkit.endpoints import Namespace, namespaces
from labkit.topologies.base import BETWEEN, PORT, Spec, Topology, give_addresses, names, pairs_of, sides
from labkit.topologies.open_vswitch import words
from labkit.topologies.open_vswitch.mirrors import MONITOR, Mirrors
from labkit.topologies.open_vswitch.rpc import a_map, a_set, named
from labkit.topologies.open_vswitch.switch import switch
from labkit.topologies.veth import port

# Where the datapath is: the kernel's module, or ovs-vswitchd, which receives by packet sockets.
NAMES = {"ovs": "system", "ovs_netdev": "netdev"}
BRIDGE = "switch"
# linux/sockios.h, linux/ethtool.h
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17


@contextmanager
def ovs(name: str, spec: Spec) -> Iterator[Topology]:
    """A veth from every end to one switch. Raises BadInput for options that cannot be (`words.options`), Unsupported
    where Open vSwitch or its datapath is missing, Failed with its words."""
    asked = words.options(name)
    datapath = NAMES[name.partition("+")[0]]
    spaces = [*names(spec), BETWEEN, *([MONITOR] if asked.mirrors else [])]
    with namespaces(spaces, family=spec.family) as made, ExitStack() as stack:
        for space in made:
            space.netlink.do(netlink.set_link(1))
        ends, between, monitors = made[: -1 - bool(asked.mirrors)], made[len(names(spec))], made[len(names(spec)) + 1 :]
        between.netlink.do(*(port(spec, space, number, None) for space, _, number in sides(spec, ends)))
        if datapath == "netdev":
            for space in ends:
                checksum_in_software(space, "eth0")
        mirrors = Mirrors(asked, spec, between, monitors[0] if monitors else None)
        mirrors.lay_cables()
        one = stack.enter_context(switch(between))
        one.start(*_configuration(spec, asked, datapath, mirrors), kernel=datapath == "system")
        give_addresses(spec, ends)
        mirrors.prove(one, ends)
        stack.enter_context(mirrors.read())
        yield Topology(name, spec, pairs_of(spec, ends), made, switch=one, meter=mirrors.meter(one, PORT))


def vlan_of(number: int, asked: words.SwitchOptions) -> int | None:
    """The VLAN that the port of end `number` belongs to, or None."""
    return 1 + number // 2 % asked.vlans if asked.vlans else None


def checksum_in_software(space: Namespace, interface: str) -> None:
    """Switch transmit checksum offload off, and with it segmentation offload: what the userspace datapath receives by a
    packet socket has to be complete."""
    value = struct.pack("II", ETHTOOL_STXCSUM, 0)  # struct ethtool_value
    with netlink.inside(space.fd), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        buffer = bytearray(value)
        address = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        request = struct.pack("16sP", interface.encode(), ctypes.addressof(address))
        fcntl.ioctl(any_socket, SIOCETHTOOL, request.ljust(40, b"\0"))
