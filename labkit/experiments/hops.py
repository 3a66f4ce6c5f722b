"""A packet followed hop by hop: a ping between the two ends of every pair, captured at every interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit import packets, process, records, topologies
from labkit.endpoints import Pair
from labkit.errors import Failed
from labkit.observers.capture import capture, everywhere
from labkit.topologies import Topology
from labkit.topologies.parts import Cable, Network, Tunnel
from labkit.traffic import ping


def ports(network: Network) -> dict[int, str]:
    """UDP ports, and which encapsulation comes in by them."""
    own = {
        part.port: part.kind for part in network.parts if isinstance(part, Tunnel) and part.port is not None
    }
    return {**packets.PORTS, **own}


def names(network: Network) -> dict[str, str]:
    """Addresses, and whose they are."""
    ends = [end for part in network.parts if isinstance(part, Cable) for end in (part.one, part.other)]
    return {end.address.partition("/")[0]: end.at for end in ends if end.address is not None}


def followed(network: Network, topology: Topology, payload_bytes: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each interface that saw the echo request of a pair, or its reply: hop, direction, time since the first
    sighting, length and headers of the frame.

    Whoever answers has been asked once before, so that no neighbour and no port of a bridge is unknown any more. In
    `folder` are the capture and what the kernel told of the network. Raises Failed for a ping without an answer.
    """
    for pair in topology.pairs:
        _once(pair, payload_bytes)
    records.write_json(folder / "state.json", topologies.state(topology))
    with capture(everywhere(topology.namespaces), folder) as seen:
        for pair in topology.pairs:
            _once(pair, payload_bytes)
    known = [one for one in seen.journeys(ports(network)) if one.inner[-1].name == "icmp"]
    told = {"doubts": seen.doubt, "artefact": str(seen.path.relative_to(folder.parents[1]))}
    return [row | told for row in packets.rows(known, seen.counts, names(network))]


def _once(pair: Pair, payload_bytes: int) -> None:
    ended = process.run(
        [*pair.client.prefix, *ping.argv(pair.server.address, ["-c1", "-W5", f"-s{payload_bytes}"])]
    )
    if ended.returncode != 0:
        raise Failed(f"{pair.client.name} gets no answer from {pair.server.name}: {ended.words()}")
