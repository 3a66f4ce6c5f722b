"""The table of topologies: the one place to add a new one."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from labkit.errors import BadInput, Unsupported
from labkit.netlink import LinkError
from labkit.topologies.base import Builder, Spec, Topology
from labkit.topologies.lower import IPVLAN_MODES, MACVLAN_MODES, ipvlan, macvlan
from labkit.topologies.veth import loopback, veth, veth_bridge, veth_routed, vxlan

TABLE: dict[str, Builder] = {
    "loopback": loopback,
    "veth": veth,
    "veth_bridge": veth_bridge,
    "veth_routed": veth_routed,
    **{f"macvlan_{mode}": macvlan for mode in MACVLAN_MODES},
    **{f"ipvlan_{mode}": ipvlan for mode in IPVLAN_MODES},
    "vxlan": vxlan,
}
TAKES_PARENT = {macvlan, ipvlan}
# Two devices of one parent in this mode never exchange frames (drivers/net/macvlan.c, macvlan_queue_xmit):
# reachability must fail.
ISOLATED = {"macvlan_private": "macvlan private mode passes no frame between two devices of one parent"}


def check_names(asked: Iterable[str]) -> None:
    """Raises BadInput with the list of what there is, unless every name is a topology."""
    for name in asked:
        if name not in TABLE:
            raise BadInput(f"there is no topology {name}; there are {', '.join(TABLE)}")


@contextmanager
def build(name: str, spec: Spec) -> Iterator[Topology]:
    """The topology `name`, live until the block ends.

    Raises BadInput for an unknown name or a parent where none can be, Unsupported where this kernel lacks a
    part, Isolated where the kernel refuses by design, LinkError for anything else that the kernel refused.
    """
    check_names([name])
    builder = TABLE[name]
    if spec.parent is not None and builder not in TAKES_PARENT:
        raise BadInput(f"parent={spec.parent}: {name} has no parent; macvlan and ipvlan have")
    with ExitStack() as stack:
        try:
            topology = stack.enter_context(builder(name, spec))
        except LinkError as error:
            if error.errno == errno.EOPNOTSUPP:  # rtnetlink's answer to a kind that it does not know
                raise Unsupported(f"this kernel cannot {error}: run {name} on a kernel that can") from None
            raise
        yield topology
