"""Select what is drawn of a state: its interfaces and the joins between them."""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_interface
from itertools import pairwise
from string import digits

import msgspec

from labkit.common.topology_state import (
    PROGRAM,
    RULE,
    InterfaceState,
    Namespace,
    Place,
    Route,
    State,
    TunnelState,
)

# How two interfaces can be joined, in the order of the legend.
JOIN_KINDS = {
    "veth": "veth or netkit pair",
    "port": "port of a bridge",
    "lower": "made on a lower device",
    "tunnel": "tunnel",
    "mirror": "copied by a mirror",
    "redirect": "redirected by a BPF program",
    "published": "through a program or a published port",
}
FEW = 8  # pairs that fit in a drawing


@dataclass(frozen=True)
class Join:
    """Two interfaces that are joined; `kind` is a key of JOIN_KINDS."""

    kind: str
    ends: tuple[Place, ...]


def joins(state: State) -> list[Join]:
    """Return each join between two interfaces of a state once."""
    known = {Place(space.name, one.name): one.kind for space in state.namespaces for one in space.interfaces}
    result: dict[tuple[str, frozenset[Place]], Join] = {}
    for space in state.namespaces:
        for one in space.interfaces:
            here = Place(space.name, one.name)
            for join_kind, there in _joined(space, one):
                if there in known:
                    result.setdefault((join_kind, frozenset((here, there))), Join(join_kind, (here, there)))
    for ends in pairwise(Place(step.namespace, step.interface) for step in state.forward):
        if {RULE, PROGRAM}.intersection(known.get(end) for end in ends):
            result["published", frozenset(ends)] = Join("published", ends)
    return list(result.values())


def _joined(space: Namespace, one: InterfaceState) -> Iterator[tuple[str, Place]]:
    if one.peer is not None:
        yield "published" if one.kind == PROGRAM else "veth", one.peer
    if one.master is not None:
        yield "port", Place(space.name, one.master)
    if one.lower is not None:
        yield "published" if one.kind == PROGRAM else "lower", one.lower
    if one.redirect is not None:
        yield "redirect", one.redirect.to
    for source in one.copies:
        yield "mirror", source
    for peer in one.tunnel.peers if one.tunnel is not None else ():
        yield "tunnel", peer


def simplify(state: State) -> State:
    """Return the state without what carries no information.

    That is an unused lo, the devices that tunnel modules create in every new namespace, and link-local addresses.
    """
    ends = {(end.namespace, end.interface) for pair in state.pairs for end in pair}
    joined = {(place.namespace, place.interface) for join in joins(state) for place in join.ends}

    def is_shown(space: Namespace, one: InterfaceState) -> bool:
        at = (space.name, one.name)
        return at in ends or at in joined or (one.up and one.kind != "loopback")

    def brief(one: InterfaceState) -> InterfaceState:
        kept = [address for address in one.addresses if _global(address)]
        return msgspec.structs.replace(one, addresses=kept)

    shown = [[brief(one) for one in space.interfaces if is_shown(space, one)] for space in state.namespaces]
    both = zip(state.namespaces, shown, strict=True)
    spaces = [msgspec.structs.replace(space, interfaces=own) for space, own in both]
    return msgspec.structs.replace(state, namespaces=spaces)


def _global(address: str) -> bool:
    ip = ip_interface(address).ip
    return not ip.is_link_local and not ip.is_loopback


def first(state: State, pairs: int = FEW) -> tuple[State, int]:
    """Return the state with at most `pairs` pairs, and the number of pairs left out.

    The interfaces and namespaces that serve only these pairs are left out too.
    """
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
    return msgspec.structs.replace(state, namespaces=spaces, pairs=kept), len(rest)


def kind(one: InterfaceState) -> str:
    """Return an interface's kind, its mode, and the identifier of its tunnel."""
    number = one.tunnel.id if one.tunnel is not None else None
    return " ".join(str(word) for word in (one.kind, one.mode, number) if word is not None)


def title(state: State) -> str:
    """Return the topology's name and number of pairs."""
    count = len(state.pairs)
    return f"{state.topology}, {count} pair{'s' if count != 1 else ''}"


def more(count: int) -> str:
    """Return a note that `count` pairs are not drawn."""
    return f"{count} more {'pairs are' if count != 1 else 'pair is'} not drawn"


def label(one: InterfaceState) -> list[str]:
    """Return the lines of text of an interface's box.

    The kind is omitted where it is obvious: for a veth from its line, for lo and bridge1 from the name.
    """
    plain = one.mode is None and one.kind in ("veth", "loopback", one.name.rstrip(digits))
    words = [one.name, *([] if plain else [kind(one)]), *condition(one)]
    if one.redirect is not None:
        words.append(f"{one.redirect.helper} at {one.redirect.hook}")
    unseen = [place.interface for place in one.redirect.unseen] if one.redirect is not None else []
    return [" · ".join(words), *([f"not seen at {', '.join(unseen)}"] if unseen else []), *one.addresses]


def outside(one: TunnelState) -> str:
    """Return the outer addresses of a tunnel and its UDP port."""
    port = f" port {one.port}" if one.port is not None else ""
    return f"{one.local or 'any'} to {', '.join(one.remotes) or 'any'}{port}"


def route_line(route: Route) -> str:
    """Return a route as `ip route` writes it."""
    hops = (
        " ".join(filter(None, (hop.via and f"via {hop.via}", f"dev {hop.interface}", hop.state)))
        for hop in route.hops
    )
    metric = f" metric {route.metric}" if route.metric is not None else ""
    return f"{route.to} {', '.join(hops)}{metric}"


def condition(one: InterfaceState) -> list[str]:
    """Return what keeps an interface from carrying traffic, or an empty list."""
    return ["down"] if not one.up else [] if one.carrier else ["no carrier"]
