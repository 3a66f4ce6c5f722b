"""Open vSwitch: a private switch inside an experiment, its mirrors, and what reads them.

`switch_options` parses the options in a topology's name, `rpc` talks to the daemons, `switch` starts them and waits
until they are ready, `topology` builds the ports and mirrors and joins the endpoints to them.
"""

from __future__ import annotations

from labkit.common.extensions import on_call
from labkit.common.switch_options import (
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

_TOPOLOGY = "labkit.measure.topologies.open_vswitch.topology"  # what only a switch needs
ovs, ovs_guests, side = (on_call(f"{_TOPOLOGY}:{name}") for name in ("ovs", "ovs_guests", "side"))
