"""The kinds of links: what the kernel calls them, what they add to a packet, and their netlink attributes.

A new kind is one LinkKind: an entry of KINDS here, or of `TopologyKind.links` in another package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.common.errors import BadInput, Isolated, LabkitError, choose
from labkit.measure.topologies.network.parts import UDP_PORTS
from labkit.system import netlink

if TYPE_CHECKING:
    from labkit.measure.topologies.network.parts import Tunnel


class Header(NamedTuple):
    """A header or trailer: its name in drawings, its size, and the source that defines it.

    `multiple`: with the packet inside it fills a multiple of so many bytes, so it may be longer. `within_mtu`: not if
    the packet fills the MTU.
    """

    name: str
    length_bytes: int
    source: str
    multiple: int = 1
    within_mtu: bool = False


ETHERNET = Header("Ethernet", 14, "IEEE 802.3: two addresses and a type; no VLAN tag, no check sequence")
IPV4 = Header("IPv4", 20, "RFC 791, without options")
IPV6 = Header("IPv6", 40, "RFC 8200, without extension headers")
UDP = Header("UDP", 8, "RFC 768")
VXLAN = Header("VXLAN", 8, "RFC 7348, section 5")
GENEVE = Header("Geneve", 8, "RFC 8926, section 3.4, without options")
GRE = Header("GRE", 4, "RFC 2784, without checksum")
GRE_KEY = Header("GRE key", 4, "RFC 2890")
IP = {4: IPV4, 6: IPV6}
# Trailers stand behind their header: what is behind the packet counts as well.
WIREGUARD = (
    Header("WireGuard", 16, "drivers/net/wireguard/messages.h, struct message_data"),
    Header("WireGuard tag", 16, "ChaCha20-Poly1305, RFC 8439"),
    Header(
        "WireGuard padding", 0, "drivers/net/wireguard/send.c, calculate_skb_padding", 16, within_mtu=True
    ),
)
ESP = (
    Header("ESP", 8, "RFC 4303: SPI and sequence number"),
    Header("ESP IV", 8, "RFC 4106, section 3.1"),
    Header("ESP ICV", 16, "RFC 4106, section 6"),
    Header("ESP trailer", 2, "RFC 4303, section 2.4: padding, its length, the next header", 4),
)
MACSEC = (
    Header("MACsec", 16, "IEEE 802.1AE: SecTAG with SCI"),
    Header("MACsec ICV", 16, "IEEE 802.1AE, GCM-AES-128"),
)
# ESP in transport mode (`parts.Esp`), in the place of a kind: it is no link and has no IP header
TRANSPORT = "esp"
# linux/if_link.h (IFLA_MACSEC_…)
MACSEC_ATTRIBUTES = tuple(
    (f"IFLA_MACSEC_{name}", type_)
    for name, type_ in (
        ("UNSPEC", "none"), ("SCI", "uint64"), ("PORT", "be16"), ("ICV_LEN", "uint8"), ("CIPHER_SUITE", "uint64"),
        ("WINDOW", "uint32"), ("ENCODING_SA", "uint8"), ("ENCRYPT", "uint8"), ("PROTECT", "uint8"),
        ("INC_SCI", "uint8"), ("ES", "uint8"), ("SCB", "uint8"), ("REPLAY_PROTECT", "uint8"), ("VALIDATION", "uint8"),
        ("PAD", "hex"), ("OFFLOAD", "uint8"),
    )
)  # fmt: skip
# MACSEC_DEFAULT_CIPHER_ID and MACSEC_CIPHER_ID_GCM_AES_256 of linux/if_macsec.h
MACSEC_CIPHERS = {"GCM-AES-128": 0x0080020001000001, "GCM-AES-256": 0x0080C20001000002}
KEYED = 0x2000  # GRE_KEY of linux/if_tunnel.h, in network order
BLACKHOLE = 2  # NETKIT_DROP of linux/if_link.h


@dataclass(frozen=True)
class LinkKind:
    """A kind of link, under the kernel's name for it.

    A cable has a `peer_attribute` (of IFLA_INFO_DATA), which describes the other end, and may have `policies`: the
    attributes that decide about what arrives at its first and at its other end if no program does. A device on a lower
    device has `modes`, by name, and their `mode_attribute`; a cable can have them, too. A tunnel has `tunnel_data`: its
    attributes, each with what it holds (a key of `held` in `tunnel_attributes`), and `headers` between the outer IP
    header and the inner packet, from the outside in, and the field of its identifier (`id_bits`, `id_name`;
    `needs_id`). `outer`: the IP versions that it has outside; () for a device on a lower device (`link`), whose frames
    it changes. `has_path`: it takes a local address and an interface (`link`); else it has those of the route.
    `is_encrypted`: both ends share keys (`encryption`), which are made when it is built.

    `carries_frames`: it can be a port of a bridge. `attributes`: names and types, for a kind that pyroute2 lacks
    (`netlink.define_kind`). `option`: the kernel's build option, if it has another name. `since`: the first
    release of Linux that has it, if Debian's usual kernel is older. `meaning`: returns the error
    to raise when the kernel refused device `number` on a lower device in a mode.
    """

    name: str
    peer_attribute: str = ""
    policies: tuple[str, ...] = ()
    modes: dict[str, int] = field(default_factory=dict)
    mode_attribute: str = ""
    headers: tuple[Header, ...] = ()
    id_bits: int = 0
    id_name: str = ""
    needs_id: bool = False
    outer: tuple[int, ...] = (4, 6)
    has_path: bool = True
    is_encrypted: bool = False
    carries_frames: bool = True
    tunnel_data: dict[str, str] | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    option: str = ""
    since: str = ""
    meaning: Callable[[netlink.LinkError, str, int], LabkitError] = lambda error, _mode, _number: error

    def __post_init__(self) -> None:
        if self.attributes:
            netlink.define_kind(self.name, self.attributes)

    @property
    def port(self) -> int | None:
        """The UDP port of the kind (IANA), for tunnels in UDP."""
        return UDP_PORTS.get(self.name)

    def tunnel_attributes(self, tunnel: Tunnel, lower: int | None) -> dict[str, Any]:
        """Return the attributes of a tunnel; `lower`: the index of the interface that it is bound to, if any."""
        held: dict[str, Any] = {
            "id": tunnel.id, "keyed": None if tunnel.id is None else KEYED, "local": tunnel.local, "lower": lower,
            "remote": tunnel.remotes[0] if len(tunnel.remotes) == 1 else None, "port": tunnel.udp_port,
            "learning": int(tunnel.learning), "ttl": tunnel.ttl, "mark": None, "cipher": MACSEC_CIPHERS[tunnel.cipher],
            "encrypts": int(tunnel.encrypts), "window": tunnel.replay_window,
            "replay": None if tunnel.replay_window is None else 1,
        }  # fmt: skip
        given = {name: held[what] for name, what in (self.tunnel_data or {}).items()}
        return {
            f"{name}6" if isinstance(value, str) and ":" in value else name: value
            for name, value in given.items()
            if value is not None
        }

    def cable_data(self, mode: str | None, programmed: Sequence[bool]) -> dict[str, int]:
        """Return the attributes of a cable. `programmed`: whether a program decides about what arrives at each end."""
        modes = {self.mode_attribute: self.modes[mode or next(iter(self.modes))]} if self.modes else {}
        return modes | {name: BLACKHOLE for name, one in zip(self.policies, programmed, strict=False) if one}


def _ip(prefix: str) -> dict[str, str]:
    """Return the attributes of gre, gretap and ipip, which take IPv4 outer addresses only; the kernel has other kinds
    for IPv6."""
    held = {
        "LOCAL": "local", "REMOTE": "remote", "LINK": "lower", "TTL": "ttl", "OFLAGS": "keyed", "IFLAGS": "keyed",
        "OKEY": "id", "IKEY": "id", "FWMARK": "mark",
    }  # fmt: skip
    return {f"{prefix}_{name}": what for name, what in held.items()}


def _second_passthru(error: netlink.LinkError, mode: str, number: int) -> LabkitError:
    if mode != "passthru" or not number:
        return error
    return Isolated(
        "macvlan passthru takes one device on a parent; the kernel refused the second"
        f" ({os.strerror(error.errno)}), so two endpoints on one parent cannot communicate"
    )


KINDS: dict[str, LinkKind] = {
    kind.name: kind
    for kind in (
        LinkKind("veth", peer_attribute="VETH_INFO_PEER"),
        LinkKind(  # linux/if_link.h (IFLA_NETKIT_…), numbered from 0; the kernel's own default mode is l3
            "netkit",
            peer_attribute="IFLA_NETKIT_PEER_INFO",
            policies=("IFLA_NETKIT_PEER_POLICY", "IFLA_NETKIT_POLICY"),
            modes={"l2": 0, "l3": 1},
            mode_attribute="IFLA_NETKIT_MODE",
            since="6.7",
            attributes=(
                ("IFLA_NETKIT_UNSPEC", "none"), ("IFLA_NETKIT_PEER_INFO", "info_peer"),
                ("IFLA_NETKIT_PRIMARY", "uint8"), ("IFLA_NETKIT_POLICY", "uint32"),
                ("IFLA_NETKIT_PEER_POLICY", "uint32"), ("IFLA_NETKIT_MODE", "uint32"),
            ),
        ),
        LinkKind("bridge"),
        LinkKind(  # the modes of linux/if_link.h
            "macvlan",
            modes={"private": 1, "vepa": 2, "bridge": 4, "passthru": 8},
            mode_attribute="IFLA_MACVLAN_MODE",
            meaning=_second_passthru,
        ),
        LinkKind("ipvlan", modes={"l2": 0, "l3": 1, "l3s": 2}, mode_attribute="IFLA_IPVLAN_MODE"),
        LinkKind(
            "vxlan", headers=(UDP, VXLAN, ETHERNET), id_bits=24, id_name="VNI", needs_id=True,
            tunnel_data={
                "IFLA_VXLAN_ID": "id", "IFLA_VXLAN_LOCAL": "local", "IFLA_VXLAN_GROUP": "remote",
                "IFLA_VXLAN_LINK": "lower", "IFLA_VXLAN_PORT": "port", "IFLA_VXLAN_LEARNING": "learning",
                "IFLA_VXLAN_TTL": "ttl",
            },
        ),
        LinkKind(
            "geneve", headers=(UDP, GENEVE, ETHERNET), id_bits=24, id_name="VNI", needs_id=True, has_path=False,
            tunnel_data={
                "IFLA_GENEVE_ID": "id", "IFLA_GENEVE_REMOTE": "remote", "IFLA_GENEVE_PORT": "port",
                "IFLA_GENEVE_TTL": "ttl",
            },
        ),
        LinkKind(
            "gre", headers=(GRE,), id_bits=32, id_name="key", carries_frames=False, outer=(4,),
            tunnel_data=_ip("IFLA_GRE"), option="NET_IPGRE",
        ),
        LinkKind(
            "gretap", headers=(GRE, ETHERNET), id_bits=32, id_name="key", outer=(4,),
            tunnel_data=_ip("IFLA_GRE"), option="NET_IPGRE",
        ),
        LinkKind("ipip", carries_frames=False, outer=(4,), tunnel_data=_ip("IFLA_IPIP"), option="NET_IPIP"),
        LinkKind(
            "wireguard", headers=(UDP, *WIREGUARD), carries_frames=False, has_path=False, is_encrypted=True,
            tunnel_data={},
        ),
        LinkKind(  # ESP in tunnel mode
            "xfrm", headers=ESP, id_bits=32, id_name="interface ID", needs_id=True, carries_frames=False,
            is_encrypted=True, option="XFRM_INTERFACE",
            tunnel_data={"IFLA_XFRM_LINK": "lower", "IFLA_XFRM_IF_ID": "id"},
        ),
        LinkKind(
            "macsec", headers=MACSEC, outer=(), is_encrypted=True,
            tunnel_data={
                "IFLA_MACSEC_CIPHER_SUITE": "cipher", "IFLA_MACSEC_ENCRYPT": "encrypts",
                "IFLA_MACSEC_WINDOW": "window", "IFLA_MACSEC_REPLAY_PROTECT": "replay",
            }, attributes=MACSEC_ATTRIBUTES,
        ),
    )
}  # fmt: skip


def option(kind: str) -> str:
    """Return the kernel's build option of a kind of link."""
    return (KINDS[kind].option if kind in KINDS else "") or kind.upper()


def remedy(kind: str) -> str:
    """Return what to do on a kernel without a kind of link, with the newest other one here that is late enough.

    Debian 12's backports have Linux 6.12; its usual kernel is 6.1.
    """
    if kind in KINDS and (since := KINDS[kind].since):
        from labkit.system.qemu import kernels  # needed only where a kernel lacks a kind

        others = (one.release for one in kernels.installed() if one.release != os.uname().release)
        late = [one for one in others if kernels.order(one) >= kernels.order(since)]
        fetched = "labkit kernels get 6.12-cloud-amd64, then where=vm:6.12-cloud-amd64"
        how = f"where=vm:{late[-1]}" if late else fetched
        return f"use Linux {since} or later, here or in a lab VM ({how})"
    return "use a kernel that has it (where=vm:debian boots one in a lab VM)"


def tunnels() -> list[str]:
    return [name for name, kind in KINDS.items() if kind.tunnel_data is not None]


def cables() -> list[str]:
    """Return the names of the kinds whose interfaces have a peer."""
    return [name for name, kind in KINDS.items() if kind.peer_attribute]


def uppers() -> list[str]:
    """Return the names of the kinds that are devices on a lower device."""
    return [name for name, kind in KINDS.items() if kind.modes and not kind.peer_attribute]


def headers(*kinds: str, family: int = 4, key: bool = False) -> tuple[Header, ...]:
    """Return all headers that tunnels put before a packet, from the outside in, the outer IP header first.

    kinds: of nested tunnels, the outermost first; each inner one is in IPv4. The outermost may be TRANSPORT. family:
    of the outermost IP header. key: with a GRE key. Raises BadInput for an unknown kind.
    """
    result: list[Header] = []
    waiting: tuple[Header, ...] = ()
    for kind in kinds:
        if kind == TRANSPORT:
            waiting = ESP
            continue
        if kind not in tunnels():
            raise BadInput(f"{kind} is not a kind of tunnel: {choose(kind, tunnels())}")
        if KINDS[kind].outer:
            result += [IPV4 if result else IP[family], *waiting]
            waiting = ()
        for header in KINDS[kind].headers:
            result += [header, GRE_KEY] if key and header is GRE else [header]
    return (*result, *waiting)


def around(added: Sequence[Header], inner_bytes: int, *, fills_mtu: bool = True) -> tuple[Header, ...]:
    """Return the headers of an inner packet of this length, with padding. `fills_mtu`: it is as long as may be."""
    result: list[Header] = []
    for header in reversed(added):
        length_bytes = header.length_bytes
        if not (header.within_mtu and fills_mtu):
            length_bytes += -(inner_bytes + length_bytes) % header.multiple
        inner_bytes += length_bytes
        result.insert(0, header._replace(length_bytes=length_bytes))
    return tuple(result)


def within(added: Sequence[Header], outer_bytes: int) -> tuple[Header, ...]:
    """Return the headers of the longest inner packet that fits into this MTU.

    What does not fill a multiple is in the padding (xfrm_state_mtu, net/xfrm/xfrm_state.c).
    """
    inner_bytes = outer_bytes - length_bytes(added)
    while (spare := outer_bytes - inner_bytes - length_bytes(used := around(added, inner_bytes))) < 0:
        inner_bytes -= 1
    return tuple(
        one._replace(length_bytes=one.length_bytes + spare)
        if one.multiple > 1 and not one.within_mtu
        else one
        for one in used
    )


def overhead_bytes(*kinds: str, family: int = 4, key: bool = False) -> int:
    """Return the bytes that nested tunnels add. Their MTU is smaller than their path's by this number."""
    return length_bytes(headers(*kinds, family=family, key=key))


def length_bytes(added: Sequence[Header]) -> int:
    return sum(header.length_bytes for header in added)


def arithmetic(mtu_bytes: int, at: str, added: Sequence[Header]) -> str:
    """Write what is left of the MTU of interface `at` as an equation: `1500 (lc1_sc2) - 20 (IPv4) - 4 (GRE) =
    1476`."""
    terms = [f"{mtu_bytes} ({at})", *(f"{header.length_bytes} ({header.name})" for header in added)]
    return f"{' - '.join(terms)} = {mtu_bytes - length_bytes(added)}"
