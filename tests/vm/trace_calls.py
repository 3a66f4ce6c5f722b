"""Send datagrams over a bridge while function_graph traces, and report its result.

The tests run this as a program, like an experiment's process. Standard output gets a JSON object with the kept calls
and the reported numbers.

All sockets are created before the tracer is armed, because programs start slowly on an emulated kernel that traces
them.
"""

from __future__ import annotations

import json
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from labkit.measure import topologies
from labkit.measure.experiments import DatapathParameters
from labkit.measure.observers.registry import TABLE
from labkit.measure.traffic import ping
from labkit.system import netlink

SENT, PORT = 60, 7000


def bound(end: Any) -> socket.socket:
    with netlink.inside(end.namespace.fd):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(60)
    made.bind((end.address, PORT))
    return made


def seen(stem: Path) -> dict[str, Any]:
    parameters = DatapathParameters(topology=("veth_bridge",), protocol="udp")
    with topologies.build("veth_bridge", topologies.Spec(1)) as topology, ExitStack() as stack:
        assert ping.reachable(topology.pairs, 1500, 4) is None
        client, server = (
            stack.enter_context(bound(end)) for end in (topology.pairs[0].client, topology.pairs[0].server)
        )
        observer = TABLE["function_graph"]
        observer.check(parameters)
        observer.check_built(parameters)
        watch = stack.enter_context(observer.armed(parameters, topology, stem))
        with watch.counting():
            for _ in range(SENT):
                client.sendto(bytes(400), server.getsockname())
                server.recv(1000)
        report = watch.report()
    assert report.artefact is not None
    return {"observed": report.observed, "lost": report.lost_samples_count, "doubts": report.doubts,
            "text": report.artefact.read_text()}  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(seen(Path(folder) / "calls")))
