"""List the interface kinds that topologies need, and the topologies that join pairs."""

from __future__ import annotations

from conftest import Need

from labkit.measure.topologies import TABLE, user_mode
from labkit.measure.topologies.linux_datapaths import ENCRYPTED

KINDS = {
    "veth_bridge": "bridge", "macvlan": "macvlan", "ipvlan": "ipvlan", "vxlan": "vxlan", "vxlan_gre": "gre",
    "netkit": "netkit", "netkit_redirect": "clsact", "veth_redirect": "clsact", "veth_xdp": "clsact",
    "veth_published": "bridge", "veth_published_nat": "nft", "gre": "gre", "geneve": "geneve", "ipip": "ipip",
}  # fmt: skip
IPV4_ALONE = {"ipip"}
# overlay is its own network (test_own_networks.py). DPDK and AF_XDP carry no large frames (test_open_vswitch.py).
# The user-mode networks pass no packets on (test_user_mode.py). Encryption needs a lab VM (test_encryption.py).
PAIRED_TOPOLOGIES = [
    name
    for name in TABLE
    if name not in ("overlay", "ovs_afxdp", "ovs_dpdk", *user_mode.PROGRAMS)
    and name.removeprefix("vxlan_") not in ENCRYPTED
]


def require_kind(name: str, need: Need) -> None:
    if name.startswith("ovs"):
        need("openvswitch", *(["ovs kernel"] if name == "ovs" else []))
    for start, kind in KINDS.items():
        if name.startswith(start):
            need(kind)
