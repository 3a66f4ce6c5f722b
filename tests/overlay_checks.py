"""Share checks between the overlay's tests: compare packet rows with the description, and read tcpdump's files."""

from __future__ import annotations

import struct
from typing import Any

from labkit.common import packets
from labkit.measure.topologies.network.parts import Network
from studies.overlay.expected_paths import paths

PORTS = {**packets.PORTS, 4900: "vxlan"}
Rows = list[dict[str, Any]]


def way(rows: Rows, what: str) -> Rows:
    """Return the sightings of the packet with this name, in order."""
    result = [row for row in rows if row["part"] == "path" and row["what"] == what]
    return sorted(result, key=lambda row: int(row["position"]))


def seen(rows: Rows, what: str, hop: str) -> dict[str, Any]:
    """Return a packet at a hop."""
    [result] = [row for row in way(rows, what) if row["hop"] == hop]
    return result


def as_promised(rows: Rows, network: Network) -> None:
    """Check that every packet of every pair was seen where the description says, with its headers and length."""
    assert len({row["packet"] for row in rows if row["part"] == "path"}) == 2 * len(network.pairs)
    for client, server in network.pairs:
        for source, target, kind in ((client, server, "request"), (server, client, "reply")):
            [path] = paths(network, source, target)
            sightings = way(rows, f"{source} > {target} echo {kind}")
            promised = zip(path.interfaces, path.stacks, path.lengths_bytes, strict=True)
            assert [(row["hop"], row["stack"], row["length_bytes"]) for row in sightings] == [
                (hop, f"{stack} / ICMP echo {kind}", length) for hop, stack, length in promised
            ]
            assert sightings[0]["time_s"] == 0 <= sightings[-1]["time_s"]


def pcap(content: bytes) -> list[tuple[int, bytes]]:
    """Return length and bytes of each frame in a tcpdump file (microseconds, little-endian)."""
    assert content[:4] == b"\xd4\xc3\xb2\xa1"
    at, result = 24, []
    while at < len(content):
        here_bytes, length = struct.unpack_from("<II", content, at + 8)
        result.append((length, content[at + 16 : at + 16 + here_bytes]))
        at += 16 + here_bytes
    return result


def is_ping(data: bytes) -> bool:
    """Return whether the innermost packet of a frame belongs to ping."""
    return packets.layers(data, ports=PORTS)[-1].name == "icmp"
