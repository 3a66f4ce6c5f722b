"""The bytes that a tunnel adds to a packet, computed from its headers and measured.

A ping through the tunnel and a ping of the same length beside it use the same veth and the same kernel counter.
"""

from typing import Any

from labkit.common.errors import Failed
from labkit.measure.topologies import Topology
from labkit.measure.topologies.linux_datapaths import TUNNELS, outer
from labkit.measure.topologies.network.kinds import ETHERNET, IP, TRANSPORT, around, headers, length_bytes
from labkit.measure.traffic import ping
from labkit.system import netlink

COUNT = 10
PAYLOAD_BYTES = 64
ATTEMPTS = 5  # IPv6 may send packets of its own meanwhile
ICMP_BYTES = 8


def measure_overhead(topology: Topology) -> dict[str, Any]:
    """Measure a built tunnel; return a row without identity and provenance.

    `layers`: (name, header_bytes, source) from the outside in. `frame_bytes`: of the ping beside the tunnel with its
    Ethernet header. `length_bytes`: of the ping's payload. Raises Failed if pings are lost or other packets keep
    interfering.
    """
    kinds, own = TUNNELS[topology.name], IP[topology.spec.family].length_bytes
    packet_bytes = own + ICMP_BYTES + PAYLOAD_BYTES
    added = around(headers(*kinds), packet_bytes, fills_mtu=False)
    if TRANSPORT in kinds:  # there is no way beside it
        frame_bytes: float = packet_bytes + ETHERNET.length_bytes
    else:
        frame_bytes = _frame_bytes(
            topology, str(outer(0, 1).ip), packet_bytes - ICMP_BYTES - IP[4].length_bytes
        )
    inside = _frame_bytes(topology, topology.pairs[0].server.address, PAYLOAD_BYTES)
    return {
        "part": "headers",
        "topology": topology.name,
        "length_bytes": PAYLOAD_BYTES,
        "frame_bytes": frame_bytes,
        "computed_bytes": length_bytes(added),
        "measured_bytes": inside - frame_bytes,
        "layers": [
            {"name": one.name, "header_bytes": one.length_bytes, "source": one.source} for one in added
        ],
    }


def _frame_bytes(topology: Topology, address: str, payload_bytes: int) -> float:
    """Return the mean length of the frames of pings to this address on the cable, as the server's end counts them."""
    pair = topology.pairs[0]
    kernel = pair.server.namespace.netlink
    [under] = [link.index for link in netlink.links(kernel) if link.kind == "veth"]
    for _ in range(ATTEMPTS):
        before = kernel.counters(under)
        ping.answered(pair.client, address, COUNT, payload_bytes)
        after = kernel.counters(under)
        if after.received_count - before.received_count == COUNT:
            return (after.received_bytes - before.received_bytes) / COUNT
    raise Failed(
        f"the headers of {topology.name} cannot be measured: its cable carried other packets than"
        f" the {COUNT} pings in all {ATTEMPTS} attempts: repeat the run"
    )
