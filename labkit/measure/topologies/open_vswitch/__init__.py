"""Open vSwitch: a private switch inside an experiment, its mirrors, and what reads them.

`switch_options` parses the options in a topology's name, `rpc` talks to the daemons, `switch` starts them and waits
until they are ready, `topology` builds the ports and mirrors and joins the endpoints to them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from labkit.measure.topologies.base import BuiltSide, Spec, Topology
from labkit.measure.topologies.open_vswitch.switch_options import (
    NAMES,
    SwitchOptions,
    copies_leave,
    options,
    shares_ends,
    why_no_tags,
)

__all__ = [
    "NAMES", "SwitchOptions", "copies_leave", "options", "ovs", "ovs_guests", "shares_ends", "side", "why_no_tags",
]  # fmt: skip


def ovs(name: str, spec: Spec) -> AbstractContextManager[Topology]:
    """A veth from every end to one switch, as `topology.ovs`."""
    from labkit.measure.topologies.open_vswitch import topology  # what only a switch needs

    return topology.ovs(name, spec)


def ovs_guests(name: str, spec: Spec) -> AbstractContextManager[Topology]:
    """A tap from every guest to one switch, as `topology.ovs_guests`."""
    from labkit.measure.topologies.open_vswitch import topology

    return topology.ovs_guests(name, spec)


def side(name: str, spec: Spec) -> AbstractContextManager[BuiltSide]:
    """A switch on each of two hosts, with the cable as one more port, as `topology.side`."""
    from labkit.measure.topologies.open_vswitch import topology

    return topology.side(name, spec)
