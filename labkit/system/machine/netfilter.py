"""List the nftables rules of this network namespace over nfnetlink (nft may be missing), and loaded iptables
tables."""

from __future__ import annotations

import hashlib
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# linux/netfilter/nfnetlink.h, nf_tables.h, linux/netlink.h
NFNL_SUBSYS_NFTABLES, NFT_MSG_GETCHAIN, NFT_MSG_GETRULE = 10, 4, 7
NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_HANDLE, NFTA_RULE_POSITION = 1, 2, 3, 6
NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_HOOK = 1, 3, 4
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 1, 0x300, 2, 3
FAMILIES = {0: "unspec", 1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
UNSTABLE = (NFTA_RULE_HANDLE, NFTA_RULE_POSITION)
HEAD = 20  # bytes of nlmsghdr and nfgenmsg
NETLINK_NETFILTER = 12


def rules() -> dict[str, str]:
    """Return each chain with its number of rules and a digest of them, and each loaded iptables table."""
    result: dict[str, str] = {}
    with suppress(OSError):
        for family, attributes in _dump(NFT_MSG_GETCHAIN):
            kind = "base chain" if NFTA_CHAIN_HOOK in attributes else "chain"
            name = f"{_word(attributes.get(NFTA_CHAIN_TABLE))} {_word(attributes.get(NFTA_CHAIN_NAME))}"
            result[f"nftables {family} {name}"] = f"{kind} without rules"
        rules_of: dict[str, list[bytes]] = {}
        for family, attributes in _dump(NFT_MSG_GETRULE):
            words = [_word(attributes.get(one)) for one in (NFTA_RULE_TABLE, NFTA_RULE_CHAIN)]
            own = [
                _without_counters(value) for kind, value in sorted(attributes.items()) if kind not in UNSTABLE
            ]
            rules_of.setdefault(" ".join(["nftables", family, *words]), []).append(b"".join(own))
        for name, own in rules_of.items():
            digest = hashlib.sha256(b";".join(own)).hexdigest()[:8]
            result[name] = f"{len(own)} rule{'s' * (len(own) != 1)}, digest {digest}"
    for file in ("ip_tables_names", "ip6_tables_names", "arp_tables_names"):
        with suppress(OSError):
            for name in Path("/proc/thread-self/net", file).read_text().split():
                result[f"{file.removesuffix('_names').replace('_', '')} {name}"] = "loaded"
    return result


def _without_counters(value: bytes) -> bytes:
    """Cut a rule's expressions at its packet counter, whose numbers change."""
    at = value.find(b"counter\0")
    return value if at < 0 else value[:at] + b"counter"


def _word(value: bytes | None) -> str:
    return (value or b"?").rstrip(b"\0").decode(errors="replace")


def _dump(message: int) -> Iterator[tuple[str, dict[int, bytes]]]:
    """Yield family and attributes of every object of a type."""
    kind = NFNL_SUBSYS_NFTABLES << 8 | message
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER) as ask:
        ask.settimeout(5.0)
        ask.send(struct.pack("=IHHIIBBH", HEAD, kind, NLM_F_REQUEST | NLM_F_DUMP, 1, 0, 0, 0, 0))
        while True:
            data, at = ask.recv(1 << 18), 0
            while at + 16 <= len(data):
                length, answer = struct.unpack_from("=IH", data, at)
                if answer in (NLMSG_DONE, NLMSG_ERROR) or length < HEAD:
                    return
                yield (
                    FAMILIES.get(data[at + 16], str(data[at + 16])),
                    dict(_attributes(data[at + HEAD : at + length])),
                )
                at += (length + 3) & ~3


def _attributes(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < 4:
            return
        yield kind & 0x3FFF, body[at + 4 : at + length]
        at += (length + 3) & ~3
