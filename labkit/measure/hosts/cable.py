"""The cable between two nodes of this kernel: a veth whose ends are in two network namespaces, one for each node."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from labkit.common.errors import Failed, Unsupported
from labkit.measure.hosts import local
from labkit.system import machine, netlink, process

Held = tuple[int, netlink.Netlink]  # a network namespace: its file descriptor, and a socket there
LARGEST_MTU = 65535  # of a veth; each node gives its own end the MTU that it needs


@contextmanager
def cable(rate_bps: float | None, mtu_bytes: int) -> Iterator[tuple[int, int]]:
    """Lay a cable; yield the network namespaces (file descriptors) in which the two nodes find their ends of it.

    `rate_bps` limits each direction, for packets of up to `mtu_bytes`: then a bridge is in the middle, and its ports
    have the queues, as those of a switch. A queue at a node's own end would be lost when the end moves to another
    namespace, and would hold its sender back. Raises Unsupported without privilege or if this kernel lacks veth,
    bridge or tbf.
    """
    if not local.privileged():
        raise Unsupported(
            "only root can join two nodes on this machine, because each runs in namespaces of its own: run as root"
        )
    with ExitStack() as stack:
        made = netlink.new_namespaces(2 if rate_bps is None else 3)
        nodes = made[:2]
        for fd, kernel in made:
            stack.callback(os.close, fd)
            stack.callback(kernel.close)
        try:
            if rate_bps is None:
                _veth(nodes[0], netlink.CABLE, nodes[1], mtu_bytes)
            else:
                _switch(made[2], nodes, rate_bps, mtu_bytes)
        except (netlink.LinkError, Failed) as error:
            raise Unsupported(
                f"the cable between two nodes of this machine cannot be made: {error}"
            ) from None
        one, other = (fd for fd, _ in nodes)
        yield one, other


def _switch(middle: Held, nodes: list[Held], rate_bps: float, mtu_bytes: int) -> None:
    """Make a bridge with a port for each node, whose queue limits the rate towards it."""
    fd, kernel = middle
    with netlink.inside(fd):
        kernel.do(netlink.new_link("bridge", "wire", mtu_bytes=LARGEST_MTU))
        bridge = netlink.index_of("wire")
        for name, node in zip(("one", "other"), nodes, strict=True):
            _veth(middle, name, node, LARGEST_MTU)
            kernel.do(netlink.set_master(netlink.index_of(name), bridge))
            words = machine.token_bucket(rate_bps, mtu_bytes)
            process.output(["tc", "qdisc", "add", "dev", name, "root", *words])


def _veth(near: Held, name: str, far: Held, mtu_bytes: int) -> None:
    """Make a veth with its ends up: `name`, and a node's end."""
    peer = {"name": netlink.CABLE, "netns": far[0]}
    near[1].do(netlink.new_link("veth", name, mtu_bytes=mtu_bytes, peer=peer))
    with netlink.inside(far[0]):
        far[1].do(netlink.set_link(netlink.index_of(netlink.CABLE)))
