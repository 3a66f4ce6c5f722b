"""The far end of mirrors' tunnels on the second one of two hosts: a namespace that has the NIC at the cable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labkit.measure.endpoints import namespaces
from labkit.measure.topologies.base import Spec
from labkit.measure.topologies.open_vswitch.mirrors import MONITOR
from labkit.measure.topologies.open_vswitch.readers import reading
from labkit.measure.topologies.physical_nic import borrowed_nic
from labkit.system import netlink

Counts = Callable[[], tuple[int, int | None]]


@contextmanager
def receiving(spec: Spec, readers: str) -> Iterator[tuple[str, Counts]]:
    """Read what arrives at the NIC with these readers (`switch_options.READERS`) until the block ends.

    Yields the MAC address of the NIC, and a function that returns the packets that arrived up to now, and those that
    readers lost (None: nobody can know). Nothing answers, so nothing is sent. Raises BadInput for a NIC that cannot be
    used, and as `reading`.
    """
    with (
        namespaces([MONITOR], family=spec.family) as [space],
        borrowed_nic(spec, space, moved=True) as (kernel, index),
    ):
        nic = next(link for link in netlink.links(kernel) if link.index == index)
        assert nic.mac is not None, "it is Ethernet"
        with reading(readers, space, [(nic.name, index)]) as unread:
            yield nic.mac, lambda: (kernel.counters(index).received_count, unread())
