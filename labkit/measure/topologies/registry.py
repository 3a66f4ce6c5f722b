"""The table of topologies: the one place to add a new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from labkit.common.errors import BadInput
from labkit.measure.endpoints import Endpoint
from labkit.measure.topologies import open_vswitch, tunnels
from labkit.measure.topologies.across_hosts import ACROSS, one_side
from labkit.measure.topologies.base import Builder, Spec, Topology, entered
from labkit.measure.topologies.containers_and_guests import bridge_inside, tap_bridge, with_containers
from labkit.measure.topologies.macvlan_ipvlan import IPVLAN_MODES, MACVLAN_MODES, ipvlan, macvlan
from labkit.measure.topologies.network import build as network_builder
from labkit.measure.topologies.network.parts import Network
from labkit.measure.topologies.veth import loopback, veth, veth_bridge, veth_routed

TABLE: dict[str, Builder] = {
    "loopback": loopback,
    "veth": veth,
    "veth_bridge": veth_bridge,
    "veth_routed": veth_routed,
    **{f"macvlan_{mode}": macvlan for mode in MACVLAN_MODES},
    **{f"ipvlan_{mode}": ipvlan for mode in IPVLAN_MODES},
    **dict.fromkeys(tunnels.ARMS, tunnels.tunnel),
    "overlay": network_builder.overlay,
    **dict.fromkeys(open_vswitch.NAMES, open_vswitch.ovs),
}
# The topologies that take options after their name, with the function that raises BadInput for invalid options.
OPTIONS = dict.fromkeys(open_vswitch.NAMES, open_vswitch.options)
# The topologies that can have endpoints in guests, with their builder for each of these endpoint kinds.
GUESTS: dict[str, dict[str, Builder]] = {
    "veth_bridge": {"guest": tap_bridge, "shared_guest": bridge_inside},
    **{name: {"guest": open_vswitch.ovs_guests} for name in open_vswitch.NAMES},
}
IN_GUESTS = ("guest", "shared_guest")
ENDPOINTS = ("namespace", "container", *IN_GUESTS)
TAKES_PARENT = {macvlan, ipvlan}
# Two devices of one parent in this mode never exchange frames (drivers/net/macvlan.c, macvlan_queue_xmit):
# reachability must fail.
ISOLATED = {"macvlan_private": "macvlan private mode passes no frame between two devices of one parent"}


def check_names(parameters: Iterable[str | Network]) -> None:
    """Raise BadInput if a name is not a topology or has invalid options, or a network cannot be built."""
    for name in parameters:
        if isinstance(name, Network):
            network_builder.check(name)
            if name.name in TABLE:
                raise BadInput(
                    f"a network to be measured cannot be called {name}: labkit has a topology of that name"
                )
            continue
        kind, plus, _options = name.partition("+")
        if kind not in TABLE:
            raise BadInput(f"{kind} is not a topology: choose {', '.join(TABLE)}")
        if plus and kind not in OPTIONS:
            raise BadInput(f"{name}: {kind} takes no options; {', '.join(OPTIONS)} do")
        if plus:
            OPTIONS[kind](name)


def builder_of(topology: str | Network) -> Builder:
    """Return the builder of a topology, whose options are ignored."""
    if isinstance(topology, Network):
        return lambda _name, spec: network_builder.arm(topology, spec)
    return TABLE[topology.partition("+")[0]]


def check_parent(topology: str | Network, parent: str | None) -> None:
    """Raise BadInput if a parent NIC is given for a topology that takes none."""
    if parent is not None and builder_of(topology) not in TAKES_PARENT:
        raise BadInput(f"parent={parent}: {topology} has no parent: only macvlan and ipvlan have one")


def check_carries(topology: str | Network, pairs: int, mtu_bytes: int, family: int) -> None:
    """Raise BadInput if a tunnel or a network of one's own cannot carry the load of this many pairs."""
    if isinstance(topology, Network):
        network_builder.check_load(topology, pairs, mtu_bytes, family)
    elif topology in tunnels.ARMS:
        tunnels.outside_bytes(topology, mtu_bytes, family)


def usual(topology: str | Network) -> dict[str, int]:
    """Return the parameters that a network of one's own decides (MTU, IP version); none for other topologies."""
    return network_builder.usual(topology) if isinstance(topology, Network) else {}


@contextmanager
def build(topology: str | Network, spec: Spec) -> Iterator[Topology]:
    """Build a topology, by its name or from a network's description; it exists until the block ends.

    Raises BadInput for an unknown name or a parent that the topology does not take, Unsupported if this kernel lacks a
    feature, Isolated if the kernel refuses by design, LinkError for any other refusal of the kernel.
    """
    check_names([topology])
    builder, name = builder_of(topology), str(topology)
    check_parent(topology, spec.parent)
    with ExitStack() as stack:
        if spec.endpoint in IN_GUESTS:
            check_guests([name], spec.endpoint)
            yield entered(stack, GUESTS[name.partition("+")[0]][spec.endpoint](name, spec))
            return
        built = entered(stack, builder(name, spec))
        yield stack.enter_context(with_containers(built)) if spec.endpoint == "container" else built


def check_guests(parameters: Iterable[str | Network], endpoint: str = "guest") -> None:
    """Raise BadInput if a topology has no builder for this endpoint kind (guest or shared_guest)."""
    for name in map(str, parameters):
        if endpoint not in GUESTS.get(name.partition("+")[0], {}):
            there = ", ".join(kind for kind, kinds in GUESTS.items() if endpoint in kinds)
            raise BadInput(f"{name} does not support endpoint={endpoint}: choose {there}")


@contextmanager
def half(name: str, spec: Spec) -> Iterator[list[Endpoint]]:
    """Build the ends of one side (`spec.side`) of the topology `name`; the other side is on another host.

    Raises the same errors as `build`.
    """
    if name not in ACROSS:
        raise BadInput(f"{name} cannot connect two hosts: choose {', '.join(ACROSS)}")
    with ExitStack() as stack:
        yield entered(stack, one_side(spec, ACROSS[name]))
