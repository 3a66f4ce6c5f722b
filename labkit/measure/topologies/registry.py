"""The table of topologies. The names of Open vSwitch come from `switch_options.NAMES`."""

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from labkit.common import existing_names, extensions, switch_options
from labkit.common.errors import BadInput, choose
from labkit.common.extensions import on_call
from labkit.measure.endpoints import Pair
from labkit.measure.topologies import base, linux_datapaths
from labkit.measure.topologies.base import USER_SPACE, BuiltSide, Spec, Topology, TopologyKind
from labkit.measure.topologies.network import build as network_builder
from labkit.measure.topologies.network import validate
from labkit.measure.topologies.network.build import described, entered, one_side
from labkit.measure.topologies.network.kinds import KINDS
from labkit.measure.topologies.network.parts import Network

_GUESTS = "labkit.measure.topologies.containers_and_guests"
_SWITCH = "labkit.measure.topologies.open_vswitch.topology"
_EXISTING = "labkit.measure.existing.arm"
_PUBLISHED = "labkit.measure.topologies.published_ports"
_MACVLAN = TopologyKind(described(linux_datapaths.macvlan), takes_parent=True)
_IPVLAN = TopologyKind(
    described(linux_datapaths.ipvlan), side=partial(one_side, linux_datapaths.ipvlan), takes_parent=True
)
_IPVLAN_ROUTED = replace(
    _IPVLAN, why_no_tags=lambda _name: "ipvlan in layer 3 sends only IP packets without a tag"
)
_ROUTED = TopologyKind(
    described(linux_datapaths.routed), why_no_tags=lambda _name: "its router has no interface in a VLAN"
)
_REDIRECTED = TopologyKind(described(linux_datapaths.redirected), networking_model=base.EBPF)
_TUNNEL = TopologyKind(
    described(linux_datapaths.tunnel),
    check_load=lambda name, _pairs, mtu_bytes, family: linux_datapaths.outside_bytes(name, mtu_bytes, family),
)


def _switch(name: str) -> TopologyKind:
    """Return the entry of a switch with the options behind its name. Raises BadInput for invalid ones."""
    wanted = switch_options.options(name)
    return TopologyKind(
        partial(on_call(f"{_SWITCH}:ovs"), wanted),
        with_options=_switch,
        check_load=wanted.check_load,
        guests={"guest": partial(on_call(f"{_SWITCH}:ovs_guests"), wanted)},
        side=partial(on_call(f"{_SWITCH}:side"), wanted),
        why_no_tags=lambda _name: wanted.why_no_tags,
        copies_leave=wanted.copies_leave,
        shares_ends=wanted.case is not None,
        # The network has no VLAN device, which some kernels lack. The packet generator tags its frames itself.
        generators=("packets",) if wanted.tunnel == "vlan" else None,
        networking_model=USER_SPACE if wanted.datapath.in_userspace else base.KERNEL_SPACE,
    )


# Published ports are one port of each server, to which these send.
ON_ONE_PORT = ("iperf3", "sockperf", "sockets", "connections", "wrk")
# A generator that gives frames to a device passes its queueing discipline and the policies of IP by.
ON_SOCKETS = (*ON_ONE_PORT, "ping")
_USER_MODE = TopologyKind(
    on_call("labkit.measure.topologies.user_mode:user_mode"),
    check_load=on_call("labkit.measure.topologies.user_mode:check_load"),
    why_no_tags=lambda name: f"{name} copies payload, not frames",
    networking_model=USER_SPACE,
)
TABLE: dict[str, TopologyKind] = {
    "loopback": TopologyKind(linux_datapaths.loopback, networking_model=base.ONE_HOST),
    "veth": TopologyKind(described(linux_datapaths.veth)),
    "veth_bridge": TopologyKind(
        described(linux_datapaths.veth_bridge),
        guests={
            "guest": on_call(f"{_GUESTS}:tap_bridge"),
            "shared_guest": on_call(f"{_GUESTS}:bridge_inside"),
        },
        side=partial(one_side, linux_datapaths.veth_bridge),
    ),
    **dict.fromkeys(linux_datapaths.ROUTED, _ROUTED),
    **{
        name: replace(_REDIRECTED, why_no_tags=_ROUTED.why_no_tags) if below else _REDIRECTED
        for name, (below, _helper, _hook) in linux_datapaths.REDIRECTS.items()
    },
    "veth_published_proxy": TopologyKind(
        on_call(f"{_PUBLISHED}:veth_published_proxy"), generators=ON_ONE_PORT, networking_model=USER_SPACE
    ),
    "veth_published_nat": TopologyKind(on_call(f"{_PUBLISHED}:veth_published_nat"), generators=ON_ONE_PORT),
    **dict.fromkeys(("pasta", "slirp4netns", "rootlesskit"), _USER_MODE),
    **dict.fromkeys(
        ("pasta_published", "rootlesskit_builtin", "rootlesskit_slirp4netns"),
        replace(_USER_MODE, generators=ON_ONE_PORT),
    ),
    **{f"macvlan_{mode}": _MACVLAN for mode in KINDS["macvlan"].modes},
    "macvlan_bridge": replace(_MACVLAN, side=partial(one_side, linux_datapaths.macvlan)),
    # Two devices of one parent in this mode never exchange frames (drivers/net/macvlan.c, macvlan_queue_xmit):
    # reachability must fail.
    "macvlan_private": replace(
        _MACVLAN, isolated="macvlan private mode passes no frame between two devices of one parent"
    ),
    **{f"ipvlan_{mode}": _IPVLAN_ROUTED for mode in KINDS["ipvlan"].modes},
    "ipvlan_l2": _IPVLAN,
    **dict.fromkeys(linux_datapaths.TUNNELS, _TUNNEL),
    "esp_transport": replace(_TUNNEL, build=described(linux_datapaths.esp_transport), generators=ON_SOCKETS),
    "overlay": TopologyKind(network_builder.overlay, check_load=network_builder.check_overlay),
    **{name: _switch(name) for name in switch_options.NAMES},
}
TABLE |= extensions.load_all("labkit.topologies", TopologyKind, TABLE)
KINDS.update({link.name: link for kind in TABLE.values() for link in kind.links})
# What draft-ietf-bmwg-containerized-infra-08 has and labkit does not: its model, and what it needs.
WITHOUT_TOPOLOGY = {
    "VPP": (USER_SPACE, "the packages of the project FD.io, which Debian does not have"),
    "SR-IOV": (
        base.HARDWARE,
        "a NIC with virtual functions, and what joins them: the NIC's own switch or a cable",
    ),
    "SmartNIC": (base.HARDWARE, "a NIC that forwards in hardware (switchdev), and its driver"),
}
ACROSS = tuple(name for name, kind in TABLE.items() if kind.side)  # those that can connect two hosts
IN_GUESTS = ("guest", "shared_guest")
ENDPOINTS = ("namespace", "container", *IN_GUESTS)


def check_names(topologies: Iterable[str | Network]) -> None:
    """Raise BadInput if a name is not a topology or has invalid options, or a network cannot be built."""
    for name in topologies:
        if isinstance(name, Network):
            validate.check(name)
            if name.name in TABLE:
                raise BadInput(
                    f"a network to be measured cannot be called {name}, because labkit has a topology of that name:"
                    " change `name` in its file"
                )
            continue
        if existing_names.is_network(name):
            existing_names.ends(name)
            continue
        word, plus, _options = name.partition("+")
        if word not in TABLE:
            letters = re.sub(r"[-_]", "", word.lower())  # sr_iov, SR-IOV
            for known, (_model, needs) in WITHOUT_TOPOLOGY.items():
                if letters == known.lower().replace("-", ""):
                    raise BadInput(f"labkit has no topology for {known}: it needs {needs}")
            raise BadInput(f"{word} is not a topology: {choose(word, TABLE)}")
        if plus:
            with_options = TABLE[word].with_options
            if with_options is None:
                able = ", ".join(name for name, kind in TABLE.items() if kind.with_options)
                raise BadInput(f"{name}: {word} takes no options; {able} do")
            with_options(name)


def kind_of(topology: str | Network) -> TopologyKind:
    """Return the entry of a topology, with its options.

    A network of one's own gets an entry that builds it, and an existing one an entry that uses it.
    """
    if isinstance(topology, Network):
        return TopologyKind(
            lambda _name, spec: network_builder.arm(topology, spec),
            check_load=lambda _name, *load: network_builder.check_load(topology, *load),
            why_no_tags=lambda _name: network_builder.why_no_tags(topology),
            generators=None if network_builder.takes_frames(topology) else ON_SOCKETS,
        )
    if existing_names.is_network(topology):
        return TopologyKind(
            on_call(f"{_EXISTING}:existing"),
            check_load=on_call(f"{_EXISTING}:check_load"),
            why_no_tags=lambda _name: "labkit adds no VLAN to an existing network",
            # The others need rules or interfaces of their own at the ends.
            generators=("iperf3", "ping", "sockperf", "sockets"),
            side=on_call(f"{_EXISTING}:side") if existing_names.is_apart(topology) else None,
        )
    kind = TABLE[topology.partition("+")[0]]
    return kind.with_options(topology) if kind.with_options else kind


def check(
    topology: str | Network,
    load: tuple[int, int, int],
    generator: str,
    endpoints: Iterable[str] = (),
    parent: str | None = None,
    across: bool = False,
) -> None:
    """Raise BadInput for what a topology cannot have or carry.

    `load`: pairs, MTU in bytes and IP version. `endpoints`: kinds of endpoints. `parent`: a NIC under it. `across`:
    whether it connects two hosts.
    """
    kind = kind_of(topology)
    kind.check_load(str(topology), *load)
    if kind.generators is not None and generator not in kind.generators:
        raise BadInput(
            f"{topology} takes the load of {', '.join(kind.generators)} only, not that of {generator}: choose another"
            " topology, for example veth_bridge"
        )
    for endpoint in sorted({*IN_GUESTS} & {*endpoints} - {*kind.guests}):
        able = ", ".join(name for name, one in TABLE.items() if endpoint in one.guests)
        raise BadInput(f"{topology} does not support endpoint={endpoint}: choose {able}")
    if "container" in endpoints and existing_names.is_network(str(topology)):
        raise BadInput(f"{topology} has its ends already: leave endpoint out")
    if parent is not None and not kind.takes_parent:
        raise BadInput(f"parent={parent}: {topology} has no parent: only macvlan and ipvlan have one")
    if across and kind.side is None and existing_names.is_network(str(topology)):
        raise BadInput(
            f"{topology} has both ends on one machine: with nodes=two name the other's as ssh:NAME/END"
        )
    if across and kind.side is None:
        raise BadInput(f"{topology} cannot connect two hosts: with nodes=two choose {', '.join(ACROSS)}")


def check_tags(topology: str | Network, vlan: int) -> None:
    """Raise BadInput, with the reason, if a topology passes no frame with a VLAN tag."""
    if reason := kind_of(topology).why_no_tags(str(topology)):
        raise BadInput(
            f"vlan={vlan}: {topology} drops frames with a VLAN tag, because {reason}: leave vlan out, or choose for"
            " example veth_bridge"
        )


def usual(topology: str | Network) -> dict[str, Any]:
    """Return the parameters that a topology decides: the MTU and IP version of a network of one's own, and the machines
    of an existing one."""
    if isinstance(topology, Network):
        return network_builder.usual(topology)
    return existing_names.decided(topology) if existing_names.is_network(topology) else {}


@contextmanager
def build(topology: str | Network, spec: Spec) -> Iterator[Topology]:
    """Build a topology, by its name or from a network's description; it exists until the block ends.

    Its name and what it can carry were checked. Raises Unsupported if this kernel lacks a feature, Isolated if the
    kernel refuses by design, LinkError for any other refusal of the kernel.
    """
    kind, name = kind_of(topology), str(topology)
    with ExitStack() as stack:
        if spec.endpoint in IN_GUESTS:
            built = entered(stack, kind.guests[spec.endpoint](name, spec))
        else:
            built = entered(stack, kind.build(name, spec))
            if spec.endpoint == "container":
                built = stack.enter_context(on_call(f"{_GUESTS}:with_containers")(built))
        stack.enter_context(built.at_end)
        if spec.programs:
            ends = [
                (replace(end, programs=spec.programs) for end in (one.client, one.server))
                for one in built.pairs
            ]
            built = replace(built, pairs=[Pair(*each) for each in ends])
        yield built


@contextmanager
def half(name: str, spec: Spec) -> Iterator[BuiltSide]:
    """Build one side (`spec.side`) of the topology `name`; the other side is on another host.

    Raises the same errors as `build`, and BadInput for a NIC that cannot be used.
    """
    side = kind_of(name).side
    assert side is not None, "it was checked"
    with ExitStack() as stack:
        yield entered(stack, side(name, spec))
