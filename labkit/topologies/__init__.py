"""Topologies: context managers that build the endpoints and what joins them.

A new topology is one function in a module of this package and one entry in TABLE.
"""

from labkit.topologies.base import CLIENTS, SERVERS, Spec, Topology
from labkit.topologies.half import ACROSS, far_ends
from labkit.topologies.state import State, state
from labkit.topologies.table import ENDPOINTS, TABLE, build, check_guests, check_names, half
from labkit.topologies.ways import Step, ways

__all__ = [
    "ACROSS", "CLIENTS", "ENDPOINTS", "SERVERS", "TABLE", "Spec", "State", "Step", "Topology", "build", "check_guests",
    "check_names", "far_ends", "half", "state", "ways",
]  # fmt: skip
