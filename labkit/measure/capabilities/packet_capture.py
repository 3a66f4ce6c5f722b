"""Whether labkit can capture packets: a packet socket in a discarded namespace must see one."""

from __future__ import annotations

import errno
import socket
from contextlib import closing

from labkit.measure.capabilities.base import AS_ROOT, Capability, attempt, kernel_with, refused
from labkit.measure.capabilities.links import space
from labkit.system import netlink
from labkit.system.recording.packet_ring import Ring

LOST = "no packet can be followed from hop to hop"


def capturing() -> list[Capability]:
    """Try packet sockets."""
    return [attempt("packets", "packet capture", _sees_one, LOST, _remedy)]


def _sees_one() -> str:
    with space() as here:
        here.socket.do(netlink.set_link(1))
        with closing(Ring(here.fd, "lo", 256, 1)) as ring:
            with netlink.inside(here.fd), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"labkit", ("127.0.0.1", 9))  # discard (RFC 863); nobody listens
            seen, _dropped = ring.counts()
    if not seen:
        raise refused(errno.EIO, "a packet socket did not see the packet that was sent")
    return "with kernel timestamps and a count of lost packets"


def _remedy(number: int) -> str:
    if number in (errno.EPERM, errno.EACCES):
        return AS_ROOT
    return kernel_with("PACKET")
