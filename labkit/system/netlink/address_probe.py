"""Find out whether an address is in use on a link, before an interface gets it.

ARP probes ask for an IPv4 address (RFC 5227), and an ARP announcement tells of it afterwards. For an IPv6 address the
probe is that of duplicate address detection (RFC 4862).
"""

import socket
import struct
import time
from ipaddress import IPv4Address, IPv6Address

from labkit.common.packets import internet_checksum

ETH_P_ARP, ETH_P_IPV6 = 0x0806, 0x86DD
PROBES, APART_S = 4, 0.25  # a port of a new bridge may begin to forward a little later
_ARP = struct.Struct("!HHBBH6s4s6s4s")  # RFC 826, for Ethernet and IPv4
SOLICITATION, ADVERTISEMENT = 135, 136  # RFC 4861
_NEIGHBOUR = struct.Struct("!IHBB16x16sBBHI16s")  # IPv6 from no address; type, code, checksum, flags, target


def announce(interface: str, address: IPv4Address) -> None:
    """Tell all hosts on the link of an interface of the calling thread's namespace that it has `address`, so that they
    forget an earlier holder. Raises OSError when the interface does not exist or is down."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
        link.bind((interface, 0))
        own = link.getsockname()[4]
        link.send(_arp(own, address, address.packed))


def holder(interface: str, address: IPv4Address | IPv6Address) -> str | None:
    """Return the MAC address that answers for `address` on the link of an interface of the calling thread's namespace,
    or None after one second without an answer. The sender has no address in the probe, so no cache learns it.

    Raises OSError when the interface does not exist or is down.
    """
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
        link.bind((interface, ETH_P_ARP if isinstance(address, IPv4Address) else ETH_P_IPV6))
        own = link.getsockname()[4]
        frame = _arp(own, address) if isinstance(address, IPv4Address) else _solicitation(own, address)
        for _ in range(PROBES):
            link.send(frame)
            until = time.monotonic() + APART_S
            while (left := until - time.monotonic()) > 0:
                link.settimeout(left)
                try:
                    data = link.recv(2048)
                except TimeoutError:
                    break
                mac = _answering(data, address)
                if mac and mac != own:
                    return ":".join(f"{byte:02x}" for byte in mac)
    return None


def _arp(own: bytes, address: IPv4Address, sender: bytes = bytes(4)) -> bytes:
    asked = _ARP.pack(1, 0x0800, 6, 4, 1, own, sender, bytes(6), address.packed)
    return b"\xff" * 6 + own + ETH_P_ARP.to_bytes(2) + asked


def _solicitation(own: bytes, address: IPv6Address) -> bytes:
    group = bytes.fromhex("ff0200000000000000000001ff") + address.packed[13:]
    addresses = sum(struct.unpack("!16H", group + address.packed))
    checksum = internet_checksum(addresses + 24 + socket.IPPROTO_ICMPV6 + (SOLICITATION << 8))
    head = b"\x33\x33" + group[12:] + own + ETH_P_IPV6.to_bytes(2)
    words = 6 << 28, 24, socket.IPPROTO_ICMPV6, 255, group, SOLICITATION, 0, checksum, 0, address.packed
    return head + _NEIGHBOUR.pack(*words)


def _answering(data: bytes, address: IPv4Address | IPv6Address) -> bytes | None:
    """Return the MAC address of the host that claims an address in a frame; None if the frame claims none."""
    if isinstance(address, IPv4Address):
        return data[22:28] if data[28:32] == address.packed else None
    says = data[20:21] + data[54:55] == bytes((socket.IPPROTO_ICMPV6, ADVERTISEMENT))
    return data[6:12] if says and data[62:78] == address.packed else None
