"""The network between two existing ends, as a topology: what drawings, copies and the arm `existing:` use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import msgspec

from labkit.common import existing_names
from labkit.common.topology_state import State, Step
from labkit.measure.endpoints import Endpoint, Namespace, Pair
from labkit.measure.existing import published
from labkit.measure.existing.endpoints import resolve
from labkit.measure.existing.path import Path, paths
from labkit.measure.existing.spaces import Space, Spaces
from labkit.measure.topologies.base import Spec, Topology
from labkit.measure.topologies.state import read


@dataclass(frozen=True)
class ExistingNetwork:
    """What is between two ends.

    `topology`: its ends as a pair, and the namespaces on the path, which are open. `state`: what the kernels report of
    it, with the steps from client to server (`forward`) and back (`back`). `gap`: a sentence about where the path
    leaves what is visible on this machine, or ends; None: both directions are complete. `processes`: a process of each
    end that has one.
    """

    topology: Topology
    state: State
    gap: str | None
    processes: dict[str, int]

    @property
    def pair(self) -> Pair:
        """Both ends, with the interfaces and addresses between which packets travel."""
        return self.topology.pairs[0]


@contextmanager
def between(client: str, server: str, family: int | None = None) -> Iterator[ExistingNetwork]:
    """Follow packets from client to server and back, with addresses of this version of IP (None: any, IPv4 first).

    Raises the errors of `resolve`, BadInput for two ends in one namespace, and Unsupported for an end without such an
    address.
    """
    name = existing_names.network(client, server)
    with ExitStack() as stack:
        ends = [stack.enter_context(closing(resolve(end))) for end in (client, server)]
        network = _network(
            name, Spaces(*ends), family, {end.name: end.pid for end in ends if end.pid is not None}
        )
        for space in network.topology.namespaces:
            stack.callback(space.close)
        yield network


def _network(name: str, spaces: Spaces, family: int | None, processes: dict[str, int]) -> ExistingNetwork:
    """Return what is between two ends, and close all other namespaces."""
    shown: dict[Space, set[str]] = {}
    try:
        found = paths(spaces, family)
        forward, back = next(
            (both for both in found if both[0].whole and both[1].whole),
            max(found, key=lambda both: (both[0].whole, both[1].whole, len(both[0].steps))),
        )
        first = next(iter(forward.places), spaces.client.place(forward.source))
        of_server = (place for place in reversed(forward.places) if place.space is spaces.server)
        last = next(of_server, spaces.server.place(forward.destination))
        for place in (first, *forward.places, *reversed(back.places), last):
            shown.setdefault(place.space, set()).add(place.name)
        ends = (
            Endpoint(place.space.name, place.space.namespace, place.name, place.index, address)
            for place, address in ((first, forward.source), (last, forward.destination))
        )
        topology = Topology(
            name, Spec(), [Pair(*ends)], [space.namespace for space in shown],
            shown={space.name: names for space, names in shown.items()}, steps=(_steps(forward), _steps(back)),
        )  # fmt: skip
        state = _with_published(read.state(topology), topology.namespaces)
    except BaseException:
        spaces.close()
        raise
    spaces.close(but=shown)
    gap = next((one.what for one in (*forward.problems, *back.problems)), None)
    return ExistingNetwork(topology, state, gap, processes)


def _steps(path: Path) -> list[Step]:
    return [Step(place.space.name, place.name, direction) for place, direction in path.steps]


def _with_published(state: State, spaces: Sequence[Namespace]) -> State:
    """Add what publishes ports of the ends, or replaces their addresses."""
    addresses = {end.address for pair in state.pairs for end in pair}
    namespaces = []
    for space, one in zip(spaces, state.namespaces, strict=True):
        lines = published.by_rules(space, one.rules, addresses)
        if space.name == existing_names.HOST:
            lines += published.by_programs(addresses)
        namespaces.append(msgspec.structs.replace(one, published=lines))
    return msgspec.structs.replace(state, namespaces=namespaces)
