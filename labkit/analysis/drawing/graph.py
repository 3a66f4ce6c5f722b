"""What of a state is drawn: its interfaces, and what joins them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_interface
from string import digits

import msgspec

from labkit.common.topology_state import InterfaceState, Namespace, Place, Route, State, TunnelState

# Every way in which two interfaces are joined, in the order of a legend.
WAYS = {
    "veth": "veth pair",
    "port": "port of a bridge",
    "lower": "made on a lower device",
    "tunnel": "tunnel",
    "mirror": "copied by a mirror",
}
FEW = 8  # pairs that a picture has room for


@dataclass(frozen=True)
class Join:
    """Two interfaces that are joined; `way` is a key of WAYS."""

    way: str
    ends: tuple[Place, ...]


def joins(state: State) -> list[Join]:
    """Everything that joins two interfaces of a state, once."""
    known = {(space.name, one.name) for space in state.namespaces for one in space.interfaces}
    result: dict[tuple[str, frozenset[Place]], Join] = {}
    for space in state.namespaces:
        for one in space.interfaces:
            here = Place(space.name, one.name)
            for way, there in _joined(space, one):
                if (there.namespace, there.interface) in known:
                    result.setdefault((way, frozenset((here, there))), Join(way, (here, there)))
    return list(result.values())


def _joined(space: Namespace, one: InterfaceState) -> Iterator[tuple[str, Place]]:
    if one.peer is not None:
        yield "veth", one.peer
    if one.master is not None:
        yield "port", Place(space.name, one.master)
    if one.lower is not None:
        yield "lower", one.lower
    for source in one.copies:
        yield "mirror", source
    for peer in one.tunnel.peers if one.tunnel is not None else ():
        yield "tunnel", peer


def shown(state: State) -> State:
    """The state without what says nothing: lo that carries no load, the devices that tunnel modules put into every new
    namespace, and link-local addresses."""
    ends = {(end.namespace, end.interface) for pair in state.pairs for end in pair}
    joined = {(place.namespace, place.interface) for join in joins(state) for place in join.ends}

    def says(space: Namespace, one: InterfaceState) -> bool:
        at = (space.name, one.name)
        return at in ends or at in joined or (one.up and one.kind != "loopback")

    def brief(one: InterfaceState) -> InterfaceState:
        kept = [address for address in one.addresses if _global(address)]
        return msgspec.structs.replace(one, addresses=kept)

    return _with(
        state,
        [
            msgspec.structs.replace(
                space, interfaces=[brief(one) for one in space.interfaces if says(space, one)]
            )
            for space in state.namespaces
        ],
    )


def _global(address: str) -> bool:
    ip = ip_interface(address).ip
    return not ip.is_link_local and not ip.is_loopback


def _with(state: State, namespaces: list[Namespace]) -> State:
    return msgspec.structs.replace(state, namespaces=namespaces)


def first(state: State, pairs: int = FEW) -> tuple[State, int]:
    """The state with so many pairs at most, and how many were left out, with all that serves them alone."""
    kept, rest = state.pairs[:pairs], state.pairs[pairs:]
    stay = {end.namespace for pair in kept for end in pair}
    gone = {end.namespace for pair in rest for end in pair} - stay

    def serves(one: InterfaceState) -> bool:
        return all(far is None or far.namespace not in gone for far in (one.peer, one.lower))

    spaces = [
        msgspec.structs.replace(space, interfaces=[one for one in space.interfaces if serves(one)])
        for space in state.namespaces
        if space.name not in gone
    ]
    return msgspec.structs.replace(_with(state, spaces), pairs=kept), len(rest)


def kind(one: InterfaceState) -> str:
    """What an interface is, in words: its kind, its mode, and the identifier of its tunnel."""
    number = one.tunnel.id if one.tunnel is not None else None
    return " ".join(str(word) for word in (one.kind, one.mode, number) if word is not None)


def title(state: State) -> str:
    """Its name and size."""
    count = len(state.pairs)
    return f"{state.topology}, {count} pair{'s' if count != 1 else ''}"


def more(count: int) -> str:
    """That so many pairs were left out."""
    return f"{count} more {'pairs are' if count != 1 else 'pair is'} not drawn"


def label(one: InterfaceState) -> list[str]:
    """The lines that stand in an interface's box; a veth's kind is told by its line, lo's and bridge1's by the name."""
    plain = one.kind in ("veth", "loopback", one.name.rstrip(digits))
    words = [one.name, *([] if plain else [kind(one)]), *condition(one)]
    return [" · ".join(words), *one.addresses]


def outside(one: TunnelState) -> str:
    """What a tunnel is outside: its addresses, and its UDP port."""
    port = f" port {one.port}" if one.port is not None else ""
    return f"{one.local or 'any'} to {', '.join(one.remotes) or 'any'}{port}"


def route_line(route: Route) -> str:
    """A route as `ip route` writes it."""
    hops = (
        " ".join(
            [
                *([f"via {hop.via}"] if hop.via else []),
                f"dev {hop.interface}",
                *([hop.state] if hop.state else []),
            ]
        )
        for hop in route.hops
    )
    metric = f" metric {route.metric}" if route.metric is not None else ""
    return f"{route.to} {', '.join(hops)}{metric}"


def condition(one: InterfaceState) -> list[str]:
    """What keeps an interface from carrying anything, if something does."""
    return ["down"] if not one.up else [] if one.carrier else ["no carrier"]
