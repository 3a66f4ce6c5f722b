"""Set up and read encryption in the kernel: WireGuard's peers, IPsec's states and policies (xfrm), MACsec's channels.

pyroute2 has neither xfrm nor MACsec. Keys are in requests only: neither messages nor errors show them. Each function
takes a file descriptor of the network namespace. They raise LinkError if the kernel refuses, OSError if it has no such
protocol. Sources: linux/wireguard.h, linux/xfrm.h, linux/if_macsec.h.
"""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_address
from typing import NamedTuple

from labkit.system.netlink.dumps import NLM_F_DUMP
from labkit.system.netlink.ethtool import NETLINK_GENERIC, NLA_F_NESTED, family
from labkit.system.netlink.messages import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Message
from labkit.system.netlink.netns import inside
from labkit.system.netlink.sockets import LinkError, Netlink, attribute, attributes, request

NETLINK_XFRM = 6  # linux/netlink.h
WG_CMD_GET_DEVICE, WG_CMD_SET_DEVICE = 0, 1
WG_INDEX, WG_PRIVATE_KEY, WG_PUBLIC_KEY, WG_LISTEN_PORT, WG_FWMARK, WG_PEERS = 1, 3, 4, 6, 7, 8
PEER_PUBLIC_KEY, PEER_ENDPOINT, PEER_HANDSHAKE, PEER_ALLOWED_IPS = 1, 4, 6, 9
ALLOWED_FAMILY, ALLOWED_ADDRESS, ALLOWED_PREFIX = 1, 2, 3
SESSION_S = 180  # that a handshake of WireGuard lasts (REJECT_AFTER_TIME, drivers/net/wireguard/messages.h)

XFRM_MSG_NEWSA, XFRM_MSG_GETSA, XFRM_MSG_NEWPOLICY = 0x10, 0x12, 0x13
XFRMA_TMPL, XFRMA_ALG_AEAD, XFRMA_REPLAY_ESN_VAL, XFRMA_IF_ID = 5, 18, 23, 31
XFRM_STATE_AF_UNSPEC, XFRM_STATE_ESN = 32, 128
XFRM_MODES = ("transport", "tunnel")
XFRM_DIRECTIONS = ("in", "out", "fwd")
# linux/in.h, linux/in6.h: level and numbers of the options IP_MTU and IP_XFRM_POLICY
MTU_OPTIONS = {4: (socket.IPPROTO_IP, 14, 17), 6: (socket.IPPROTO_IPV6, 24, 35)}
AEAD = b"rfc4106(gcm(aes))"
# The most that ESP adds: outer IPv6, UDP (RFC 3948), SPI and number, IV, padding with trailer, ICV (RFC 4303, RFC 4868)
MOST_ADDED_BYTES = 40 + 8 + 8 + 16 + (15 + 2) + 32
AEAD_KEY_BYTES, AEAD_ICV_BYTES = 20, 16  # AES-128 and its salt of 4 bytes (RFC 4106, section 8.1)
# As many packets may overtake each other: the sender's CPUs take numbers from one counter.
WINDOW_WORDS = 32

MACSEC_CMD_GET_TXSC, MACSEC_CMD_ADD_RXSC, MACSEC_CMD_ADD_TXSA, MACSEC_CMD_ADD_RXSA = 0, 1, 4, 7
MACSEC_INDEX, MACSEC_RXSC, MACSEC_SA, MACSEC_RXSC_LIST = 1, 2, 3, 6
RXSC_SCI, RXSC_ACTIVE, RXSC_STATS = 1, 2, 4
RXSC_STATS_NOT_VALID = 8
SA_NUMBER, SA_ACTIVE, SA_PACKET_NUMBER, SA_KEY, SA_KEY_ID = 1, 2, 3, 4, 5

_selector = struct.Struct("=16s16sHHHHHBBB3xiI")  # struct xfrm_selector
_id = struct.Struct("=16s4sB3x")  # struct xfrm_id
_FOREVER = struct.pack("=8Q", *[(1 << 64) - 1] * 4, 0, 0, 0, 0)  # struct xfrm_lifetime_cfg: XFRM_INF
_UNUSED = bytes(32)  # struct xfrm_lifetime_cur


class WireguardDevice(NamedTuple):
    """A WireGuard interface: its public key and UDP port, and its peers' outer addresses. `handshakes`: the peers
    that answered in the last SESSION_S. `mark`: of its outer packets."""

    public_key: bytes
    port: int
    remotes: list[str]
    handshakes: int
    mark: int


class Association(NamedTuple):
    """A security association of ESP (RFC 4303, without its key): its outer addresses, mode, the interface ID of the
    xfrm device that it belongs to (0: none), and how many packets were not authentic."""

    source: str
    target: str
    mode: str
    interface_id: int
    rejected_count: int = 0


@contextmanager
def _socket(netns: int, protocol: int) -> Iterator[Netlink]:
    with inside(netns):
        kernel = Netlink(protocol)
    with closing(kernel):
        yield kernel


def _command(
    kernel: Netlink, of: str, command: int, body: bytes, what: str, flags: int = NLM_F_ACK
) -> Message:
    """Return a request of a generic netlink family (struct genlmsghdr)."""
    return request(what, family(kernel, of), flags, struct.pack("=BBH", command, 1, 0) + body)


def _nested(kind: int, content: bytes) -> bytes:
    return attribute(kind | NLA_F_NESTED, content)


def _number(kind: int, number: int) -> bytes:
    return attribute(kind, struct.pack("=I", number))


def start_wireguard(netns: int, index: int, private_key: bytes, port: int) -> bytes:
    """Give a WireGuard interface its private key and UDP port; return the public key, which the kernel computes."""
    body = _number(WG_INDEX, index) + attribute(WG_PRIVATE_KEY, private_key)
    body += attribute(WG_LISTEN_PORT, struct.pack("=H", port))
    with _socket(netns, NETLINK_GENERIC) as kernel:
        what = f"give WireGuard interface {index} a key"
        kernel.do(_command(kernel, "wireguard", WG_CMD_SET_DEVICE, body, what))
    return wireguard(netns, index).public_key


def add_wireguard_peer(netns: int, index: int, public_key: bytes, remote: str, port: int) -> None:
    """Add a peer to a WireGuard interface: its key and outer address. All inner addresses are allowed."""
    address = ip_address(remote)
    # struct sockaddr_in, struct sockaddr_in6
    form, number = ("=H2s4s8x", socket.AF_INET) if address.version == 4 else ("=H2s4x16s4x", socket.AF_INET6)
    endpoint = struct.pack(form, number, port.to_bytes(2), address.packed)
    everything = b"".join(
        _nested(
            0,
            attribute(ALLOWED_FAMILY, struct.pack("=H", version))
            + attribute(ALLOWED_ADDRESS, bytes(length_bytes))
            + attribute(ALLOWED_PREFIX, b"\0"),
        )
        for version, length_bytes in ((socket.AF_INET, 4), (socket.AF_INET6, 16))
    )
    peer = attribute(PEER_PUBLIC_KEY, public_key) + attribute(PEER_ENDPOINT, endpoint)
    peer += _nested(PEER_ALLOWED_IPS, everything)
    body = _number(WG_INDEX, index) + _nested(WG_PEERS, _nested(0, peer))
    with _socket(netns, NETLINK_GENERIC) as kernel:
        kernel.do(_command(kernel, "wireguard", WG_CMD_SET_DEVICE, body, f"add WireGuard peer {remote}"))


def wireguard(netns: int, index: int) -> WireguardDevice:
    """Read a WireGuard interface."""
    with _socket(netns, NETLINK_GENERIC) as kernel:
        what = f"read WireGuard interface {index}"
        asked = _command(kernel, "wireguard", WG_CMD_GET_DEVICE, _number(WG_INDEX, index), what, NLM_F_DUMP)
        # the first has the device, further ones more peers
        device, *more = [dict(attributes(answer[20:])) for answer in kernel.ask(asked)]
    lists = [one.get(WG_PEERS, b"") for one in (device, *more)]
    peers = [dict(attributes(peer)) for one in lists for _, peer in attributes(one)]
    ended = time.time() - SESSION_S
    return WireguardDevice(
        device.get(WG_PUBLIC_KEY, b""),
        int.from_bytes(device[WG_LISTEN_PORT], "little"),
        [_endpoint(peer[PEER_ENDPOINT]) for peer in peers if PEER_ENDPOINT in peer],
        sum(int.from_bytes(peer.get(PEER_HANDSHAKE, b"")[:8], "little") > ended for peer in peers),
        int.from_bytes(device.get(WG_FWMARK, b""), "little"),
    )


def _endpoint(data: bytes) -> str:
    [version] = struct.unpack_from("=H", data)
    return str(ip_address(data[4:8] if version == socket.AF_INET else data[8:24]))


def _packed(address: str) -> bytes:
    return ip_address(address).packed.ljust(16, b"\0")


def _family(address: str) -> int:
    return socket.AF_INET if ":" not in address else socket.AF_INET6


def new_association(one: Association, spi: int, key: bytes) -> Message:
    """Return a request that adds a security association with AES-GCM (RFC 4106) and extended sequence numbers."""
    mode = XFRM_MODES.index(one.mode)
    flags = XFRM_STATE_ESN | (XFRM_STATE_AF_UNSPEC if one.mode == "tunnel" else 0)
    body = _selector.pack(bytes(16), bytes(16), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    body += _id.pack(_packed(one.target), spi.to_bytes(4), socket.IPPROTO_ESP) + _packed(one.source)
    body += _FOREVER + _UNUSED + bytes(12)  # struct xfrm_stats
    # sequence number of the request, request ID, family, mode, replay window (in an attribute), flags
    body += struct.pack("=IIHBBB7x", 0, spi >> 1, _family(one.target), mode, 0, flags)
    algorithm = struct.pack("=64sII", AEAD, 8 * len(key), 8 * AEAD_ICV_BYTES) + key
    window = struct.pack("=6I", WINDOW_WORDS, 0, 0, 0, 0, 32 * WINDOW_WORDS) + bytes(4 * WINDOW_WORDS)
    body += attribute(XFRMA_ALG_AEAD, algorithm) + attribute(XFRMA_REPLAY_ESN_VAL, window)
    what = f"add ESP from {one.source} to {one.target}"
    return _new(what, XFRM_MSG_NEWSA, body, one.interface_id)


def new_policy(direction: str, one: Association, spi: int, between: tuple[str, str] | int) -> Message:
    """Return a request that sends packets through a security association, or demands that they came through it.

    direction: out, in, or fwd (in, for another host). between: the addresses of the packets, or an IP version, all of
    whose packets are meant.
    """
    if isinstance(between, int):
        selector = _selector_of_all(socket.AF_INET if between == 4 else socket.AF_INET6)
    else:
        source, target = map(_packed, between)
        length = ip_address(between[0]).max_prefixlen
        selector = _selector.pack(target, source, 0, 0, 0, 0, _family(between[0]), length, length, 0, 0, 0)
    body = _policy(direction, selector)
    template = _id.pack(_packed(one.target), bytes(4), socket.IPPROTO_ESP)
    template += struct.pack("=H2x16sI", _family(one.target), _packed(one.source), spi >> 1)
    template += struct.pack("=BBBxIII", XFRM_MODES.index(one.mode), 0, 0, *[0xFFFFFFFF] * 3)
    body += attribute(XFRMA_TMPL, template)
    what = f"add policy of ESP from {one.source} to {one.target}"
    return _new(what, XFRM_MSG_NEWPOLICY, body, one.interface_id)


def _selector_of_all(family: int) -> bytes:
    return _selector.pack(bytes(16), bytes(16), 0, 0, 0, 0, family, 0, 0, 0, 0, 0)


def _policy(direction: str, selector: bytes) -> bytes:
    """Return a struct xfrm_userpolicy_info that lets the packets of a selector pass."""
    # priority, index, direction, action (allow), flags, share
    rest = struct.pack("=IIBBBB4x", 0, 0, XFRM_DIRECTIONS.index(direction), 0, 0, 0)
    return selector + _FOREVER + _UNUSED + rest


def added_bytes(netns: int, source: str, target: str) -> int:
    """Return what policies of IPsec add to a full packet of TCP between two addresses, by how much they lower its MTU
    (`mtus`). It is 0 if another difference of the two routes is in it, as that of their interfaces.

    It includes what no longer packet could use of a cipher's block, so it may be some bytes more than is sent.
    """
    plain_bytes, mtu_bytes = mtus(netns, source, target)
    added = plain_bytes - mtu_bytes
    return added if 0 < added <= MOST_ADDED_BYTES else 0


def mtus(netns: int, source: str, target: str) -> tuple[int, int]:
    """Return the MTU of packets of TCP between two addresses, as the kernel computes it for any cipher and mode: of a
    socket whose own policy takes none of IPsec's, and of any other one. Both are 0 if nothing can be sent.

    The second one is that of lo while a policy waits for its keys: the route drops what it sends.
    """
    level, mtu, policy = MTU_OPTIONS[ip_address(target).version]
    family = _family(target)
    found = []
    try:
        for own in (True, False):
            with inside(netns):
                one = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP)
            with one:
                if own:
                    one.setsockopt(level, policy, _policy("out", _selector_of_all(family)))
                one.bind((source, 0))
                one.connect((target, 0))
                found.append(one.getsockopt(level, mtu))
    except (OSError, LinkError):  # a kernel without xfrm, or nothing can be sent
        return 0, 0
    return found[0], found[1]


def _new(what: str, kind: int, body: bytes, interface_id: int) -> Message:
    body += _number(XFRMA_IF_ID, interface_id) if interface_id else b""
    return request(what, kind, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, body)


def add_ipsec(netns: int, messages: list[Message]) -> None:
    """Add security associations and policies."""
    with _socket(netns, NETLINK_XFRM) as kernel:
        kernel.do(*messages)


def associations(netns: int) -> list[Association]:
    """List the security associations of a namespace; none if the kernel has no xfrm, or this user may not see them."""
    try:
        with _socket(netns, NETLINK_XFRM) as kernel:
            answers = kernel.ask(request("list security associations", XFRM_MSG_GETSA, NLM_F_DUMP, b""))
    except (OSError, LinkError):
        return []
    return [_association(answer[16:]) for answer in answers]


def _association(state: bytes) -> Association:
    """Decode a struct xfrm_usersa_info and what follows it."""
    target, _spi, _protocol = _id.unpack_from(state, _selector.size)
    source = state[80:96]
    version, mode = struct.unpack_from("=HB", state, 212)
    length = 4 if version == socket.AF_INET else 16
    interface_id = dict(attributes(state[224:])).get(XFRMA_IF_ID, b"")
    near, far = (str(ip_address(address[:length])) for address in (source, target))
    name = XFRM_MODES[mode] if mode < len(XFRM_MODES) else str(mode)
    # struct xfrm_stats: replay_window, replay, integrity_failed
    [rejected] = struct.unpack_from("=I", state, 200)
    return Association(near, far, name, int.from_bytes(interface_id, "little"), rejected)


def add_macsec(netns: int, index: int, key: bytes, peer: int, peer_key: bytes) -> None:
    """Give a MACsec interface the key with which it sends, and that of its peer, whose channel (SCI) is `peer`."""

    def association(key: bytes, number: int) -> bytes:
        fields = attribute(SA_NUMBER, b"\0") + _number(SA_PACKET_NUMBER, 1) + attribute(SA_ACTIVE, b"\1")
        return _nested(MACSEC_SA, fields + attribute(SA_KEY, key) + attribute(SA_KEY_ID, number.to_bytes(16)))

    own, sci = _number(MACSEC_INDEX, index), attribute(RXSC_SCI, struct.pack("=Q", peer))
    with _socket(netns, NETLINK_GENERIC) as kernel:
        kernel.do(
            *(
                _command(kernel, "macsec", command, own + body, f"add a channel to MACsec interface {index}")
                for command, body in (
                    (MACSEC_CMD_ADD_TXSA, association(key, 0)),
                    (MACSEC_CMD_ADD_RXSC, _nested(MACSEC_RXSC, sci + attribute(RXSC_ACTIVE, b"\1"))),
                    (MACSEC_CMD_ADD_RXSA, _nested(MACSEC_RXSC, sci) + association(peer_key, 1)),
                )
            )
        )


def macsec_rejected(netns: int) -> int:
    """Return how many frames the MACsec interfaces of a namespace received that were not authentic."""
    result = 0
    with _socket(netns, NETLINK_GENERIC) as kernel:
        asked = _command(kernel, "macsec", MACSEC_CMD_GET_TXSC, b"", "read MACsec's counters", NLM_F_DUMP)
        for answer in kernel.ask(asked):
            for _, channel in attributes(dict(attributes(answer[20:])).get(MACSEC_RXSC_LIST, b"")):
                counters = dict(attributes(dict(attributes(channel)).get(RXSC_STATS, b"")))
                result += int.from_bytes(counters.get(RXSC_STATS_NOT_VALID, b""), "little")
    return result
