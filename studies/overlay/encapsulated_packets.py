"""Encapsulated packets as a Network's description predicts them: what each tunnel adds, and which tunnel removes
it."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

from labkit.measure.topologies.network import kinds
from labkit.measure.topologies.network.model import are_compatible
from labkit.measure.topologies.network.parts import UDP_PORTS, Tunnel

TTL = 64  # net.ipv4.ip_default_ttl


class EncapsulatedPacket(NamedTuple):
    """An IP packet; if a tunnel (`by`) made it, `inner` is its content, after `headers` (name, bytes)."""

    source: str
    target: str
    ttl: int = TTL
    headers: tuple[tuple[str, int], ...] = ()
    inner: EncapsulatedPacket | Frame | None = None
    by: Tunnel | None = None


class Frame(NamedTuple):
    """A packet in an Ethernet frame to the owner of the address `to` (ARP)."""

    to: str
    packet: EncapsulatedPacket


def layers(what: EncapsulatedPacket | Frame) -> list[tuple[str, int]]:
    """Return the headers from the outside in, each with its size."""
    if isinstance(what, Frame):
        return [("Ethernet", kinds.ETHERNET.length_bytes), *layers(what.packet)]
    version = ip_address(what.source).version
    own = (f"IP{'' if version == 4 else 6} {what.source} > {what.target}", kinds.IP[version].length_bytes)
    return [own, *what.headers, *(() if what.inner is None else layers(what.inner))]


def headers(tunnel: Tunnel) -> tuple[tuple[str, int], ...]:
    """Return the headers that a tunnel puts between the outer IP header and its content."""
    if tunnel.kind in UDP_PORTS:
        udp, own = kinds.KINDS[tunnel.kind].headers[:2]
        return (f"UDP {tunnel.udp_port}", udp.length_bytes), (f"{own.name} {tunnel.id}", own.length_bytes)
    if tunnel.kind == "ipip":
        return ()
    key = 0 if tunnel.id is None else kinds.GRE_KEY.length_bytes
    name = "GRE" if tunnel.id is None else f"GRE key {tunnel.id}"
    return ((name, kinds.GRE.length_bytes + key),)


def outer_ttl(tunnel: Tunnel, remote: str, what: EncapsulatedPacket | Frame) -> int:
    """Return the TTL of a tunnel's outer packet if none is configured.

    It is the inner packet's (ip_tunnel_xmit, ip_tunnel.c); for vxlan and geneve the namespace's default, and 1 to a
    multicast group (vxlan_xmit_one, vxlan_core.c).
    """
    if tunnel.kind not in UDP_PORTS:
        return (what.packet if isinstance(what, Frame) else what).ttl
    return 1 if ip_address(remote).is_multicast else TTL


def without_ttl(what: EncapsulatedPacket | Frame) -> EncapsulatedPacket | Frame:
    """Return the packet or frame with TTL 0, for comparisons."""
    if isinstance(what, Frame):
        return what._replace(packet=what.packet._replace(ttl=0))
    return what._replace(ttl=0)


def nesting_depth(what: EncapsulatedPacket | Frame | None) -> int:
    """Return how many packets are nested."""
    if what is None:
        return 0
    return 1 + nesting_depth((what.packet if isinstance(what, Frame) else what).inner)


def decapsulates(tunnel: Tunnel, packet: EncapsulatedPacket) -> bool:
    """Return whether a tunnel decapsulates a packet.

    vxlan checks only the VNI, geneve also the sender, the others both addresses (vxlan_rcv, geneve_lookup,
    ip_tunnel_lookup).
    """
    if packet.by is None or not are_compatible(tunnel, packet.by):
        return False
    from_there = tunnel.kind == "vxlan" or packet.source in tunnel.remotes
    return from_there and (tunnel.kind in UDP_PORTS or tunnel.local in (None, packet.target))
