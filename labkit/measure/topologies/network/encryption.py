"""Give the ends of encrypted links their keys: WireGuard, ESP in tunnel and transport mode, MACsec.

Keys are made for each network that is built, and the kernel alone keeps them: no description, row, file or argument
list has one.
"""

import errno
import secrets
from collections.abc import Iterator, Mapping

from labkit.common.errors import Unsupported
from labkit.measure.endpoints import Namespace
from labkit.measure.topologies.network.kinds import KINDS, remedy
from labkit.measure.topologies.network.model import DescribedInterface, Key, NetworkIndex
from labkit.measure.topologies.network.parts import Tunnel
from labkit.system import netlink
from labkit.system.netlink import encryption

Ends = tuple[DescribedInterface, DescribedInterface]
WIREGUARD_KEY_BYTES = 32  # Curve25519 (RFC 7748)
MACSEC_KEY_BYTES = {"GCM-AES-128": 16, "GCM-AES-256": 32}
FIRST_SPI = 0x1000  # RFC 4303 reserves 0 to 255
OPTIONS = {"esp": "INET_ESP and CRYPTO_GCM", "macsec": "MACSEC and CRYPTO_GCM", "wireguard": "WIREGUARD"}
# No such protocol (af_netlink.c, xfrm_state.c), family (genetlink.c), cipher (xfrm_user.c, crypto/api.c)
ABSENT = (errno.EPROTONOSUPPORT, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOENT)


def begin(
    described: NetworkIndex, index: Mapping[Key, int], space: Mapping[str, Namespace], devices: bool
) -> None:
    """Encrypt ESP, or what the built `devices` send.

    Raises Unsupported if this kernel lacks a protocol or a cipher.
    """
    spi, what = FIRST_SPI, ""
    try:
        for what, ends in _pairs(described):
            if what == "esp" and not devices:
                _esp(ends, space, spi)
                spi += 2
            elif what == "wireguard" and devices:
                _wireguard(ends, index, space)
            elif what == "macsec" and devices:
                _macsec(ends, index, space)
    except (OSError, netlink.LinkError) as error:
        if error.errno not in ABSENT:
            raise
        raise Unsupported(
            f"this kernel has no {what} (it needs CONFIG_{OPTIONS[what]}): {remedy(what)}"
        ) from None


def rejection(described: NetworkIndex, index: Mapping[Key, int], space: Mapping[str, Namespace]) -> str:
    """Return why an end does not understand the other one, or "": their keys differ."""
    for what, ends in _pairs(described):
        for end in ends:
            netns = space[end.at].fd
            if what == "wireguard":
                is_deaf = not encryption.wireguard(netns, index[end.key]).handshakes
            elif what == "macsec":
                is_deaf = encryption.macsec_rejected(netns) > 0
            else:
                is_deaf = any(one.rejected_count for one in encryption.associations(netns))
            if is_deaf:
                others = ", ".join(other.at for other in ends if other is not end)
                lost = ", or the path between them loses packets" if what == "wireguard" else ""
                return f"{end.at} cannot read what {others} sends by {what}: their keys differ{lost}"
    return ""


def _pairs(described: NetworkIndex) -> Iterator[tuple[str, Ends]]:
    """Yield what encrypts, and both ends: each tunnel once, then the interfaces of ESP in transport mode."""
    done: set[Key] = set()
    for one in described.tunnels:
        if KINDS[one.kind].is_encrypted and one.key not in done:
            other = described.other_end(one)
            assert other is not None, "it was checked"
            done.add(other.key)
            yield ("esp" if one.kind == "xfrm" else one.kind), (one, other)
    for part in described.esp:
        yield "esp", (described.interfaces[part.one], described.interfaces[part.other])


def _wireguard(ends: Ends, index: Mapping[Key, int], space: Mapping[str, Namespace]) -> None:
    tunnels = [end.part for end in ends if isinstance(end.part, Tunnel)]
    places = [(space[end.at].fd, index[end.key]) for end in ends]
    ports = [tunnel.udp_port or 0 for tunnel in tunnels]
    public = [
        encryption.start_wireguard(*place, secrets.token_bytes(WIREGUARD_KEY_BYTES), port)
        for place, port in zip(places, ports, strict=True)
    ]
    for place, far, tunnel, far_port in zip(places, reversed(public), tunnels, reversed(ports), strict=True):
        encryption.add_wireguard_peer(*place, far, tunnel.remotes[0], far_port)


def _macsec(ends: Ends, index: Mapping[Key, int], space: Mapping[str, Namespace]) -> None:
    ciphers = [end.part.cipher for end in ends if isinstance(end.part, Tunnel)]
    keys = [secrets.token_bytes(MACSEC_KEY_BYTES[cipher]) for cipher in ciphers]
    channels = []
    for end in ends:
        links = {link.index: link for link in netlink.links(space[end.at].netlink)}
        channels.append(links[index[end.key]].data["IFLA_MACSEC_SCI"])
    for end, own, far, channel in zip(ends, keys, keys[::-1], channels[::-1], strict=True):
        encryption.add_macsec(space[end.at].fd, index[end.key], own, channel, far)


def _esp(ends: Ends, space: Mapping[str, Namespace], spi: int) -> None:
    """Add an association in each direction, in both namespaces, and the policies that use them."""
    tunnel = ends[0].part
    if isinstance(tunnel, Tunnel):
        mode, number, near, far = "tunnel", tunnel.id or 0, tunnel.local or "", tunnel.remotes[0]
    else:
        mode, number = "transport", 0
        near, far = (str(end.address.ip) for end in ends if end.address is not None)
    there = encryption.Association(near, far, mode, number)
    back = encryption.Association(far, near, mode, number)
    keyed = [
        encryption.new_association(one, spi + at, secrets.token_bytes(encryption.AEAD_KEY_BYTES))
        for at, one in enumerate((there, back))
    ]
    for end, leaving, arriving in ((ends[0], there, back), (ends[1], back, there)):
        policies = [
            encryption.new_policy(
                direction, one, spi, (one.source, one.target) if mode == "transport" else version
            )
            for direction, one in (("out", leaving), ("in", arriving), ("fwd", arriving))
            for version in ((4, 6) if mode == "tunnel" else (0,))
        ]
        encryption.add_ipsec(space[end.at].fd, [*keyed, *policies])
