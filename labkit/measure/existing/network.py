"""The network between two existing ends, as a topology: what drawings, copies and the arm `existing:` use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import msgspec

from labkit.common import existing_names
from labkit.common.errors import BadInput, Unsupported
from labkit.common.topology_state import PROGRAM, RULE, InterfaceState, State, Step
from labkit.measure.endpoints import Endpoint, Pair
from labkit.measure.existing import published
from labkit.measure.existing.endpoints import resolve
from labkit.measure.existing.path import Path, paths
from labkit.measure.existing.spaces import Space, Spaces
from labkit.measure.topologies.base import Spec, Topology
from labkit.measure.topologies.state import read

MOST = 8  # rules of one namespace that publish ports


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
def between(
    client: str, server: str, family: int | None = None, port: int | None = None
) -> Iterator[ExistingNetwork]:
    """Follow packets from client to server and back, with addresses of this version of IP (None: any, IPv4 first).

    port: one that this machine publishes for the server; the path leads through it.

    Raises the errors of `resolve`, BadInput for two ends in one namespace, and Unsupported for an end without such an
    address.
    """
    name = existing_names.network(client, server)
    with ExitStack() as stack:
        ends = [stack.enter_context(closing(resolve(end))) for end in (client, server)]
        processes = {end.name: end.pid for end in ends if end.pid is not None}
        network = _network(name, Spaces(*ends), family, port, processes)
        for space in network.topology.namespaces:
            stack.callback(space.close)
        yield network


def _network(
    name: str, spaces: Spaces, family: int | None, port: int | None, processes: dict[str, int]
) -> ExistingNetwork:
    """Return what is between two ends, and close all other namespaces."""
    shown: dict[Space, set[str]] = {}
    try:
        forward, back = _chosen(spaces, family) if port is None else _through(spaces, family, port)
        of_client = (place for place in forward.places if place.space is spaces.client)
        first = next(of_client, None) or spaces.client.place(forward.source)
        of_server = (place for place in reversed(forward.places) if place.space is spaces.server)
        last = next(of_server, None) or spaces.server.place(forward.destination)
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
        gap = next((one.what for one in (*forward.problems, *back.problems)), None)
        if gap is not None and port is None:
            gap += _hint(spaces, family)
        state = _with_published(read.state(topology), shown, forward, spaces)
    except BaseException:
        spaces.close()
        raise
    spaces.close(but=shown)
    return ExistingNetwork(topology, state, gap, processes)


def _chosen(spaces: Spaces, family: int | None) -> tuple[Path, Path]:
    """Return the first paths that are whole; without any, those that lead farthest."""
    try:
        found = paths(spaces, family)
    except Unsupported as error:
        raise Unsupported(f"{error}{_hint(spaces, family)}") from None
    whole = (both for both in found if both[0].whole and both[1].whole)
    return next(whole, max(found, key=lambda both: (both[0].whole, both[1].whole, len(both[0].steps))))


def _hint(spaces: Spaces, family: int | None) -> str:
    """Return which published port leads to the server, as the end of a sentence."""
    found = published.through(spaces, family=family)
    return f"; port {found.port.port} of {found.port.space.name} leads there: add --port" if found else ""


def _through(spaces: Spaces, family: int | None, port: int) -> tuple[Path, Path]:
    if (found := published.through(spaces, port, family)) is None:
        raise BadInput(
            f"this machine publishes no port {port} of {spaces.server.name} that {spaces.client.name} reaches"
        )
    return found.forward, found.back


def _steps(path: Path) -> list[Step]:
    return [Step(place.space.name, place.name, direction) for place, direction in path.steps]


def _with_published(state: State, shown: Iterable[Space], passed: Path, spaces: Spaces) -> State:
    """Add what publishes ports of the ends, or replaces their addresses, and the published port that is passed."""
    addresses = {end.address for pair in state.pairs for end in pair}
    ports = [port for end in (spaces.client, spaces.server) for port in published.ports(spaces.host, end)]
    own = None if passed.published is None else passed.published[1]
    namespaces = []
    for space, one in zip(shown, state.namespaces, strict=True):
        interfaces = list(one.interfaces)
        if own is not None and own.space is space:
            kind = PROGRAM if own.copies else RULE
            interfaces.append(
                InterfaceState(name=own.name, index=0, kind=kind, up=True, carrier=True, mtu_bytes=0)
            )
        lines = published.by_rules(space, addresses)[:MOST]
        lines += dict.fromkeys(port.what for port in ports if port.copies and port.space is space)
        namespaces.append(msgspec.structs.replace(one, interfaces=interfaces, published=lines))
    return msgspec.structs.replace(state, namespaces=namespaces)
