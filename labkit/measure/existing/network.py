"""The network between two existing ends, as a topology: what drawings, copies and the arm `existing:` use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace

import msgspec

from labkit.common import existing_names
from labkit.common.errors import BadInput, Unsupported
from labkit.common.topology_state import PROGRAM, RULE, InterfaceState, State, Step
from labkit.measure.endpoints import Endpoint, Pair
from labkit.measure.existing import published
from labkit.measure.existing.endpoints import reporting_ended, resolve
from labkit.measure.existing.path import Path, others_than, paths
from labkit.measure.existing.spaces import Place, Space, Spaces
from labkit.measure.topologies.base import Spec, Topology
from labkit.measure.topologies.state import read

MOST = 8  # rules of one namespace that publish ports


@dataclass(frozen=True)
class ExistingNetwork:
    """What is between two ends.

    `topology`: its ends as a pair, and the namespaces on the path, which are open. `state`: what the kernels report of
    it, with the steps from client to server (`forward`) and back (`back`). `gap`: a sentence about where the path
    leaves what is visible on this machine, or ends; None: both directions are complete. `processes`: of each
    end that has one (`ExistingEndpoint.process`). `others`: a sentence about addresses that may take other paths.
    `pids`: a process in each namespace that has one.
    """

    topology: Topology
    state: State
    gap: str | None
    processes: dict[str, int]
    others: list[str] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def pair(self) -> Pair:
        """Both ends, with the interfaces and addresses between which packets travel."""
        return self.topology.pairs[0]


@contextmanager
def between(
    client: str,
    server: str,
    family: int | None = None,
    port: int | None = None,
    only: Collection[str] = (),
) -> Iterator[ExistingNetwork]:
    """Follow packets from client to server and back, with addresses of this version of IP (None: any, IPv4 first).

    port: one that this machine publishes for the server; the path leads through it. only: `paths`.

    Raises the errors of `resolve`, BadInput for two ends in one namespace, and Unsupported for an end without such an
    address.
    """
    name = existing_names.network(client, server)
    with ExitStack() as stack:
        ends = [stack.enter_context(closing(resolve(end))) for end in (client, server)]
        stack.enter_context(reporting_ended(ends))
        processes = {end.name: end.process for end in ends if end.process is not None}
        spaces = Spaces(*ends)
        try:
            found = _found(spaces, family, only) if port is None else [_through(spaces, family, port)]
            whole = (both for both in found if both[0].whole and both[1].whole)
            both = next(whole, max(found, key=lambda one: (one[0].whole, one[1].whole, len(one[0].steps))))
            hint = _hint(spaces, family) if port is None and any(one.problems for one in both) else ""
            network = described(name, spaces, *both, processes, hint)
            pairs = [(one.source, one.destination) for one, _back in found]
            used = (both[0].source, both[0].destination)
            network = replace(network, others=others_than([used], pairs))
        except BaseException:
            spaces.close()
            raise
        for space in network.topology.namespaces:
            stack.callback(space.close)
        yield network


def described(
    name: str,
    spaces: Spaces,
    forward: Path,
    back: Path,
    processes: dict[str, int],
    hint: str = "",
    keeps: bool = False,
) -> ExistingNetwork:
    """Return the network of two paths, and close all other namespaces. An end on another machine is represented by the
    interface that leads there. hint: the end of a gap's sentence. keeps: all namespaces stay open."""
    shown: dict[Space, set[str]] = {}
    first, last = _outermost(forward, back)
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
    gap = next((one.what + hint for one in (*forward.problems, *back.problems)), None)
    state = _with_published(read.state(topology), shown, forward, spaces)
    if not keeps:
        spaces.close(but=shown)
    pids = {space.name: space.pid for space in shown if space.pid is not None}
    return ExistingNetwork(topology, state, gap, processes, pids=pids)


def _outermost(forward: Path, back: Path) -> tuple[Place, Place]:
    """Return the interfaces of both ends that the packets pass; of an address of another machine, what leads there."""
    found = []
    sides = (
        (forward.places, forward.start, forward.source),
        (forward.places[::-1], back.start, forward.destination),
    )
    for places, space, address in sides:
        if address in space.addresses:
            own = (place for place in places if place.space is space)
            found.append(next(own, None) or space.place(address))
        else:
            found += places[:1]
    return found[0], found[-1]


def _found(spaces: Spaces, family: int | None, only: Collection[str]) -> list[tuple[Path, Path]]:
    try:
        return paths(spaces, family, only)
    except Unsupported as error:
        raise Unsupported(f"{error}{_hint(spaces, family)}") from None


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
    addresses |= {*spaces.client.usable(), *spaces.server.usable()}
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
        rules = published.by_rules(space, addresses)
        others = (port.what for port in ports if port.space is space and port.what)
        lines = [*rules[:MOST], *dict.fromkeys(others)]
        namespaces.append(msgspec.structs.replace(one, interfaces=interfaces, published=lines))
    return msgspec.structs.replace(state, namespaces=namespaces)
