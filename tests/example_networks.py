"""Describe networks for tests: containers behind bridges, joined by tunnels over a routed or switched provider
network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from labkit.measure.topologies.network.parts import (
    Bridge,
    Cable,
    CableEnd,
    Network,
    Node,
    Part,
    Route,
    Tunnel,
)


def site(number: int, mtu_bytes: int = 1450) -> list[Part]:
    """Describe a container c1 (10.0.0.1) at a bridge in the node n1, where its tunnel will be."""
    return [
        Node(f"c{number}", container=True),
        Node(f"n{number}"),
        Bridge(f"n{number}", "br"),
        Cable(
            CableEnd(f"c{number}", "eth0", f"10.0.0.{number}/24"),
            CableEnd(f"n{number}", "port", master="br"),
            mtu_bytes,
        ),
    ]


def routed(tunnel: dict[str, Any], mtu_bytes: int = 1450, provider_mtu_bytes: int = 1500) -> Network:
    """Describe two sites, a router r between them, and a layer 2 tunnel from one to the other."""
    parts: list[Part] = [*site(1, mtu_bytes), *site(2, mtu_bytes), Node("r", forwards=True)]
    for number, other in ((1, 2), (2, 1)):
        parts += [
            Cable(
                CableEnd(f"n{number}", "up", f"192.168.{number}.1/24"),
                CableEnd("r", f"to_n{number}", f"192.168.{number}.254/24"),
            ),
            Route(f"n{number}", f"192.168.{other}.0/24", via=f"192.168.{number}.254"),
            Tunnel(at=f"n{number}", name="tun", remote=f"192.168.{other}.1", master="br", **tunnel),
        ]
    return Network("routed", tuple(parts), (("c1", "c2"),), provider_mtu_bytes)


def switched(remote: str | None = None, learning: bool = True, outside: int = 4) -> Network:
    """Describe three sites on one switch, joined by VXLAN: with a multicast group, or without one by head-end
    replication."""
    own = "192.168.0.{}" if outside == 4 else "fd00:9::{}"
    length, overhead = (24, 50) if outside == 4 else (64, 70)
    parts: list[Part] = [Node("switch"), Bridge("switch", "fabric")]
    for number in (1, 2, 3):
        others = tuple(own.format(other) for other in (1, 2, 3) if other != number)
        parts += [
            *site(number, 1500 - overhead),
            Cable(
                CableEnd(f"n{number}", "up", f"{own.format(number)}/{length}"),
                CableEnd("switch", f"port{number}", master="fabric"),
            ),
            Tunnel(
                "vxlan", f"n{number}", "tun", remote or others, local=own.format(number), id=7,
                link="up", learning=learning, master="br",
            ),
        ]  # fmt: skip
    return Network("switched", tuple(parts), (("c1", "c2"), ("c1", "c3")))


def encrypted(kind: str, outside: int = 4, **fields: Any) -> Network:
    """Describe two containers behind routers that an encrypted tunnel joins. `{n}` in a field: the router's number."""
    own, length = ("192.0.2.{}", 24) if outside == 4 else ("fd00:9::{}", 64)
    parts: list[Part] = []
    for number, other in ((1, 2), (2, 1)):
        more = {
            key: value.format(n=number) if isinstance(value, str) else value for key, value in fields.items()
        }
        parts += [
            Node(f"c{number}", container=True),
            Node(f"n{number}", forwards=True),
            Cable(
                CableEnd(f"c{number}", "eth0", f"10.{number}.0.2/24"),
                CableEnd(f"n{number}", "in", f"10.{number}.0.1/24"),
                1400,
            ),
            Route(f"c{number}", "default", via=f"10.{number}.0.1"),
            Tunnel(kind, f"n{number}", "tun", own.format(other), address=f"10.9.0.{number}/24", **more),
            Route(f"n{number}", f"10.{other}.0.0/24", via=f"10.9.0.{other}"),
        ]
    wan = [CableEnd(f"n{number}", "wan", f"{own.format(number)}/{length}") for number in (1, 2)]
    return Network("encrypted", (*parts, Cable(*wan)), (("c1", "c2"),))


def of_parts(network: Network, parts: Iterable[Part]) -> Network:
    return msgspec.structs.replace(network, parts=tuple(parts))


def changed(network: Network, name: str, node: str | None = None, **fields: Any) -> Network:
    """Return the network with these fields changed in the tunnels, nodes and bridges of this name; `node`: at it."""
    parts = (
        msgspec.structs.replace(part, **fields)
        if getattr(part, "name", None) == name and node in (None, getattr(part, "at", None))
        else part
        for part in network.parts
    )
    return of_parts(network, parts)
