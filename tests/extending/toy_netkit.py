"""A topology with a kind of link that labkit lacks: netkit between the ends of each pair (since Linux 6.7)."""

from __future__ import annotations

from labkit.measure.topologies.base import Spec, TopologyKind, numbers
from labkit.measure.topologies.linux_datapaths import ends_with_known_macs, eth0, network
from labkit.measure.topologies.network.build import described
from labkit.measure.topologies.network.kinds import LinkKind
from labkit.measure.topologies.network.parts import Cable, Network


def netkit(name: str, spec: Spec) -> Network:
    """Describe one netkit in layer 2 mode between the two ends of each pair."""
    cables = [Cable(eth0(spec, one), eth0(spec, one + 1), kind="netkit") for one in numbers(spec)[::2]]
    return network(name, spec, [*ends_with_known_macs(spec), *cables])


# The attributes of linux/if_link.h (IFLA_NETKIT_…), numbered from 0. NETKIT_L2 is mode 0.
LINK = LinkKind(
    "netkit",
    peer_attribute="IFLA_NETKIT_PEER_INFO",
    peer_data=(("IFLA_NETKIT_MODE", 0),),
    since="6.7",
    attributes=(
        ("IFLA_NETKIT_UNSPEC", "none"),
        ("IFLA_NETKIT_PEER_INFO", "info_peer"),
        ("IFLA_NETKIT_PRIMARY", "uint8"),
        ("IFLA_NETKIT_POLICY", "uint32"),
        ("IFLA_NETKIT_PEER_POLICY", "uint32"),
        ("IFLA_NETKIT_MODE", "uint32"),
    ),
)
NETKIT = TopologyKind(described(netkit), links=(LINK,))
