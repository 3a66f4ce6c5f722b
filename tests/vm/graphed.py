"""Sends datagrams over two topologies while function_graph watches, and tells what it saw: a program, run as an
experiment's process is. The kept calls and what was told of them, as a JSON object by topology on standard output.

All sockets are made before the tracer is armed: programs start slowly on an emulated kernel that traces all it does."""

from __future__ import annotations

import json
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from labkit import netlink, topologies
from labkit.experiments import Datapaths
from labkit.experiments.observing import TABLE
from labkit.traffic import ping

SENT, PORT = 60, 7000


def bound(end: Any) -> socket.socket:
    with netlink.inside(end.namespace.fd):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(60)
    made.bind((end.address, PORT))
    return made


def seen(name: str, stem: Path) -> dict[str, Any]:
    asked = Datapaths(topology=(name,), protocol="udp")
    with topologies.build(name, topologies.Spec(1)) as topology, ExitStack() as stack:
        assert ping.reachable(topology.pairs, 1500, 4) is None
        client, server = (
            stack.enter_context(bound(end)) for end in (topology.pairs[0].client, topology.pairs[0].server)
        )
        observer = TABLE["function_graph"]
        observer.check(asked)
        observer.check_built(asked)
        watch = stack.enter_context(observer.armed(asked, topology, stem))
        with watch.counting():
            for _ in range(SENT):
                client.sendto(bytes(400), server.getsockname())
                server.recv(1000)
        told = watch.told()
    assert told.artefact is not None
    return {"observed": told.observed, "lost": told.lost_samples_count, "doubts": told.doubts,
            "text": told.artefact.read_text()}  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({name: seen(name, Path(folder) / name) for name in ("veth", "veth_bridge")}))
