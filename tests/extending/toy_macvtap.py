"""A topology with a kind of link that labkit lacks: macvtap, a macvlan device that a hypervisor could open, too."""

from __future__ import annotations

from labkit.measure.topologies.base import BETWEEN, Spec, TopologyKind, end_address, end_name, mac, numbers
from labkit.measure.topologies.linux_datapaths import ends, network
from labkit.measure.topologies.network.build import described
from labkit.measure.topologies.network.kinds import LinkKind
from labkit.measure.topologies.network.parts import Cable, CableEnd, Network, Node, UpperDevice


def macvtap(name: str, spec: Spec) -> Network:
    """Describe macvtap in bridge mode for all ends, on one end of a veth.

    Packets go to the stack while no program has opened /dev/tapN (tap_handle_frame, drivers/net/tap.c).
    """
    lower = (BETWEEN, "parent")
    devices = [
        UpperDevice("macvtap", end_name(one), "eth0", lower, "bridge", str(end_address(spec, one)), mac(one))
        for one in numbers(spec)
    ]
    cable = Cable(CableEnd(*lower), CableEnd(BETWEEN, "far"))
    return network(name, spec, [*ends(spec, mac), Node(BETWEEN), cable, *devices])


# The modes of linux/if_link.h, under pyroute2's name of their attribute.
LINK = LinkKind("macvtap", modes={"private": 1, "vepa": 2, "bridge": 4}, mode_attribute="IFLA_MACVTAP_MODE")
MACVTAP = TopologyKind(described(macvtap), links=(LINK,))
