"""The cable between two nodes of this kernel: a veth whose ends are in two network namespaces, one for each node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from labkit.common.errors import Failed, Unsupported
from labkit.measure.hosts import local
from labkit.system import machine, netlink, process


@contextmanager
def cable(rate_bps: float | None, mtu_bytes: int) -> Iterator[tuple[int, int]]:
    """Lay a cable; yield the network namespaces (file descriptors) in which the two nodes find their ends of it.

    `rate_bps` limits each direction, for packets of up to `mtu_bytes`. Raises Unsupported without privilege or if this
    kernel has no veth or tbf.
    """
    if not local.privileged():
        raise Unsupported(
            "only root can join two nodes on this machine, because each runs in namespaces of its own: run as root"
        )
    with ExitStack() as stack:
        (one, near), (other, _) = made = netlink.new_namespaces(2)
        for fd, kernel in made:
            stack.callback(os.close, fd)
            stack.callback(kernel.close)
        peer = {"name": netlink.CABLE, "netns": other}
        try:
            near.do(netlink.new_link("veth", netlink.CABLE, mtu_bytes=mtu_bytes, peer=peer))
            for fd, kernel in made:
                with netlink.inside(fd):
                    index = netlink.index_of(netlink.CABLE)
                    kernel.do(netlink.set_link(index))
                    if rate_bps is not None:
                        bucket = machine.token_bucket(rate_bps, mtu_bytes)
                        process.output(["tc", "qdisc", "add", "dev", netlink.CABLE, "root", *bucket])
        except (netlink.LinkError, Failed) as error:
            raise Unsupported(
                f"two nodes on this machine need a veth, and tbf for link_rate_bps: {error}"
            ) from None
        yield one, other
