"""Find out whether an IPv4 address is in use on a link, before an interface gets it, and announce it afterwards: ARP
probes and an ARP announcement (RFC 5227)."""

import socket
import struct
import time
from ipaddress import IPv4Address

ETH_P_ARP = 0x0806
PROBES, APART_S = 4, 0.25  # a port of a new bridge may begin to forward a little later
_ARP = struct.Struct("!HHBBH6s4s6s4s")  # RFC 826, for Ethernet and IPv4


def announce(interface: str, address: IPv4Address) -> None:
    """Tell all hosts on the link of an interface of the calling thread's namespace that it has `address`, so that they
    forget an earlier holder. Raises OSError when the interface does not exist or is down."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
        link.bind((interface, 0))
        own = link.getsockname()[4]
        told = _ARP.pack(1, 0x0800, 6, 4, 1, own, address.packed, bytes(6), address.packed)
        link.send(b"\xff" * 6 + own + ETH_P_ARP.to_bytes(2) + told)


def holder(interface: str, address: IPv4Address) -> str | None:
    """Return the MAC address that answers for `address` on the link of an interface of the calling thread's namespace,
    or None after one second without an answer. The sender's address in the probe is 0, so no cache learns it.

    Raises OSError when the interface does not exist or is down.
    """
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
        link.bind((interface, ETH_P_ARP))
        own = link.getsockname()[4]
        probe = _ARP.pack(1, 0x0800, 6, 4, 1, own, bytes(4), bytes(6), address.packed)
        frame = b"\xff" * 6 + own + ETH_P_ARP.to_bytes(2) + probe
        for _ in range(PROBES):
            link.send(frame)
            until = time.monotonic() + APART_S
            while (left := until - time.monotonic()) > 0:
                link.settimeout(left)
                try:
                    data = link.recv(2048)
                except TimeoutError:
                    break
                if len(data) < 14 + _ARP.size:
                    continue
                *_, sender, sender_address, _, _ = _ARP.unpack_from(data, 14)
                if sender_address == address.packed and sender != own:
                    return ":".join(f"{byte:02x}" for byte in sender)
    return None
