"""Open vSwitch: a private switch inside an experiment, its mirrors, and what reads them.

`words` parses what a topology's name asks of the switch, `rpc` talks to the daemons, `switch` starts them and waits
until they are ready, `topology` builds the ports and mirrors and joins the endpoints to them.
"""

from labkit.measure.topologies.open_vswitch.topology import NAMES, ovs, ovs_guests
from labkit.measure.topologies.open_vswitch.words import SwitchOptions, options

__all__ = ["NAMES", "SwitchOptions", "options", "ovs", "ovs_guests"]
