"""Packets in packets, as a Network's description says that they will be: what each tunnel puts around them, and which
tunnel takes it off again."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

from labkit.measure.topologies.network import encapsulation
from labkit.measure.topologies.network.encapsulation import PORTS
from labkit.measure.topologies.network.model import port, remotes
from labkit.measure.topologies.network.parts import Tunnel

TTL = 64  # net.ipv4.ip_default_ttl


class EncapsulatedPacket(NamedTuple):
    """An IP packet; `inner` is what a tunnel has put into it, behind `headers` (name, bytes)."""

    source: str
    target: str
    ttl: int = TTL
    headers: tuple[tuple[str, int], ...] = ()
    inner: EncapsulatedPacket | Frame | None = None
    by: Tunnel | None = None


class Frame(NamedTuple):
    """A packet in an Ethernet frame to whoever answers for the address `to` (ARP)."""

    to: str
    packet: EncapsulatedPacket


def layers(what: EncapsulatedPacket | Frame) -> list[tuple[str, int]]:
    """The headers from the outside in, each with its size."""
    if isinstance(what, Frame):
        return [("Ethernet", encapsulation.ETHERNET.length_bytes), *layers(what.packet)]
    version = ip_address(what.source).version
    own = (
        f"IP{'' if version == 4 else 6} {what.source} > {what.target}",
        encapsulation.IP[version].length_bytes,
    )
    return [own, *what.headers, *(() if what.inner is None else layers(what.inner))]


def headers(tunnel: Tunnel) -> tuple[tuple[str, int], ...]:
    """What a tunnel puts between the outer IP header and what it carries."""
    if tunnel.kind in PORTS:
        udp, own = encapsulation.HEADERS[tunnel.kind][:2]
        return (f"UDP {port(tunnel)}", udp.length_bytes), (f"{own.name} {tunnel.id}", own.length_bytes)
    if tunnel.kind == "ipip":
        return ()
    key = 0 if tunnel.id is None else encapsulation.GRE_KEY.length_bytes
    name = "GRE" if tunnel.id is None else f"GRE key {tunnel.id}"
    return ((name, encapsulation.GRE.length_bytes + key),)


def outer_ttl(tunnel: Tunnel, remote: str, what: EncapsulatedPacket | Frame) -> int:
    """The TTL of the outer packet of a tunnel that was told none: the inner packet's (ip_tunnel_xmit, ip_tunnel.c), of
    vxlan and geneve the namespace's, and 1 to a multicast group (vxlan_xmit_one, vxlan_core.c)."""
    if tunnel.kind not in PORTS:
        return (what.packet if isinstance(what, Frame) else what).ttl
    return 1 if ip_address(remote).is_multicast else TTL


def ageless(what: EncapsulatedPacket | Frame) -> EncapsulatedPacket | Frame:
    """The same whatever its TTL."""
    if isinstance(what, Frame):
        return what._replace(packet=what.packet._replace(ttl=0))
    return what._replace(ttl=0)


def depth(what: EncapsulatedPacket | Frame | None) -> int:
    """How many packets there are, one in the other."""
    if what is None:
        return 0
    return 1 + depth((what.packet if isinstance(what, Frame) else what).inner)


def alike(one: Tunnel, other: Tunnel) -> bool:
    """Whether what one sends is of the other's kind: identifier and port, too."""
    return (one.kind, one.id, port(one)) == (other.kind, other.id, port(other))


def takes(tunnel: Tunnel, packet: EncapsulatedPacket) -> bool:
    """Whether a tunnel takes out what is in a packet: vxlan looks at the VNI alone, geneve at who sent it as well, the
    others at both addresses (vxlan_rcv, geneve_lookup, ip_tunnel_lookup)."""
    if packet.by is None or not alike(tunnel, packet.by):
        return False
    from_there = tunnel.kind == "vxlan" or packet.source in remotes(tunnel)
    return from_there and (tunnel.kind in PORTS or tunnel.local in (None, packet.target))
