"""Paths between endpoints, interface by interface, in made-up states."""

from __future__ import annotations

import msgspec
from example_states import LO, bridged, tunnelled

from labkit.common.topology_state import Namespace, PairEnd
from labkit.measure.topologies.state import packet_path


def test_path_through_bridge_and_tunnel() -> None:
    for state, steps in (
        (bridged(1), ["client0:eth0 out", "between:port0 in", "between:port1 out", "server0:eth0 in"]),
        (tunnelled(), ["client0:eth0 out", "client0:under out", "server0:under in", "server0:eth0 in"]),
    ):
        [way] = packet_path.packet_paths(state)
        assert [f"{step.namespace}:{step.interface} {step.direction}" for step in way] == steps


def test_endpoint_of_another_kernel() -> None:
    """Endpoints in a shared guest are an example."""
    ends = [PairEnd(name, "shared", "eth0", "10.1.0.1") for name in ("client0", "server0")]
    state = bridged(1)
    (_, server), inside = state.pairs[0], Namespace("shared", [LO], [])
    pairs = [(ends[0], ends[1]), (ends[0], server), (server, ends[1])]
    state = msgspec.structs.replace(state, pairs=pairs, namespaces=[*state.namespaces, inside])
    assert packet_path.packet_paths(state) == [[], [], []]
