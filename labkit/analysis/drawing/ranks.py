"""In which column of a drawing each namespace stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

from labkit.analysis.drawing.graph import Join
from labkit.common.topology_state import State


def columns(state: State, joins: Sequence[Join]) -> dict[str, int]:
    """Clients in column 0, servers in the last, the others as far as they are from the clients over links; what is
    joined with one alone stands on that one's outer side."""
    clients = {client.namespace for client, _ in state.pairs}
    servers = {server.namespace for _, server in state.pairs} - clients
    beside: dict[str, set[str]] = {space.name: set() for space in state.namespaces}
    for join in joins:
        for one, other in permutations({place.namespace for place in join.ends}, 2):
            if join.way != "tunnel":
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
    """How many links each is away from the nearest of the starts."""
    result = dict.fromkeys(starts, 0)
    waiting = list(result)
    for name in waiting:  # which grows
        for other in beside[name] - result.keys():
            result[other] = result[name] + 1
            waiting.append(other)
    return result
