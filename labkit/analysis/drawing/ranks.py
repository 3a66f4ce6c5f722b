"""Assign each namespace of a drawing to a column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

from labkit.analysis.drawing.graph import Join
from labkit.common.topology_state import State


def columns(state: State, joins: Sequence[Join]) -> dict[str, int]:
    """Return the column of each namespace.

    Clients are in column 0 and servers in the last one. The others are as many columns away as they are links away from
    the clients. A namespace with a single neighbour is on that neighbour's outer side.
    """
    clients = {client.namespace for client, _ in state.pairs}
    servers = {server.namespace for _, server in state.pairs} - clients
    beside: dict[str, set[str]] = {space.name: set() for space in state.namespaces}
    for join in joins:
        for one, other in permutations({place.namespace for place in join.ends}, 2):
            if join.kind != "tunnel":
                beside[one].add(other)
    from_clients, from_servers = distances(beside, clients), distances(beside, servers)
    result = {name: 0 if name in clients else from_clients.get(name, 1) for name in beside}
    single = {name for name in beside if len(beside[name]) == 1} - clients - servers
    for name in single:
        [at] = beside[name]
        outwards = -1 if from_clients.get(at, 0) < from_servers.get(at, 0) else 1
        result[name] = max(result[at] + outwards, 0)
    inner = [result[name] for name in result if name not in servers | single]
    return result | dict.fromkeys(servers, 1 + max(inner, default=0))


def distances(beside: dict[str, set[str]], starts: Iterable[str]) -> dict[str, int]:
    """Return for each namespace that can be reached its distance in links from the nearest start."""
    result = dict.fromkeys(starts, 0)
    waiting = list(result)
    for name in waiting:  # the list grows during the loop
        for other in beside[name] - result.keys():
            result[other] = result[name] + 1
            waiting.append(other)
    return result
