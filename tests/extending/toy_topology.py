"""A topology: two Linux bridges with a cable between them, the clients at one and the servers at the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from labkit.measure.topologies.base import (
    Spec,
    Topology,
    TopologyKind,
    endpoint_addresses,
    ends_and_between,
    give_addresses,
    pairs_of,
)
from labkit.measure.topologies.veth import port
from labkit.system import netlink

LEFT, RIGHT, CABLE = netlink.FIRST_INDEX + 1, netlink.FIRST_INDEX + 2, netlink.FIRST_INDEX + 3


@contextmanager
def two_bridges(name: str, spec: Spec) -> Iterator[Topology]:
    """Two bridges in one namespace, joined by a veth (veth(4)). Even ends are clients, odd ends are servers."""
    with ends_and_between(spec) as (ends, between):
        between.netlink.do(
            netlink.new_link("bridge", "left", index=LEFT, mtu_bytes=spec.mtu_bytes),
            netlink.new_link("bridge", "right", index=RIGHT, mtu_bytes=spec.mtu_bytes),
            netlink.new_link(
                "veth", "to_right", index=CABLE, mtu_bytes=spec.mtu_bytes, master=LEFT,
                peer={"name": "to_left", "index": CABLE + 1},
            ),
            netlink.set_link(CABLE + 1, master=RIGHT, mtu_bytes=spec.mtu_bytes),
        )  # fmt: skip
        for space, _address, number in endpoint_addresses(spec, ends):
            between.netlink.do(port(spec, space, number, RIGHT if number % 2 else LEFT))
        give_addresses(spec, ends)
        yield Topology(name, spec, pairs_of(spec, ends), [*ends, between])


TWO_BRIDGES = TopologyKind(two_bridges)
