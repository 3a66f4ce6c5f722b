"""Follow a packet hop by hop: a ping between the ends of every pair, captured at every interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit.common import packets, run_folder
from labkit.measure import topologies
from labkit.measure.observers.capture.capture import capture, everywhere
from labkit.measure.topologies import Topology
from labkit.measure.traffic import ping


def followed(topology: Topology, payload_bytes: int, folder: Path) -> list[dict[str, Any]]:
    """Return a row for each interface that saw a pair's echo request or reply.

    A row has hop, direction, time since the first sighting, length, and headers of the frame. Each target is pinged
    once before, so that neighbours and bridge ports are known. `folder` receives the capture and the network's state.
    Raises Failed for a ping without a reply.
    """
    for pair in topology.pairs:
        ping.answered(pair.client, pair.server.address, 1, payload_bytes)
    state = topologies.state(topology)
    run_folder.write_json(folder / "state.json", state)
    with capture(everywhere(topology.namespaces), folder) as seen:
        for pair in topology.pairs:
            ping.answered(pair.client, pair.server.address, 1, payload_bytes)
    journeys = seen.journeys(state.ports())
    seen.comment(journeys, state.owners())
    known = [one for one in journeys if one.inner[-1].name == "icmp"]
    report = {"doubts": seen.doubt, "artefact": str(seen.path.relative_to(folder.parents[1]))}
    return [row | report for row in packets.rows(known, seen.counts, state.owners())]
