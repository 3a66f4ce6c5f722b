"""Switch off offloads of endpoints whose packets the userspace datapath receives through packet sockets."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

from labkit.measure.endpoints import Namespace
from labkit.system import netlink

# linux/sockios.h, linux/ethtool.h
SIOCETHTOOL, ETHTOOL_STXCSUM, ETHTOOL_STSO = 0x8946, 0x17, 0x1F


def complete_packets(space: Namespace, interface: str) -> None:
    """Switch transmit checksum and segmentation offload off: what a packet socket gives to the userspace datapath must
    be complete."""
    with netlink.inside(space.fd), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (ETHTOOL_STXCSUM, ETHTOOL_STSO):
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))  # struct ethtool_value
            request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))  # struct ifreq
            fcntl.ioctl(any_socket, SIOCETHTOOL, request.ljust(40, b"\0"))
