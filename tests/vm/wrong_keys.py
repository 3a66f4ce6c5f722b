"""Build encrypted links whose ends get different keys, in a lab VM (encrypted_links.py)."""

from __future__ import annotations

import os
from typing import Any

from labkit.measure import topologies
from labkit.measure.topologies.linux_datapaths import ENCRYPTED
from labkit.measure.traffic import ping
from labkit.system.netlink import encryption
from labkit.system.netlink.sockets import Message

add_peer, add_ipsec, add_macsec = encryption.add_wireguard_peer, encryption.add_ipsec, encryption.add_macsec


def other_peer(netns: int, index: int, _key: bytes, *where: Any) -> None:
    add_peer(netns, index, os.urandom(32), *where)


def other_ipsec(netns: int, messages: list[Message]) -> None:
    """Replace the keys, which follow the algorithm's name and two lengths."""
    spoilt = []
    for one in messages:
        at = one.body.find(encryption.AEAD)
        key = at + 64 + 8
        body = one.body[:key] + os.urandom(20) + one.body[key + 20 :] if at >= 0 else one.body
        spoilt.append(Message(one.what, body))
    add_ipsec(netns, spoilt)


def other_macsec(netns: int, index: int, key: bytes, peer: int, _peer_key: bytes) -> None:
    add_macsec(netns, index, key, peer, os.urandom(16))


def sentences() -> dict[str, str]:
    """Return for each topology what the reachability check says. From then on, no ends of this process agree."""
    encryption.add_wireguard_peer = other_peer
    encryption.add_ipsec = other_ipsec
    encryption.add_macsec = other_macsec
    result = {}
    for name in ENCRYPTED:
        with topologies.build(name, topologies.Spec()) as built:
            words = ping.reachable(built.pairs, built.spec.mtu_bytes, built.spec.family, patience_s=3)
            result[name] = f"{words}; {built.why_silent()}"
    return result
