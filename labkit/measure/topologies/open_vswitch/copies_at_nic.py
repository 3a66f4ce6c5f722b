"""The far end of mirrors' tunnels on the second one of two hosts: a namespace that has the NIC at the cable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from labkit.common import switch_options
from labkit.measure.endpoints import namespaces
from labkit.measure.topologies.base import Copies, Spec
from labkit.measure.topologies.open_vswitch.arrivals import counting
from labkit.measure.topologies.open_vswitch.copies import reading
from labkit.measure.topologies.open_vswitch.mirrors import MONITOR
from labkit.measure.topologies.physical_nic import borrowed_nic
from labkit.system import netlink


@contextmanager
def receiving(spec: Spec, switch: str) -> Iterator[tuple[str, Callable[[], Copies]]]:
    """Read the copies of this switch (the topology's name) that arrive at the NIC, until the block ends.

    Yields the MAC address of the NIC, and a function that returns the copies that have arrived up to now. Nothing
    answers, so nothing is sent. Raises BadInput for a NIC that cannot be used, and as `reading`.
    """
    options = switch_options.options(switch)
    with (
        namespaces([MONITOR], family=spec.family) as [space],
        borrowed_nic(spec, space, moved=True) as (kernel, index),
    ):
        nic = next(link for link in netlink.links(kernel) if link.index == index)
        assert nic.mac is not None, "it is Ethernet"
        ends = [(nic.name, index)]
        with (
            counting(options, space, ends) as arrived,
            reading(options.readers, space, ends) as unread,
        ):
            yield nic.mac, lambda: msgspec.structs.replace(arrived(), unread=unread())
