"""The cable between two nodes of this kernel: a veth whose ends are in two network namespaces, one for each node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from labkit.common.errors import Failed, Unsupported
from labkit.measure.hosts import local
from labkit.system import netlink, process

# The queue of a rate-limited link holds 50 ms, like an ordinary switch.
QUEUE_MS = 50


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
                    limit_rate(netlink.CABLE, rate_bps, mtu_bytes)
        except (netlink.LinkError, Failed) as error:
            raise Unsupported(
                f"two nodes on this machine need a veth, and tbf for link_rate_bps: {error}"
            ) from None
        yield one, other


def limit_rate(name: str, rate_bps: float | None, mtu_bytes: int) -> None:
    """Limit what an interface of the calling thread's namespace sends, in bit/s; None: not at all.

    The burst holds a packet, and 1 ms of traffic because timers may be late. Larger packets are segmented.
    """
    if rate_bps is None:
        return
    burst = max(2 * (mtu_bytes + 18), int(rate_bps / 8 / 1000))
    words = ["rate", f"{int(rate_bps)}bit", "burst", str(burst), "latency", f"{QUEUE_MS}ms"]
    process.output(["tc", "qdisc", "add", "dev", name, "root", "tbf", *words])
