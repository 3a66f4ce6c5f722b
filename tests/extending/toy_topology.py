"""A topology: two Linux bridges with a cable between them, the clients at one and the servers at the other."""

from __future__ import annotations

from labkit.measure.topologies.base import BETWEEN, Spec, TopologyKind, numbers
from labkit.measure.topologies.linux_datapaths import ends_with_known_macs, eth0, network
from labkit.measure.topologies.network.build import described
from labkit.measure.topologies.network.parts import Bridge, Cable, CableEnd, Network, Node


def two_bridges(name: str, spec: Spec) -> Network:
    """Describe two bridges in one namespace, joined by a veth (veth(4)). Even ends are clients."""
    between = CableEnd(BETWEEN, "to_right", master="left"), CableEnd(BETWEEN, "to_left", master="right")
    cables = [
        Cable(CableEnd(BETWEEN, f"port{number}", master=("left", "right")[number % 2]), eth0(spec, number))
        for number in numbers(spec)
    ]
    bridges = [Node(BETWEEN), Bridge(BETWEEN, "left"), Bridge(BETWEEN, "right"), Cable(*between)]
    return network(name, spec, [*ends_with_known_macs(spec), *bridges, *cables])


TWO_BRIDGES = TopologyKind(described(two_bridges))
