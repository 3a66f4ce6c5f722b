"""Find the path of frames between the ends of a pair in a topology's state, interface by interface."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from labkit.common.topology_state import PROGRAM, InterfaceState, PairEnd, Place, State, Step

OUT, IN = "out", "in"
Interfaces = dict[Place, InterfaceState]


def packet_paths(state: State) -> list[list[Step]]:
    """Return for each pair the steps from client to server; [] if no path is found."""
    first = [state.forward] if state.forward else []
    known = {Place(space.name, one.name): one for space in state.namespaces for one in space.interfaces}
    for at, one in [*known.items()]:
        if one.kind == PROGRAM and one.peer is not None and one.peer in known:
            known[one.peer] = replace(known[one.peer], peer=at)
    return [*first, *(_packet_path(known, *pair) for pair in state.pairs[len(first) :])]


def _packet_path(known: Interfaces, client: PairEnd, server: PairEnd) -> list[Step]:
    """Return the steps from client to server; [] if their paths do not meet or an interface is unknown."""
    there = list(_outwards(known, Place(client.namespace, client.interface)))
    back = list(_outwards(known, Place(server.namespace, server.interface)))
    if not there or not back:
        return []
    if len(there) > 1 and len(back) > 1 and (skips := _skipped(known, there[-1][0], back[-1][0])) is not None:
        there, back = (there[:-1], back) if skips == there[-1][0] else (there, back[:-1])
        own, (first, *rest) = _steps(there, []), _steps([], back)
        return [*own, replace(first, skips=skips), *rest]
    back_places = [place for place, _ in back]
    if there[0] == back[0]:  # loopback both sends and receives
        return _steps(there[:1], back[:1])
    for at, (place, came_by) in enumerate(there):
        if place not in back_places:
            continue
        meets = back_places.index(place)
        if came_by != "lower" or meets == 0 or back[meets][1] != "lower":
            return _steps(there[: at + 1], back[:meets])
        upper, _came_by = there[at - 1]
        if known[upper].mode == "vepa":  # its frames go out and come back
            return _steps(there, back)
        # the device below passes frames between the two without counting them
        return _steps(there[:at], back[:meets])
    return _steps(there, back) if there[-1][0].namespace == back[-1][0].namespace else []


def _skipped(known: Interfaces, here: Place, port: Place) -> Place | None:
    """Return the interface that counts nothing of what a program redirects from `here` to `port`, if there is one."""
    redirect = known[here].redirect
    if redirect is None or redirect.to != port or redirect.hook.startswith("xdp"):
        return None  # drivers count what XDP redirects
    return next(iter(redirect.unseen), None)


def _outwards(known: Interfaces, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield the interfaces from an end outwards, each with how it was reached: from above (lower) or through a
    cable (peer)."""
    first = known.get(place)
    # a tap that no program of the topology holds is the far end of a guest's cable
    came_by = "peer" if first is not None and first.kind == "tun" and first.peer is None else ""
    passed: list[Place] = []
    while place not in passed and (one := known.get(place)) is not None:
        yield place, came_by
        if came_by == "peer" or not (far := one.peer or one.lower):
            return
        passed.append(place)
        came_by, place = ("peer" if one.peer else "lower"), far


def _steps(there: Sequence[tuple[Place, str]], back: Sequence[tuple[Place, str]]) -> list[Step]:
    out = [Step(place.namespace, place.interface, IN if by == "peer" else OUT) for place, by in there]
    turned = [Step(place.namespace, place.interface, OUT if by == "peer" else IN) for place, by in back]
    return [*out, *reversed(turned)]
