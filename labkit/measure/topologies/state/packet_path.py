"""Find the path of frames between the ends of a pair in a topology's state, interface by interface."""

from collections.abc import Iterator, Sequence

from labkit.common.topology_state import InterfaceState, PairEnd, Place, State, Step

OUT, IN = "out", "in"


def packet_paths(state: State) -> list[list[Step]]:
    """Return for each pair the steps from client to server; [] if no path is found."""
    if state.forward:  # an existing network, whose routes have been followed
        return [state.forward]
    known = {(space.name, one.name): one for space in state.namespaces for one in space.interfaces}
    return [packet_path(known, client, server) for client, server in state.pairs]


def packet_path(known: dict[tuple[str, str], InterfaceState], client: PairEnd, server: PairEnd) -> list[Step]:
    """Return the steps from client to server; [] if their paths do not meet or an interface is unknown."""
    there = list(_outwards(known, Place(client.namespace, client.interface)))
    back = list(_outwards(known, Place(server.namespace, server.interface)))
    if not there or not back:
        return []
    if len(there) > 1 and len(back) > 1 and (skips := _skipped(known, there[-1][0], back[-1][0])) is not None:
        return _steps(there[:-1], back) if skips == there[-1][0] else _steps(there, back[:-1])
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
        if known[upper.namespace, upper.interface].mode == "vepa":  # its frames go out and come back
            return _steps(there, back)
        # the device below passes frames between the two without counting them
        return _steps(there[:at], back[:meets])
    return _steps(there, back) if there[-1][0].namespace == back[-1][0].namespace else []


def _skipped(known: dict[tuple[str, str], InterfaceState], here: Place, port: Place) -> Place | None:
    """Return the interface that packets skip because of a program that redirects what comes to `here` to `port`.

    bpf_redirect_peer gives them to the other end of the port's cable, so the port never transmits them
    (skb_do_redirect, net/core/filter.c). A program of netkit runs before they arrive (netkit_xmit).
    """
    redirect = known[here.namespace, here.interface].redirect
    if redirect is None or redirect.to != port:
        return None
    return here if redirect.hook == "netkit" else port if redirect.helper == "bpf_redirect_peer" else None


def _outwards(known: dict[tuple[str, str], InterfaceState], place: Place) -> Iterator[tuple[Place, str]]:
    """Yield the interfaces from an end outwards, each with how it was reached: from above (lower) or through a
    cable (peer)."""
    first = known.get((place.namespace, place.interface))
    # a tap is the far end of a guest's cable
    came_by = "peer" if first is not None and first.kind == "tun" else ""
    while (one := known.get((place.namespace, place.interface))) is not None:
        yield place, came_by
        if came_by == "peer" or not (far := one.peer or one.lower):
            return
        came_by, place = ("peer" if one.peer else "lower"), far


def _steps(there: Sequence[tuple[Place, str]], back: Sequence[tuple[Place, str]]) -> list[Step]:
    out = [Step(place.namespace, place.interface, IN if by == "peer" else OUT) for place, by in there]
    turned = [Step(place.namespace, place.interface, OUT if by == "peer" else IN) for place, by in back]
    return [*out, *reversed(turned)]
