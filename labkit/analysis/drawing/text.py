"""Write a state as text: a tree for the terminal, or Mermaid."""

from collections.abc import Iterator

from labkit.analysis.drawing import graph
from labkit.analysis.drawing.flat_layout import Layout
from labkit.analysis.drawing.graph import kind
from labkit.common.topology_state import InterfaceState, Place, State, Step

# Those that are usually on, so that it matters where one is off.
USUAL_OFFLOADS = (
    "tx-checksumming", "tcp-segmentation-offload", "generic-segmentation-offload", "generic-receive-offload",
)  # fmt: skip
_MERMAID_LINES = {
    "veth": "---", "port": "-.-", "lower": "-. lower .-", "tunnel": "== tunnel ===", "mirror": "-. mirror .-",
    "redirect": "-- BPF ---", "published": "-. through .-",
}  # fmt: skip


def tree(state: State) -> str:
    """Return namespaces with their interfaces, all known facts about these, and the routes that addresses do not
    imply."""
    state = graph.simplify(state)
    all_of_it = [one for space in state.namespaces for one in space.interfaces]
    names = max((len(one.name) for one in all_of_it), default=0)
    kinds = max((len(kind(one)) for one in all_of_it), default=0)
    lines = [f"{graph.title(state)}, Linux {state.kernel}"]
    for space in state.namespaces:
        lines += ["", space.name]
        for one in space.interfaces:
            start = f"  {one.name.ljust(names)}  {kind(one).ljust(kinds)}  MTU {one.mtu_bytes or '–':<5}"
            lines.append("  ".join([start, "; ".join(_facts(one))]).rstrip())
        # The other routes follow from the addresses.
        lines += [f"  route {graph.route_line(route)}" for route in space.routes if not route.connected]
        lines += [f"  {name}: {what}" for name, what in space.rules.items()]
        lines += [f"  {sentence}" for sentence in space.published]
    for name, steps in (("forward", state.forward), ("back", state.back)):
        if steps:
            hops = (f"(skips {_at(one.skips)}) {_at(one)}" if one.skips else _at(one) for one in steps)
            lines += ["", f"{name}: {' > '.join(hops)}"]
    return "\n".join(lines) + "\n"


def _facts(one: InterfaceState) -> Iterator[str]:
    yield from one.addresses
    if one.peer is not None:
        yield f"peer {_at(one.peer)}"
    if one.master is not None:
        yield f"port of {one.master}"
    if one.lower is not None:
        yield f"on {_at(one.lower)}"
    if one.tunnel is not None:
        peers = ", ".join(map(_at, one.tunnel.peers))
        yield f"tunnel {graph.outside(one.tunnel)}{f' ({peers})' if peers else ''}"
    if one.redirect is not None:
        yield from one.redirect.facts
    if one.copies:
        yield f"copies of {', '.join(place.interface for place in one.copies)}"
    if one.qdisc not in (None, "noqueue"):
        yield f"qdisc {one.qdisc}"
    if off := [name for name in USUAL_OFFLOADS if one.offloads.get(name) is False]:
        yield f"off: {', '.join(off)}"
    yield from graph.condition(one)


def _at(place: Place | Step) -> str:
    return f"{place.namespace}/{place.interface}"


def mermaid(state: State) -> str:
    """Return a Mermaid flowchart of the first pairs, because its viewers refuse hundreds of lines."""
    state, left_out = graph.first(graph.simplify(state))
    lines = [f"%% {graph.title(state)}, Linux {state.kernel}", "flowchart LR"]
    if left_out:
        lines.append(f"  more[{_escape(graph.more(left_out))}]")
    numbers: dict[Place, str] = {}
    for number, space in enumerate(state.namespaces):
        lines.append(f"  subgraph n{number}[{_escape(space.name)}]")
        for position, one in enumerate(space.interfaces):
            own = one.index or f"x{position}"  # an interface that only a switch knows has no index
            name = numbers[Place(space.name, one.name)] = f"n{number}i{own}"
            lines.append(f"    {name}[{_escape(*graph.label(one))}]")
        lines.append("  end")
    layout = Layout(state)
    for join, _ in layout.lines:  # Mermaid places the ends in their order here from left to right
        near, far = sorted(join.ends, key=lambda place: layout.interfaces[place].x)
        lines.append(f"  {numbers[near]} {_MERMAID_LINES[join.kind]} {numbers[far]}")
    return "\n".join(lines) + "\n"


def _escape(*lines: str) -> str:
    """Return a quoted text of Mermaid, whose entities start with # instead of &."""
    entities = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;"})
    return '"' + "<br/>".join(line.translate(entities) for line in lines) + '"'
