"""Read the features of an interface over ethtool's netlink family, named and grouped as ethtool(8) prints them; switch
some off.

This takes 0.5 ms; starting ethtool takes 10 ms, and much more on an emulated CPU. Sources: linux/ethtool_netlink.h,
linux/genetlink.h, and off_flag_def in ethtool's source (common.c).
"""

import ctypes
import fcntl
import fnmatch
import functools
import os
import socket
import struct
from contextlib import closing

from labkit.common.errors import Failed, Unsupported
from labkit.system.netlink.netns import inside
from labkit.system.netlink.sockets import LinkError, Netlink, attribute, attributes, request

NETLINK_GENERIC = 16
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 0x10, 3, 1, 2
ETHTOOL_MSG_FEATURES_GET = 11
HEADER_DEV_NAME = 2
FEATURES_HEADER, FEATURES_HW, FEATURES_ACTIVE = 1, 2, 4
BITSET_BITS, BIT, BIT_NAME = 3, 1, 2
NLA_F_NESTED = 0x8000
SIOCETHTOOL = 0x8946  # linux/sockios.h
ETHTOOL_GSET, ETHTOOL_STXCSUM, ETHTOOL_STSO = 0x01, 0x17, 0x1F  # linux/ethtool.h
SPEED_AT, SPEED_HIGH_AT, SET_BYTES = 12, 28, 44  # of struct ethtool_cmd

# ethtool's group names, with the kernel features that each covers.
GROUPS = {
    "rx-checksumming": "rx-checksum", "tx-checksumming": "tx-checksum-*",
    "scatter-gather": "tx-scatter-gather*", "tcp-segmentation-offload": "tx-tcp*-segmentation",
    "generic-segmentation-offload": "tx-generic-segmentation", "generic-receive-offload": "rx-gro",
    "large-receive-offload": "rx-lro", "rx-vlan-offload": "rx-vlan-hw-parse",
    "tx-vlan-offload": "tx-vlan-hw-insert", "ntuple-filters": "rx-ntuple-filter",
    "receive-hashing": "rx-hashing",
}  # fmt: skip
SHORT_NAMES = {
    "rx": "rx-checksumming", "tx": "tx-checksumming", "sg": "scatter-gather", "tso": "tcp-segmentation-offload",
    "gso": "generic-segmentation-offload", "gro": "generic-receive-offload", "lro": "large-receive-offload",
    "rxvlan": "rx-vlan-offload", "txvlan": "tx-vlan-offload", "ntuple": "ntuple-filters", "rxhash": "receive-hashing",
}  # fmt: skip


def features(interface: str) -> dict[str, bool]:
    """Return the features of an interface in the calling thread's network namespace: name to on or off.

    Raises Unsupported if the kernel has no ethtool netlink (before Linux 5.6), Failed with the kernel's message if it
    refuses, for example because the interface does not exist.
    """
    with closing(Netlink(NETLINK_GENERIC)) as kernel:
        try:
            number = family(kernel, "ethtool")
        except LinkError as error:
            raise Unsupported(
                f"this kernel has no ethtool netlink (Linux 5.6): {os.strerror(error.errno)}"
            ) from None
        header = attribute(FEATURES_HEADER | NLA_F_NESTED, attribute(HEADER_DEV_NAME, _text(interface)))
        try:
            answer = _ask(kernel, "read features", number, ETHTOOL_MSG_FEATURES_GET, header)
        except LinkError as error:
            raise Failed(f"the features of {interface} cannot be read: {os.strerror(error.errno)}") from None
    return dict(_named(answer[FEATURES_HW], answer[FEATURES_ACTIVE]))


def complete_packets(netns: int, interface: str) -> None:
    """Switch transmit checksum and segmentation offload off at an interface of the namespace `netns` (a file
    descriptor): what a packet socket gives to the userspace datapath of a switch must be complete."""
    for command in (ETHTOOL_STXCSUM, ETHTOOL_STSO):
        _control(netns, interface, struct.pack("II", command, 0))  # struct ethtool_value


def line_bps(netns: int, interface: str) -> float | None:
    """Return the rate of the line that an interface of the namespace `netns` reports in bit/s, which is nominal for a
    virtual one (a veth: 10 Gbit/s); None if it reports none."""
    try:
        answer = _control(netns, interface, struct.pack("I", ETHTOOL_GSET).ljust(SET_BYTES, b"\0"))
    except OSError:
        return None
    low, high = (struct.unpack_from("H", answer, at)[0] for at in (SPEED_AT, SPEED_HIGH_AT))
    mbits = high << 16 | low
    return None if mbits in (0, 0xFFFF, 0xFFFFFFFF) else mbits * 1e6


def _control(netns: int, interface: str, command: bytes) -> bytes:
    """Carry out a command of ethtool (ioctl) and return it as the kernel leaves it. Raises OSError."""
    value = ctypes.create_string_buffer(command)
    with inside(netns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))  # struct ifreq
        fcntl.ioctl(any_socket, SIOCETHTOOL, request.ljust(40, b"\0"))
    return value.raw


@functools.lru_cache(maxsize=64)  # each round builds the same interfaces again
def _named(hw: bytes, active: bytes) -> dict[str, bool]:
    """Return the features of two bitsets: HW lists all that the kernel knows (some have no name), ACTIVE those on."""
    on = set(_names(active))
    return grouped({name: name in on for name in filter(None, _names(hw))})


def grouped(kernel: dict[str, bool]) -> dict[str, bool]:
    """Add ethtool's groups to the kernel's features.

    A group is on if one of its features is on. A group with a single feature replaces that feature.
    """
    result, done = {}, set[str]()
    for group, pattern in GROUPS.items():
        if members := fnmatch.filter(kernel, pattern):
            result[group] = any(kernel[name] for name in members)
            if len(members) > 1:
                result |= {name: kernel[name] for name in members}
            done.update(members)
    return result | {name: on for name, on in kernel.items() if name not in done}


def family(kernel: Netlink, name: str) -> int:
    """Return the number of a generic netlink family. Raises LinkError if the kernel has none of this name."""
    named = attribute(CTRL_ATTR_FAMILY_NAME, _text(name))
    answer = _ask(kernel, f"find the netlink family {name}", GENL_ID_CTRL, CTRL_CMD_GETFAMILY, named)
    return int(struct.unpack_from("=H", answer[CTRL_ATTR_FAMILY_ID])[0])


def _ask(kernel: Netlink, what: str, family: int, command: int, body: bytes) -> dict[int, bytes]:
    """Return the attributes of the answer to a command of a family. Raises LinkError."""
    # struct genlmsghdr; the answer has one behind its nlmsghdr, too
    [answer] = kernel.ask(request(what, family, 0, struct.pack("=BBH", command, 1, 0) + body))
    return dict(attributes(answer[20:]))


def _names(bitset: bytes) -> tuple[str, ...]:
    bits = dict(attributes(bitset)).get(BITSET_BITS, b"")
    return tuple(
        dict(attributes(bit))[BIT_NAME].rstrip(b"\0").decode()
        for kind, bit in attributes(bits)
        if kind == BIT
    )


def _text(text: str) -> bytes:
    return text.encode() + b"\0"
